"""Products and convolutions over panels: exact, the same bits wherever, and nothing else written.

`test_kernels` puts these kernels, like all others, through small boxes that lie in odd ways. Here
sizes are around those of blocks and panels, and operands lie with gaps, as windows of images do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tgbench as tg
from tgbench.kernels.numba import panels
from tgbench.kernels.registry import KERNELS

blocks = pytest.importorskip("tgbench.kernels.numba.blocks", reason="numba is not installed")
windows = pytest.importorskip("tgbench.kernels.numba.windows")
attending = pytest.importorskip("tgbench.kernels.numba.attending")
recurring = pytest.importorskip("tgbench.kernels.numba.steps")

Floats = NDArray[np.float32]
FUNCTIONS = {
    -1: lambda x: x,
    windows.ACTIVATIONS["relu"]: torch.relu,
    windows.ACTIVATIONS["silu"]: torch.nn.functional.silu,
    windows.ACTIVATIONS["gelu"]: torch.nn.functional.gelu,
    windows.ACTIVATIONS["hardswish"]: torch.nn.functional.hardswish,
    windows.ACTIVATIONS["hardsigmoid"]: torch.nn.functional.hardsigmoid,
}
ALL = -np.inf, np.inf
BOUNDS = ALL, (0.0, np.inf), (-4.0, 6.0)
POISON = np.float32(1e30)


def whole_numbers(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.integers(-3, 4, shape).astype(np.float32)


def apart(image: Floats, gap: int) -> Floats:
    """The same numbers, lines and images of them further apart, poison in between."""
    count, lines, points, channels = image.shape
    room = np.full((count + 1, lines + gap, points + gap, channels + gap), POISON)
    seen = room[:count, :lines, :points, :channels]
    seen[...] = image
    return seen


@dataclass
class Case:
    """A convolution of images [count, lines, points, channels]."""

    x: Floats
    w: Floats
    gate: Floats | None = None
    bias: Floats | None = None
    more: Floats | None = None
    function: int = -1
    bounds: tuple[float, float] = ALL
    stride: tuple[int, int] = (1, 1)
    gaps: tuple[int, int] = (1, 1)
    low: tuple[int, int] = (0, 0)
    sizes: tuple[int, int] = (1, 1)  # of the result
    gap: int = 0
    turned: bool = False  # whether channels of x are planes
    threads: int = 1
    group: int = windows.MOST_ROWS
    held: str = "float32"  # what weights of one element are in

    def compute(self) -> Floats:
        x, count, columns = apart(self.x, self.gap), len(self.x), len(self.w)
        if self.turned:
            x = apart(self.x.transpose(0, 1, 3, 2), self.gap).transpose(0, 1, 3, 2)
        copied = np.full(x.size if self.turned else 0, POISON)
        out = apart(np.full((count, *self.sizes, columns), np.nan, np.float32), self.gap)
        more = out if self.more is None else apart(self.more, self.gap)
        strides = [one.strides[axis] // 4 for one in (x, out, more) for axis in range(3)]
        strides.insert(3, x.strides[3] // 4)
        taps = int(np.prod(self.w.shape[2:]))
        gated = self.gate is not None
        w, held, apart_bytes = blocks.laid_out(self.w), blocks.LAID_OUT, 0
        if self.held != "float32":
            rows = torch.from_numpy(self.w).reshape(columns, -1).to(getattr(torch, self.held))
            bits = {"bfloat16": torch.uint16, "float16": torch.int16, "int8": torch.int8}[self.held]
            w, held = rows.view(bits).numpy().reshape(-1), blocks.HELD_AS[self.held]
            apart_bytes = rows.stride(0) * rows.element_size()
        widened = 0 if held == blocks.LAID_OUT else x.shape[3]
        room = windows.room_of(self.group, taps, columns, gated, widened)
        words = windows.JOB + self.threads * room
        memory = np.full(words + 16, -7, np.int64)
        kinds = zip(self.w.shape[2:], self.stride, self.gaps, self.low, strict=True)
        pairs = [n for kind in zip(*kinds, strict=True) for n in kind]
        none = windows.NONE
        windows.multiply(
            memory[:words], flat(x), copied, w,
            none if self.gate is None else blocks.laid_out(self.gate),
            none if self.bias is None else self.bias, flat(out),
            none if self.more is None else flat(more), blocks.ZEROS, *strides, *x.shape[1:3], count,
            *self.sizes, *pairs, x.shape[3], columns, self.function, *self.bounds, held,
            apart_bytes, windows.widening() if widened else 0, self.group, self.threads, room,
            *blocks.runtime_addresses(), *windows.computing(),
        )  # fmt: skip
        assert (memory[words:] == -7).all()
        around = np.array(out.base).reshape(count + 1, *(n + self.gap for n in out.shape[1:]))
        around[:count, : self.sizes[0], : self.sizes[1], :columns] = POISON
        assert (around == POISON).all() or self.gap == 0
        return np.array(out)

    def expected(self, dtype: torch.dtype = torch.float64) -> NDArray[Any]:
        """By PyTorch, of the whole image and cut to what was asked for."""
        found = self._sums(self.w, dtype)
        if self.bias is not None:
            found = found + torch.from_numpy(self.bias).to(dtype)
        if self.more is not None:
            found = found + torch.from_numpy(self.more).to(dtype)
        if self.gate is not None:
            found = found * FUNCTIONS[self.function](self._sums(self.gate, dtype))
        else:
            found = FUNCTIONS[self.function](found).clamp(*self.bounds)
        return np.asarray(found.numpy())

    def _sums(self, w: Floats, dtype: torch.dtype) -> torch.Tensor:
        x = torch.from_numpy(self.x).to(dtype).permute(0, 3, 1, 2)
        reach = [(k - 1) * g + 1 for k, g in zip(w.shape[2:], self.gaps, strict=True)]
        pads = []
        for axis in (1, 0):
            want = (self.sizes[axis] - 1) * self.stride[axis] + reach[axis]
            low = self.low[axis]
            pads += [low, max(0, want - low - x.shape[2 + axis])]
        found = torch.nn.functional.conv2d(
            torch.nn.functional.pad(x, pads), torch.from_numpy(w).to(dtype), None, self.stride,
            dilation=self.gaps,
        )  # fmt: skip
        return found[:, :, : self.sizes[0], : self.sizes[1]].permute(0, 2, 3, 1)


def flat(seen: NDArray[Any]) -> NDArray[Any]:
    """From its first element on, as a kernel is given it."""
    whole = seen
    while whole.base is not None:
        whole = np.asarray(whole.base)
    whole = whole.ravel("K")
    behind = seen.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return whole[behind // whole.itemsize :]


# of a vector, of two, and of parts of them, also behind a whole panel
WIDTHS = sorted(
    {
        1, blocks.LANES - 3, blocks.LANES, blocks.NARROW * blocks.LANES, 40, blocks.PANEL - 1,
        blocks.PANEL, blocks.PANEL + 3, blocks.PANEL + blocks.LANES, 2 * blocks.PANEL - 5,
    }
)  # fmt: skip


BEYOND = blocks.PART_BYTES // (4 * blocks.LANES) + 3  # terms: more than are computed at once


@st.composite
def cases(draw: Any) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def pick(low: int, high: int) -> int:
        return int(draw(st.integers(low, high)))

    count, lines, points, depth = pick(1, 2), pick(1, 7), pick(1, 15), pick(1, 19)
    columns = draw(st.sampled_from(WIDTHS))
    window = pick(1, 3), pick(1, 3)
    has = [draw(st.booleans()) for _ in range(2)]
    sizes = pick(1, 6), pick(1, 15)
    return Case(
        whole_numbers(rng, count, lines, points, depth),
        whole_numbers(rng, columns, depth, *window),
        None,
        whole_numbers(rng, columns) if has[0] else None,
        whole_numbers(rng, count, *sizes, columns) if has[1] else None,
        -1,
        draw(st.sampled_from(BOUNDS)),
        (pick(1, 2), pick(1, 2)),
        (pick(1, 2), pick(1, 2)),
        (pick(-1, 2), pick(-1, 2)),
        sizes,
        pick(0, 2),
        draw(st.booleans()),
        pick(1, 3),
        draw(st.sampled_from([1, 5, 6, windows.MOST_ROWS])),
    )


@given(cases())
def test_whole_numbers_are_exact(case: Case) -> None:
    """Any window, stride, dilation and border, of images that lie anywhere, by several threads."""
    if min(case.low) < 0:  # windows that begin behind the first line or point
        down, right = (max(0, -low) for low in case.low)
        seen = replace(case, x=case.x[:, down:, right:], low=tuple(max(0, n) for n in case.low))
        if not seen.x.size:
            return
        expected = seen.expected()
    else:
        expected = case.expected()
    np.testing.assert_array_equal(case.compute(), expected)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, windows.MOST_ROWS, 2 * windows.MOST_ROWS + 1])
@pytest.mark.parametrize("columns", [blocks.PANEL, 3 * blocks.PANEL + 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_any_number(rows: int, columns: int, threads: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = whole_numbers(rng, 1, 1, rows, 300), whole_numbers(rng, columns, 300, 1, 1)
    case = Case(x, w, bias=whole_numbers(rng, columns), sizes=(1, rows), threads=threads)
    np.testing.assert_array_equal(case.compute(), case.expected())


@pytest.mark.parametrize("columns", [blocks.LANES + 1, blocks.PANEL])
@pytest.mark.parametrize(("depth", "side"), [(BEYOND, 1), (BEYOND, 3), (BEYOND // 4, 3)])
def test_panels_that_a_cache_does_not_hold(depth: int, side: int, columns: int) -> None:
    """Sums go on part after part, of a tap or of several: with a bias and what is added once, and
    between bounds of the whole alone.
    """
    wide = blocks.LANES * blocks.across_of(columns)
    assert 4 * wide * depth * side**2 > blocks.PART_BYTES
    rng = np.random.default_rng(depth)
    case = Case(
        whole_numbers(rng, 1, 5, 3, depth), whole_numbers(rng, columns, depth, side, side),
        bias=whole_numbers(rng, columns), more=whole_numbers(rng, 1, 5, 3, columns),
        bounds=(0.0, 60.0), low=(side // 2, side // 2), sizes=(5, 3),
    )  # fmt: skip
    found = case.compute()
    assert (found == 0).any()
    assert (found == 60).any()
    np.testing.assert_array_equal(found, case.expected())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("columns", [blocks.PANEL, 2 * blocks.PANEL + 7])
def test_functions_and_gates(function: int, gated: bool, columns: int) -> None:
    if gated and function < 0:
        return
    rng = np.random.default_rng(0)
    x, w, gate = (
        rng.normal(0, 0.3, shape).astype(np.float32)
        for shape in ((1, 1, 17, 64), (columns, 64, 1, 1), (columns, 64, 1, 1))
    )
    case = Case(x, w, gate if gated else None, function=function, sizes=(1, 17))
    np.testing.assert_allclose(case.compute(), case.expected(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("depth", [64, 3072])
def test_what_is_far_larger_than_a_sum_is_added_to_all_of_it(depth: int) -> None:
    """Rounded once a part: sums that begin with it lose digits with every term."""
    rng, rows, columns = np.random.default_rng(0), 6, 2 * blocks.PANEL
    x = rng.standard_normal((1, 1, rows, depth), np.float32)
    w = rng.standard_normal((columns, depth, 1, 1), np.float32) / np.float32(depth)
    more = np.full((1, 1, rows, columns), 100.0, np.float32)
    bias = np.full(columns, 100.0, np.float32)
    exact = x[0, 0].astype(np.float64) @ w[:, :, 0, 0].T.astype(np.float64) + 200.0
    found = Case(x, w, bias=bias, more=more, sizes=(1, rows)).compute()[0, 0]
    assert np.abs(found - exact).max() < 3 * np.spacing(np.float32(200.0))


@pytest.mark.parametrize("held", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("columns", [blocks.PANEL, 2 * blocks.PANEL + 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_in_less_are_widened(held: str, columns: int, threads: int) -> None:
    """Whole numbers of less than a byte are exact in all of them; their depth is no multiple of
    what is widened together.
    """
    rng, depth, rows = np.random.default_rng(3), 9 * blocks.SIDE + 3, 250
    x = whole_numbers(rng, 1, 1, rows, depth)
    w = rng.integers(-127, 128, (columns, depth, 1, 1)).astype(np.float32)
    case = Case(x, w, bias=whole_numbers(rng, columns), sizes=(1, rows), threads=threads, held=held)
    assert rows * depth * columns > blocks.SHARED or threads == 1 or columns == blocks.PANEL
    np.testing.assert_array_equal(case.compute(), case.expected())


@settings(max_examples=30)
@given(st.data())
def test_bits_do_not_depend_on_what_stands_beside(data: st.DataObject) -> None:
    """Any rows of a product, computed alone, in groups of any size or by threads."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    count, columns, depth = 40, data.draw(st.sampled_from([32, 50])), 701
    assert count * columns * depth > blocks.SHARED
    x = rng.normal(size=(1, 1, count, depth)).astype(np.float32)
    w = rng.normal(size=(columns, depth, 1, 1)).astype(np.float32)
    whole = Case(x, w, function=windows.ACTIVATIONS["gelu"], sizes=(1, count), threads=2).compute()
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    part = Case(
        x[:, :, first:last], w, function=windows.ACTIVATIONS["gelu"], sizes=(1, last - first),
        group=data.draw(st.sampled_from([1, 4, 12])),
    )  # fmt: skip
    np.testing.assert_array_equal(part.compute(), whole[:, :, first:last])


