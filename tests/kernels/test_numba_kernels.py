"""The numba kernels at the sizes of models: tails, strides, bits, NaN, no numba.

`test_kernels` already puts every registered kernel, these too, through small boxes, poisoned
memory, in-place results and moving origins. Here is what shows only at length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels.test_kernels import (
    RULES,
    Memory,
    causal,
    evaluate,
    leaves_of,
    make_site,
    run,
    scratch_views,
    x,
)

from tgbench import ops
from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.op_table import OPS
from tgbench.kernels import Kernel, Site, candidates
from tgbench.kernels.registry import Host

pytest.importorskip("numba")

from tgbench.kernels.numba import loops as loops

Array = np.ndarray
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def attend(
    g: GraphBuilder, heads: int, shared: int, keys: int, mask: Any = None, rows: int = 1,
    depth: int = 20, wide: int = 12,
) -> Node:  # fmt: skip
    q = x(g, 1, rows, heads, depth, name="q").permute(0, 2, 1, 3)
    k = x(g, 1, keys, shared, depth, name="k").permute(0, 2, 1, 3)
    v = x(g, 1, keys, shared, wide, name="v").permute(0, 2, 1, 3)
    return ops.attention(q, k, v, None if mask is None else g.constant(mask))


def linear(
    g: GraphBuilder, rows: int, n: int, k: int, bias: bool = False, dtype: str = "float32"
) -> Node:
    vector = g.parameter("b", (n,), dtype) if bias else None
    return ops.linear(x(g, rows, k, dtype=dtype), g.parameter("w", (n, k), dtype), vector)


def gated(g: GraphBuilder, rows: int, activation: str) -> Node:
    gate, up = g.parameter("w", (131, 70)), g.parameter("u", (131, 70))
    return ops.gated_linear(x(g, rows, 70), gate, up, activation)


def random_mask(*shape: int) -> Array:
    mask = np.random.default_rng(3).random(shape) < 0.5
    mask[..., 0] = True
    return mask


NODES: dict[str, Callable[[GraphBuilder], Node]] = {}
for _n in (1, 2, 3, 4, 5, 7, 130):
    for _rows in (1, 3):
        NODES[f"linear_{_rows}x{_n}"] = lambda g, r=_rows, n=_n: linear(g, r, n, 257)


def widening(g: GraphBuilder, rows: int, n: int, k: int, dtype: str, bias: bool = False) -> Node:
    vector = g.parameter("b", (n,)) if bias else None
    return ops.widening_linear(x(g, rows, k), g.parameter("w", (n, k), dtype), vector)


for _dtype in ("bfloat16", "float16", "int8"):
    for _rows, _n, _k in ((1, 7, 257), (2, 130, 100), (3, 3, 31), (5, 67, 384), (9, 5, 1)):
        NODES[f"widening_{_dtype}_{_rows}x{_n}x{_k}"] = lambda g, a=(_rows, _n, _k), d=_dtype: (
            widening(g, *a, d, a[0] == 5)
        )
NODES["linear_64"] = lambda g: linear(g, 2, 33, 100, dtype="float64")
NODES["linear_bias"] = lambda g: linear(g, 5, 67, 384, bias=True)
NODES["linear_7"] = lambda g: linear(g, 7, 9, 400)  # rows taken in fours, twos and alone
NODES["linear_many"] = lambda g: linear(g, 40, 67, 129)
NODES["linear_short"] = lambda g: linear(g, 1, 9, 1)
for _activation in ("gelu_tanh", "gelu", "silu", "relu"):
    NODES[f"gated_{_activation}"] = lambda g, a=_activation: gated(g, 2, a)
for _dtype in ("float32", "float64"):
    NODES[f"rms_norm_{_dtype}"] = lambda g, d=_dtype: ops.rms_norm(
        x(g, 3, 641, dtype=d), g.parameter("w", (641,), d)
    )
    NODES[f"layer_norm_{_dtype}"] = lambda g, d=_dtype: ops.layer_norm(
        x(g, 3, 383, dtype=d), g.parameter("w", (383,), d), g.parameter("b", (383,), d)
    )
    for _op in ("add", "sub", "mul"):
        NODES[f"{_op}_{_dtype}"] = lambda g, o=_op, d=_dtype: g.apply(
            o, x(g, 3, 301, dtype=d), x(g, 3, 301, dtype=d, name="y")
        )
        NODES[f"{_op}_row_{_dtype}"] = lambda g, o=_op, d=_dtype: g.apply(
            o, x(g, 3, 301, dtype=d), x(g, 301, dtype=d, name="y")
        )
NODES["sub_number"] = lambda g: x(g, 3, 301) - g.parameter("s", ())
NODES["sub_from_number"] = lambda g: g.apply("sub", g.parameter("s", ()), x(g, 3, 301))
NODES["sub_from_row"] = lambda g: g.apply("sub", x(g, 301, name="y"), x(g, 3, 301))
NODES["softmax"] = lambda g: ops.softmax(x(g, 3, 1001))
NODES["gelu"] = lambda g: ops.gelu(x(g, 3, 1001))
NODES["gelu_tanh"] = lambda g: ops.gelu(x(g, 3, 1001), "tanh")
NODES["silu"] = lambda g: ops.silu(x(g, 3, 1001))
NODES["hardswish"] = lambda g: ops.hardswish(x(g, 3, 1001))
NODES["hardsigmoid"] = lambda g: ops.hardsigmoid(x(g, 3, 1001))
NODES["relu"] = lambda g: ops.relu(x(g, 3, 1001))
NODES["tanh"] = lambda g: ops.tanh(x(g, 3, 1001))
NODES["sigmoid"] = lambda g: ops.sigmoid(x(g, 3, 1001))


def windows(
    g: GraphBuilder, image: tuple[int, ...], columns: int, *window: int, dtype: str = "float32",
    bias: bool = True, **more: Any,
) -> Node:  # fmt: skip
    weight = g.parameter("w", (columns, image[1], *window), dtype)
    vector = g.parameter("b", (columns,), dtype) if bias else None
    return ops.conv(x(g, *image, dtype=dtype), weight, vector, **more)


NODES["conv_line"] = lambda g: windows(g, (1, 33, 3), 65, 2, dilation=2)
NODES["conv_over"] = lambda g: windows(g, (2, 17, 5), 7, 3, padding=1, bias=False)
NODES["conv_image"] = lambda g: windows(g, (1, 16, 7, 6), 31, 3, 3, padding=1, stride=2)
NODES["conv_far"] = lambda g: windows(g, (2, 5, 4, 6), 9, 2, 3, padding=(1, 2), stride=(4, 5))
NODES["conv_64"] = lambda g: windows(g, (1, 9, 3, 4), 12, 2, 2, dtype="float64")
NODES["rope"] = lambda g: ops.rope(
    x(g, 1, 3, 4, 70), x(g, 3, 1, 70, name="cos"), x(g, 3, 1, 70, name="sin")
)
NODES["gather"] = lambda g: ops.embedding(
    g.parameter("w", (4, 301)), x(g, 2, 3, dtype="int64", name="index")
)
for _keys in (1, 2, 3, 5, 63, 64, 65, 130):
    NODES[f"attention_{_keys}"] = lambda g, s=_keys: attend(g, 4, 1, s)
NODES["attention_heads"] = lambda g: attend(g, 6, 3, 130)
NODES["attention_rows"] = lambda g: attend(g, 4, 2, 70, causal(70, 70, 30), rows=70)
NODES["attention_wide"] = lambda g: attend(g, 10, 2, 130, random_mask(1, 130), wide=150)
NODES["attention_mask"] = lambda g: attend(g, 4, 2, 130, random_mask(1, 130))
NODES["attention_masks"] = lambda g: attend(g, 4, 2, 130, random_mask(1, 4, 1, 130))


COLUMNS = "linear_columns_numba"  # takes others: weights whose columns lie side by side


def of_numba(site: Site, name: str | None = None) -> Kernel | None:
    found = [kernel for kernel in candidates(site) if kernel.name.endswith("_numba")]
    named = (one for one in found if one.name == name or (name is None and one.name != COLUMNS))
    return next(named, None)


def placed(
    node: Node,
    leaves: dict[str, Array],
    box: Box,
    memory: Memory,
    seed: int,
    name: str | None = None,
) -> tuple[Site, Kernel]:
    """A site in random layouts that the numba kernel takes."""
    values = [evaluate(parent, leaves) for parent in node.inputs]
    for attempt in range(100):
        site = make_site(node, box, values, memory, np.random.default_rng((seed, attempt)))
        kernel = of_numba(site, name)
        if kernel is not None:
            return site, kernel
    raise AssertionError(f"{node.op} at {box}: no layout suits numba")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NODES)
def test_numba_agrees_with_float64_and_with_torch(name: str, seed: int) -> None:
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(seed), "normal")
    memory, box = Memory(), Box.full(node.shape)
    site, kernel = placed(node, leaves, box, memory, seed)
    expected = evaluate(node, leaves)
    tolerance = TOLERANCE[node.dtype]
    scale = np.abs(expected).max()
    for other in candidates(site):
        loose = 1 if other is kernel else 4
        found = run(other, site, memory)
        limit = tolerance * loose
        np.testing.assert_allclose(found, expected, limit, limit * scale, err_msg=other.name)


@pytest.mark.parametrize("name", NODES)
def test_nothing_is_compiled_after_binding(name: str) -> None:
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    memory = Memory()
    site, kernel = placed(node, leaves, Box.full(node.shape), memory, 0)
    function, arguments = kernel.bind(site, scratch_views(kernel, site, memory))
    before = list(function.function.signatures)
    function(*memory.bound(arguments))
    assert function.function.signatures == before
    hosts = [a for a in arguments if isinstance(a, Host)]
    assert all(memory.argument(a, ()).flags.c_contiguous for a in hosts)


@pytest.mark.parametrize("name", [n for n in NODES if not n.startswith(("gather", "relu"))])
def test_nan_goes_in_and_comes_out(name: str) -> None:
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    spoilt = "y" if "y" in leaves else "v" if "v" in leaves else "x"
    leaves[spoilt].reshape(-1)[0] = np.nan
    memory = Memory()
    site, kernel = placed(node, leaves, Box.full(node.shape), memory, 0)
    with np.errstate(invalid="ignore"):
        expected = evaluate(node, leaves)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.isnan(run(kernel, site, memory)), np.isnan(expected))


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_few_rows_are_modelled_faster_here_than_by_mm(rows: int) -> None:
    node = linear(GraphBuilder(), rows, 500, 4096, bias=True)
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    site, kernel = placed(node, leaves, Box.full(node.shape), Memory(), 0)
    others = [k for k in candidates(site) if k.name.startswith(("linear_row", "linear_columns"))]
    assert len(others) >= 2
    assert all(kernel.cost_ns(site) < other.cost_ns(site) for other in others)


# --- slices have the bits of the whole -----------------------------------------------------------


def bits(
    node: Node, leaves: dict[str, Array], box: Box, seed: int, name: str | None = None
) -> Array:
    memory = Memory()
    site, kernel = placed(node, leaves, box, memory, seed, name)
    return run(kernel, site, memory)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (3, 67, 6), (9, 1100, 75)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_whose_columns_lie_side_by_side(
    rows: int, columns: int, depth: int, dtype: str, bias: bool
) -> None:
    """A sum has the same bits whichever rows and columns are computed with it."""
    node = linear(GraphBuilder(), rows, columns, depth, bias, dtype)
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    whole = bits(node, leaves, Box.full(node.shape), 0, COLUMNS)
    expected, tolerance = evaluate(node, leaves), 4 * TOLERANCE[dtype]
    np.testing.assert_allclose(whole, expected, tolerance, tolerance * np.abs(expected).max())
    half = max(columns // 2, 1)
    for row in range(rows):
        part = bits(node, leaves, Box([(row, row + 1), (0, half)]), row, COLUMNS)
        np.testing.assert_array_equal(part[0], whole[row, :half])


ROWWISE = (
    "linear_7", "linear_many", "linear_bias", "gated_gelu_tanh", "rms_norm_float32",
    "layer_norm_float32", "softmax", "gelu", "gelu_tanh", "silu", "add_float32",
)  # fmt: skip


@pytest.mark.parametrize("name", ROWWISE)
def test_a_row_alone_has_the_same_bits(name: str) -> None:
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    whole = bits(node, leaves, Box.full(node.shape), 0)
    for row in range(node.shape[0]):
        alone = bits(node, leaves, Box([(row, row + 1), (0, node.shape[1])]), row + 1)
        np.testing.assert_array_equal(alone[0], whole[row])


@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 31, 100, 127, 128, 131, 159, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int8"])
def test_a_sum_has_the_same_bits_in_any_company(dtype: str, k: int) -> None:
    """Of rows of x, and of rows of w: those that lanes do not fill, too, and nothing behind them.

    float64 tells what the sums are; beyond the end of w there is a NaN, or what is largest.
    """
    rng, many, n = np.random.default_rng(k), 7, 11
    kind = np.dtype("float64" if dtype == "float64" else "float32")
    stored = np.dtype(str(loops.scalar(dtype)))
    x = rng.standard_normal((many, k)).astype(kind)
    if dtype == "float16":
        exact = rng.standard_normal((n, k)).astype(np.float16)
    elif dtype == "int8":
        exact = rng.integers(-128, 128, (n, k)).astype(np.int8)
    else:
        exact = rng.standard_normal((n, k)).astype(kind)
    w = exact.view(stored) if dtype != "bfloat16" else exact
    if dtype == "bfloat16":
        w = (exact.view(np.uint32) >> 16).astype(np.uint16)
        exact = (w.astype(np.uint32) << 16).view(np.float32)
    behind = {"bfloat16": 0x7FC0, "float16": 0x7E00, "int8": 127}.get(dtype, np.nan)
    w = np.concatenate([w.reshape(-1), np.full(16, behind, stored)])

    def found(rows: slice, columns: slice) -> Array:
        taken = x[rows]
        y = np.full((len(taken), columns.stop - columns.start), np.nan, kind)
        part = w[columns.start * k :]
        loops.linear(taken.reshape(-1), k, part, k, y.reshape(-1), y.shape[1], *y.shape, k, 0)
        return y

    whole = found(slice(0, many), slice(0, n))
    expected = x.astype(np.float64) @ exact.astype(np.float64).T
    scale = np.abs(x.astype(np.float64)) @ np.abs(exact.astype(np.float64)).T
    assert (np.abs(whole - expected) <= TOLERANCE[kind.name] * scale).all()
    for first in range(many):
        for last in range(first + 1, many + 1):
            for columns in (slice(0, n), slice(n - 1, n), slice(2, 4), slice(1, 8)):
                part = found(slice(first, last), columns)
                np.testing.assert_array_equal(part, whole[first:last, columns])


@pytest.mark.parametrize("start", [0, 1, 6])
@pytest.mark.parametrize("stop", [7, 9, 66, 67])
def test_columns_alone_have_the_same_bits(start: int, stop: int) -> None:
    node = NODES["linear_bias"](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    whole = bits(node, leaves, Box.full(node.shape), 0)
    part = bits(node, leaves, Box([(0, 5), (start, stop)]), 1)
    np.testing.assert_array_equal(part, whole[:, start:stop])


@pytest.mark.parametrize("window", [150, 99, 5])
def test_a_query_row_alone_has_the_same_bits(window: int) -> None:
    """Though it reads fewer keys: those that only other rows see add nothing to a sum."""
    node = attend(GraphBuilder(), 4, 2, 150, causal(150, 150, window), rows=150)
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    whole = bits(node, leaves, Box.full(node.shape), 0)
    for row in (0, 1, 2, 3, 62, 63, 64, 100, 149):
        box = Box([(0, 1), (0, 4), (row, row + 1), (0, 12)])
        keys = RULES.reads(node.call, box)[1]
        assert keys is not None
        assert keys[2] == (max(0, row + 1 - window), row + 1)
        np.testing.assert_array_equal(bits(node, leaves, box, 1)[0, :, 0], whole[0, :, row])


@pytest.mark.parametrize("name", ["conv_image", "conv_over"])
def test_a_window_alone_has_the_same_bits(name: str) -> None:
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    whole = bits(node, leaves, Box.full(node.shape), 0)
    for place in np.ndindex(node.shape[0], *node.shape[2:]):
        spatial = [(at, at + 1) for at in place[1:]]
        box = Box([(place[0], place[0] + 1), (0, node.shape[1]), *spatial])
        alone = bits(node, leaves, box, 1 + sum(place))
        np.testing.assert_array_equal(alone, whole[box.slices()])


# --- extremes ------------------------------------------------------------------------------------


def test_exp_and_erf_are_right_to_two_units() -> None:
    values = np.concatenate([np.linspace(-87.2, 88.3, 20_001), np.logspace(-20, 0, 100)])
    for name, factor in (("exp", 1.0), ("erf", 0.05)):
        function = getattr(loops, f"{name}32")
        line = (values * factor).astype(np.float32)
        expected = OPS[name].reference({}, line.astype(np.float64))
        found = np.array([function(value) for value in line])
        unit = np.spacing(np.abs(expected).astype(np.float32))
        assert (np.abs(found - expected) <= 2 * unit).all()
    for function in (loops.exp32, loops.erf32):
        assert np.isnan(function(np.float32(np.nan)))
    assert loops.exp32(np.float32(-np.inf)) == 0
    assert loops.exp32(np.float32(np.inf)) == np.inf
    assert loops.erf32(np.float32(-np.inf)) == -1


def test_softmax_of_infinities() -> None:
    row = np.array([[-np.inf, 1.0, -np.inf, 3e38, -3e38, 3e38]], np.float32)
    node = ops.softmax(x(GraphBuilder(), 1, 6))
    found = bits(node, {"x": row}, Box.full(node.shape), 0)
    np.testing.assert_array_equal(found, [[0, 0, 0, 0.5, 0, 0.5]])


def test_gather_refuses_an_index_outside() -> None:
    node = NODES["gather"](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    leaves["index"] = np.where(leaves["index"] == leaves["index"].max(), 4, leaves["index"])
    memory = Memory()
    values = [leaves["w"].astype(np.float64), np.zeros_like(leaves["index"])]
    for seed in range(100):
        site = make_site(node, Box.full(node.shape), values, memory, np.random.default_rng(seed))
        kernel = of_numba(site)
        if kernel is not None:
            break
    assert kernel is not None
    memory.tensor(site.operand(1)).numpy()[...] = leaves["index"]
    function, arguments = kernel.bind(site, ())
    with pytest.raises(IndexError, match="outside the table"):
        function(*memory.bound(arguments))


@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (6, 2), (3, 1), (10, 2)])
@pytest.mark.parametrize(("start", "keys"), [(0, 1), (0, 130), (67, 45)])
@pytest.mark.parametrize("depth", [24, 77, 128])
@pytest.mark.parametrize("masked", [False, True])
def test_all_heads_together_have_the_bits_of_one_after_another(
    heads: int, shared: int, start: int, keys: int, depth: int, masked: bool
) -> None:
    """Where queries, keys and values of a row lie side by side, as one product leaves them."""
    row = (heads + 2 * shared) * depth
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal(keys * row).astype(np.float32)
    q, k, v = qkv[(keys - 1) * row :], qkv[heads * depth :], qkv[(heads + shared) * depth :]
    mask = rng.random(keys) < 0.8
    mask[0], found = True, []
    for together in (0, 1):
        score = np.full(heads * (keys + 2 * loops.PAD), np.nan, np.float32)
        y = np.full(heads * depth, np.nan, np.float32)
        loops.attention(
            q, 0, depth, row, k, 0, depth, row, v, 0, depth, row,
            mask if masked else loops.NO_MASK, 0, 0, 0, 1 if masked else -1, y, 0, depth, 0, score,
            1, heads, shared, 1, start, keys, depth, depth, 0, together, depth**-0.5,
        )  # fmt: skip
        found.append(y)
    np.testing.assert_array_equal(*found)
    parts = qkv.reshape(keys, heads + 2 * shared, depth).astype(float)
    for head in range(heads):
        there = head * shared // heads
        scores = parts[:, heads + there] @ parts[-1, head] * depth**-0.5
        weights = np.exp(scores - scores.max()) * (mask if masked else 1)
        right = weights @ parts[:, heads + shared + there] / weights.sum()
        np.testing.assert_allclose(found[1][head * depth :][:depth], right, 1e-4, 1e-5)