def test_numbers_that_are_none_stay_so() -> None:
    """NaN and infinities pass a sum and a rectifier; of a row beside them nothing is changed."""
    x = np.ones((1, 1, 3, 8), np.float32)
    x[0, 0, 0, 3], x[0, 0, 1, 2] = np.nan, np.inf
    w = np.ones((blocks.PANEL, 8, 1, 1), np.float32)
    found = Case(x, w, bounds=(0.0, np.inf), sizes=(1, 3)).compute()[0, 0]
    assert np.isnan(found[0]).all()
    assert np.isposinf(found[1]).all()
    assert (found[2] == 8).all()


@pytest.mark.parametrize("more", [2, blocks.NARROW * blocks.LANES, blocks.PANEL])
def test_weights_are_laid_out_in_panels(more: int) -> None:
    """The last one is no wider than what is computed of it."""
    rng = np.random.default_rng(0)
    w = whole_numbers(rng, blocks.PANEL + more, 3, 2, 2)
    first, last = np.split(blocks.laid_out(w), [12 * blocks.PANEL])
    for column in range(blocks.PANEL + more):
        panel = first if column < blocks.PANEL else last
        found = panel.reshape(2, 2, 3, -1)[..., column % blocks.PANEL]
        np.testing.assert_array_equal(found.transpose(2, 0, 1), w[column])
    assert last.size == 12 * blocks.LANES * -(-more // blocks.LANES)
    assert not last.reshape(12, -1)[:, more:].any()


def test_rows_whose_number_moves_find_room_in_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned for are all rows, of which a group of blocks has fewer than it may have."""
    rows, others = 40, {one.name: one for one in (*KERNELS["linear"], *panels.PANELS)}
    assert rows < windows.MOST_ROWS
    quick, slow = others["linear_panels"], others["linear_rows"]
    kernels = [replace(quick, cost_ns=lambda site: 1.0), replace(slow, cost_ns=lambda site: 1e9)]
    monkeypatch.setitem(KERNELS, "linear", kernels)
    g, w = tg.GraphBuilder(), np.eye(4 * blocks.PANEL, dtype=np.float32)
    weight = g.parameter("w", w.shape)
    total = tg.ops.cumsum(g.input("x", (rows, len(w))), axis=0)
    g.output("y", tg.ops.linear(tg.ops.linear(total, weight), weight))
    x = np.zeros((rows, len(w)), np.float32)
    session = tg.GraphSession(g.build(), {"w": w}, calibrate=False, making="always")
    session.run({"x": x})
    for first in (10, 30, 21):
        x = x.copy()
        x[first] = first
        found = session.run({"x": x})["y"]
        np.testing.assert_array_equal(found, np.cumsum(x, axis=0))
    moving = [
        made
        for _, _, program in session.programs
        for made in program.instructions
        if made.node.op == "linear" and made.box.moves
    ]
    assert moving
    assert {made.kernel for made in moving} == {"linear_panels"}


# --- attention -----------------------------------------------------------------------------------


@dataclass
class Attention:
    """Rows [batch, heads, rows, depth] over keys and values of shared heads."""

    q: Floats
    k: Floats
    v: Floats
    mask: NDArray[Any] | None = None  # of booleans, or added
    start: int = 0
    threads: int = 1

    @staticmethod
    def of(
        rng: np.random.Generator, batch: int, heads: int, shared: int, rows: int, keys: int,
        depth: int, wide: int,
    ) -> Attention:  # fmt: skip
        """Rows lie as layers write them: those of heads side by side."""
        shapes = (rows, heads, depth), (keys, shared, depth), (keys, shared, wide)
        q, k, v = (rng.normal(size=(batch, *shape)).astype(np.float32) for shape in shapes)
        return Attention(*(one.transpose(0, 2, 1, 3) for one in (q, k, v)))

    def compute(self) -> Floats:
        (batch, heads, rows, depth), (_, shared, keys, wide) = self.q.shape, self.v.shape
        out = np.full((batch, rows, heads, wide), np.nan, np.float32).transpose(0, 2, 1, 3)
        room = attending.room_of(keys, depth, wide)
        words = attending.JOB + 1 + self.threads * room
        memory = np.full(words + 16, -7, np.int64)
        places = [one for x in (self.q, self.k, self.v) for one in (flat(x), *steps(x)[:3])]
        mask: list[Any] = [attending.NO_MASK, 0, 0, 0, -1]
        if self.mask is not None:
            seen = np.broadcast_to(self.mask, (batch, heads, rows, keys))
            mask = [flat(self.mask), *steps(seen)]
        attending.attend(
            memory[:words], *places, *mask, flat(out), *steps(out)[:3], blocks.ZEROS, batch, heads,
            shared, rows, self.start, keys, depth, wide, float(depth**-0.5), self.threads, room,
            *blocks.runtime_addresses(), *attending.computing(),
        )  # fmt: skip
        assert (memory[words:] == -7).all()
        return np.array(out)

    def expected(self) -> NDArray[Any]:
        q, k, v = (torch.from_numpy(one).double() for one in (self.q, self.k, self.v))
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
        mask = None if self.mask is None else torch.from_numpy(self.mask)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.double()
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return np.asarray(found.numpy())


def steps(x: NDArray[Any]) -> list[int]:
    return [step // x.itemsize for step in x.strides]


@given(st.data())
def test_attention_is_pytorchs(data: st.DataObject) -> None:
    """Any sizes, heads that share keys or not, any mask that leaves each row a key."""

    def pick(low: int, high: int) -> int:
        return int(data.draw(st.integers(low, high)))

    rng = np.random.default_rng(pick(0, 2**32 - 1))
    shared, group, rows, keys = pick(1, 3), pick(1, 3), pick(1, 60), pick(1, 90)
    sizes = pick(1, 2), shared * group, shared, rows, keys, pick(1, 40), pick(1, 40)
    case = Attention.of(rng, *sizes)
    kind = data.draw(st.sampled_from(["none", "causal", "sparse", "by head", "added", "turned"]))
    if kind != "none":
        shape = (sizes[1], rows, keys) if kind == "by head" else (rows, keys)
        is_open = rng.random(shape) < 0.3
        if kind == "causal":
            is_open = np.tril(np.ones((rows, keys), bool), keys - rows)
        is_open[..., rng.integers(keys)] = True
        case.mask = is_open
        if kind in ("added", "turned"):
            bias = np.where(is_open, rng.normal(size=shape), -np.inf).astype(np.float32)
            case.mask = np.asfortranarray(bias) if kind == "turned" else bias
    case.start, case.threads = pick(0, 100), pick(1, 3)
    np.testing.assert_allclose(case.compute(), case.expected(), rtol=1e-4, atol=2e-6)


@given(st.integers(0, 1000), st.integers(1, 59), st.integers(1, 59))
def test_bits_of_attention_do_not_depend_on_what_is_asked(seed: int, first: int, row: int) -> None:
    """Some rows alone, and of a window the keys alone that it has, as of all."""
    rng, keys = np.random.default_rng(seed), 150
    case = Attention.of(rng, 1, 2, 2, 60, keys, 32, 20)
    there = np.arange(keys)
    case.mask = (there >= first) & (there <= first + np.arange(60)[:, None])
    whole = case.compute()
    last = first + row + 1
    part = Attention(
        case.q[:, :, :row], case.k[:, :, first:last], case.v[:, :, first:last],
        np.ascontiguousarray(case.mask[:row, first:last]), first,
    )  # fmt: skip
    np.testing.assert_array_equal(part.compute(), whole[:, :, :row])


def test_a_row_that_nothing_is_open_to_is_none() -> None:
    case = Attention.of(np.random.default_rng(0), 1, 1, 1, 9, 20, 8, 8)
    case.mask = np.ones((9, 20), bool)
    case.mask[4] = False
    found = case.compute()[0, 0]
    assert np.isnan(found[4]).all()
    assert np.isfinite(np.delete(found, 4, 0)).all()


# --- recurrent steps -----------------------------------------------------------------------------

CELLS = {"lstm": (4, 2), "gru": (3, 1), "rnn": (1, 1)}  # gates and states of a unit
LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}


def layer_of(cell: str, units: int, activation: str = "tanh") -> torch.nn.Module:
    torch.manual_seed(0)
    more = {"nonlinearity": activation} if cell == "rnn" else {}
    layer = LAYERS[cell](7, units, batch_first=True, **more).eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(0.5)
    return layer


@pytest.mark.parametrize("samples", [1, 5, 6, 13, 32])
@pytest.mark.parametrize(
    ("cell", "activation"), [("lstm", "tanh"), ("gru", "tanh"), ("rnn", "tanh"), ("rnn", "relu")]
)
def test_recurrent_steps_by_panels(
    cell: str, activation: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside PyTorch, whole and from a changed step on."""
    (quick,) = (kernel for kernel in KERNELS[cell] if kernel.name == f"{cell}_panels")
    monkeypatch.setitem(KERNELS, cell, [quick])
    layer = layer_of(cell, blocks.PANEL, activation)
    x = torch.randn(samples, 9, 7)
    session = tg.GraphSession(tg.from_torch(layer, (x,)), calibrate=False, making="always")
    for step in (0, 4, 8, 0):
        x[samples // 2, step] = torch.randn(7)
        found = next(iter(session.run(x).values()))
        torch.testing.assert_close(found, layer(x)[0], atol=1e-6, rtol=1e-5)
    made = {one.kernel for _, _, program in session.programs for one in program.instructions}
    assert f"{cell}_panels" in made


@pytest.mark.parametrize("samples", [1, 5, 6, 13])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_steps_write_nothing_else(cell: str, samples: int) -> None:
    """Steps and samples lie apart, poison in between; whole numbers, whose sums are exact."""
    gates, states = CELLS[cell]
    steps, n, rng = 3, blocks.PANEL, np.random.default_rng(0)
    x = apart(whole_numbers(rng, 1, steps, samples, gates * n), 5)[0]
    y = apart(np.full((1, steps, samples, states * n), np.nan, np.float32), 5)[0]
    w, bias = whole_numbers(rng, gates * n, n) / 8, whole_numbers(rng, gates * n)
    state, room = np.zeros((samples, states * n), np.float32), recurring.room_of(samples)
    made = np.full(samples * gates * n + 16, POISON)
    words = np.full(room + 16, -7, np.int64)
    more = [windows.ACTIVATIONS["relu"]] if cell == "rnn" else []
    getattr(recurring, f"{cell}_by_panels")(
        flat(x), x.strides[0] // 4, x.strides[1] // 4, blocks.laid_out(w), bias, flat(state),
        states * n, flat(y), y.strides[0] // 4, y.strides[1] // 4, made[:-16], words[:room],
        steps, samples, n, blocks.address_of_blocks(), *more,
    )  # fmt: skip
    assert (made[-16:] == POISON).all()
    assert (words[room:] == -7).all()
    assert np.isfinite(y).all()
    alone = np.full_like(np.array(y), np.nan)
    getattr(recurring, cell)(
        flat(x), x.strides[0] // 4, x.strides[1] // 4, flat(w), n, bias, flat(state), states * n,
        flat(alone), alone.strides[0] // 4, alone.strides[1] // 4, made[:-16], steps, samples, n,
        *more,
    )  # fmt: skip
    np.testing.assert_allclose(y, alone, rtol=1e-5, atol=1e-6)
    around = np.array(y.base)
    around.reshape(2, steps + 5, samples + 5, -1)[0, :steps, :samples, : states * n] = POISON
    assert (around == POISON).all()
