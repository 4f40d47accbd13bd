"""oneDNN called directly: convolutions and products at whole sizes, threads, and no library.

`test_kernels` puts these kernels, like all others, through small boxes that lie in odd ways. Here
operands lie as sessions keep them, so that they are read and written where they are.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from library_cases import by_library, passes_with

from tgbench import ops
from tgbench.base import once
from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels import KERNELS, Kernel, Site
from tgbench.kernels.binding import bound
from tgbench.kernels.onednn import direct
from tgbench.kernels.onednn.library import (
    FEW_ROWS,
    MANY_ROWS,
    MOST_CODES,
    MOST_DESCRIPTIONS,
    MOST_LAYOUTS,
    MOST_ROWS,
    OFTEN,
    Computation,
    TensorForm,
    _compiled,
    _layout,
    compute,
    described,
    laid_out,
    library,
)
from tgbench.kernels.registry import View
from tgbench.kernels.views import dense, part
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession


@contextmanager
def putting_off() -> Iterator[None]:
    """As in a run for which any code will do."""
    once.SPENT.puts_off, once.SPENT.stretches = True, once.SPENT.stretches + 1
    yield
    once.SPENT.puts_off = False


pytestmark = [
    pytest.mark.skipif(library is None, reason="the extra `onednn` is not installed"),
    pytest.mark.usefixtures(by_library.__name__),
]
HIDDEN = """
import importlib.metadata, ctypes, sys
installed, load = importlib.metadata.files, ctypes.CDLL
def files(package):
    return () if package == "onednn-cpu-gomp" else installed(package)
def loaded(name, *rest, **named):
    if "dnnl" in str(name):
        raise OSError(name)
    return load(name, *rest, **named)
importlib.metadata.files, ctypes.CDLL = files, loaded
import pytest
raise SystemExit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider", "-k", sys.argv[2]]))
"""


def kernel(op: str, name: str) -> Kernel:
    return next(one for one in KERNELS[op] if one.name == name)


def laid(key: Any, shape: tuple[int, ...]) -> View:
    """As sessions keep it: images channels-last, weights and rows row-major."""
    if len(shape) < 4 or isinstance(key, str):
        view = dense(shape, "float32")
    else:
        batch, channels, *space = shape
        view = dense((batch, *space, channels), "float32").permute(0, 3, 1, 2)
    return View(key, view.dtype, view.shape, view.strides, 0)


def computed(node: Node, box: Box, arrays: list[np.ndarray], name: str) -> np.ndarray | None:
    """A box of a node by a kernel, of operands that lie whole in memory; None if it refuses."""
    reads = Rules().reads(node.call, box)
    if reads[0] is None:
        return None
    keys: list[Any] = [0, "w", "b"]
    wholes = [laid(key, array.shape) for key, array in zip(keys, arrays, strict=False)]
    views = [
        part(view, Box.full(view.shape), read or box)
        for view, read in zip(wholes, reads, strict=True)
    ]
    out = laid(9, node.shape)
    buffers: dict[tuple[Any, str], torch.Tensor] = {
        (9, "float32"): torch.full((int(np.prod(node.shape)),), 1e30)
    }
    for view, array in zip(wholes, arrays, strict=True):
        flat = torch.full((array.size,), 1e30)
        flat.as_strided(view.shape, view.strides).copy_(torch.from_numpy(array))
        buffers[view.buffer, "float32"] = flat
    target = part(out, Box.full(out.shape), box)
    site = Site(node.call, box, reads, target, tuple(views), "cpu", frozenset((1, 2)))
    if not kernel(node.op, name).takes(site):
        return None
    function, arguments = bound(kernel(node.op, name), site, buffers, "cpu")
    function(*arguments)
    result = buffers[9, "float32"].as_strided(out.shape, out.strides).numpy()
    there = np.zeros(out.shape, bool)
    there[box.slices()] = True
    assert (result[~there] == np.float32(1e30)).all()
    return result[box.slices()]


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


@given(st.data())
def test_convolutions_of_whole_numbers_are_exact(data: st.DataObject) -> None:
    """Any groups, strides, dilations and borders, of a whole image or a window of it; as wide as
    asked for, or wider, or in strips, as where the library has no code for that width.
    """
    draw = data.draw
    described_as, refuses = direct._described, draw(st.sampled_from(["", "as wide", "any"]))

    def refused(site: Site, of: Any, by: Any) -> Any:
        is_refused = refuses == "any" or (refuses and of.part is None)
        return None if is_refused else described_as(site, of, by)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "_described", refused)
        assert_exact(draw, refuses)


def assert_exact(draw: Any, refuses: str) -> None:

    def pick(low: int, high: int) -> int:
        return int(draw(st.integers(low, high)))

    rng, groups = np.random.default_rng(pick(0, 99)), draw(st.sampled_from([1, 1, 1, 2, 4]))
    inputs, outputs = groups * pick(1, 20), groups * pick(1, 20)
    size, stride = (pick(1, 4), pick(1, 4)), (pick(1, 3), pick(1, 3))
    dilation = (pick(1, 2), pick(1, 2))
    padding = tuple((pick(0, 2), pick(0, 2)) for _ in range(2))
    extent = tuple((n - 1) * d + pick(1, 9) for n, d in zip(size, dilation, strict=True))
    x = whole_numbers(rng, pick(1, 2), inputs, *extent)
    arrays = [x, whole_numbers(rng, outputs, inputs // groups, *size), whole_numbers(rng, outputs)]
    g = GraphBuilder()
    nodes = [g.input("x", x.shape), g.parameter("w", arrays[1].shape), g.parameter("b", (outputs,))]
    node = ops.conv(*nodes, stride=stride, padding=padding, dilation=dilation, groups=groups)
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    tensors = [torch.from_numpy(array) for array in (padded, *arrays[1:])]
    expected = torch.conv2d(*tensors, stride, 0, dilation, groups).numpy()
    rows, columns = (sorted((pick(0, n - 1), pick(1, n))) for n in node.shape[2:])
    cut = Box((*Box.full(node.shape[:2]), *(((a, max(b, a + 1))) for a, b in (rows, columns))))
    for box in (Box.full(node.shape), cut):
        for name in ("conv_direct", "conv_points_direct", "conv_strips_direct"):
            found = computed(node, box, arrays, name)
            if found is not None:
                assert refuses != "any" or name == "conv_strips_direct"
                assert refuses != "as wide" or name != "conv_points_direct"  # that is no window
                np.testing.assert_array_equal(found, expected[box.slices()])


@pytest.mark.parametrize("left", [0, 2, 8])
def test_a_window_is_computed_in_strips_where_there_is_no_code_for_its_width(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a border, with zeros around it, and inside."""
    monkeypatch.setattr(direct, "_described", lambda site, of, by: None)
    rng, g = np.random.default_rng(0), GraphBuilder()
    arrays = [whole_numbers(rng, *shape) for shape in ((2, 16, 12, 20), (24, 16, 3, 3), (24,))]
    x, weight = g.input("x", (2, 16, 12, 20)), g.parameter("w", (24, 16, 3, 3))
    node = ops.conv(x, weight, g.parameter("b", (24,)), padding=1)
    box = Box(((0, 2), (0, 24), (0, 12), (left, left + 12)))
    found = computed(node, box, arrays, "conv_strips_direct")
    expected = torch.conv2d(*map(torch.from_numpy, arrays), padding=1).numpy()
    np.testing.assert_array_equal(found, expected[box.slices()])


@pytest.mark.parametrize("rows", [2, 3, 17, 128])
@pytest.mark.parametrize("columns", [1, 5, 64, 200])
def test_products_of_whole_numbers_are_exact(rows: int, columns: int) -> None:
    rng, g = np.random.default_rng(0), GraphBuilder()
    arrays = [whole_numbers(rng, *shape) for shape in ((rows, 33), (columns, 33), (columns,))]
    nodes = [
        g.input("x", (rows, 33)),
        g.parameter("w", (columns, 33)),
        g.parameter("b", (columns,)),
    ]
    node = ops.linear(*nodes)
    for box in (Box.full(node.shape), Box(((0, 2), (0, columns)))):
        found = computed(node, box, arrays, "linear_direct")
        expected = arrays[0] @ arrays[1].T + arrays[2]
        np.testing.assert_array_equal(found, expected[box.slices()])


def test_threads_compute_at_once_with_the_same_code() -> None:
    rng, g = np.random.default_rng(0), GraphBuilder()
    node = ops.linear(g.input("x", (64, 256)), g.parameter("w", (256, 256)))
    weight = whole_numbers(rng, 256, 256)

    def right(seed: int) -> bool:
        x = whole_numbers(np.random.default_rng(seed), 64, 256)
        found = computed(node, Box.full(node.shape), [x, weight], "linear_direct")
        return bool((found == x @ weight.T).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(40)))


def test_what_the_library_would_do_slowly_is_no_candidate() -> None:
    turned = TensorForm((1, 64, 32, 32), (64 * 1024, 1024, 32, 1))
    last = TensorForm((1, 64, 32, 32), (64 * 1024, 1, 64 * 32, 64))
    window = ((1, 1), (0, 0), (1, 1), (1, 1))
    weights = TensorForm((64, 64, 3, 3))
    assert described(Computation(last, weights, None, last, None, window)) is not None
    assert described(Computation(turned, weights, None, last, None, window)) is None
    assert described(Computation(last, weights, None, turned, None, window)) is None
    assert (
        described(Computation(last, TensorForm((64, 63, 3, 3)), None, last, None, window)) is None
    )


def forget() -> None:
    """Everything that is remembered for whoever asks next."""
    for remembered in (_compiled, described, _layout):
        remembered.cache_clear()
    gc.collect()


def session(rows: int = 32) -> tuple[GraphSession, np.ndarray]:
    """One product of whole numbers by the library, and what it gives of ones."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    weight = whole_numbers(rng, 24, 40)
    g.output("y", ops.linear(g.input("x", (rows, 40)), g.parameter("w", (24, 40))))
    one = GraphSession(g.build(), {"w": weight}, calibrate=False)
    return one, np.ones((rows, 40), np.float32) @ weight.T


def test_a_program_has_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is forgotten, in threads that were there and in new ones."""
    quick = replace(kernel("linear", "linear_direct"), cost_ns=lambda site: 1.0)
    others = [one for one in KERNELS["linear"] if one.name != quick.name]
    monkeypatch.setitem(KERNELS, "linear", [quick, *others])
    one, right = session()
    x = np.ones((32, 40), np.float32)
    assert (one.run({"x": x})["y"] == right).all()
    for name in ("again", "in another thread"):
        forget()
        one.forget()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(one.run, {"x": x}) if name != "again" else None
            y = one.run({"x": x}) if found is None else found.result()
        assert (y["y"] == right).all(), name
    (made,) = one.last.program.calls if one.last else ()
    computation = next(given for given in made[1] if isinstance(given, Computation))
    (code,) = computation.codes.values()
    alive = weakref.ref(code)
    del one, made, computation, code, y, found
    forget()
    assert alive() is None


def test_code_is_there_for_the_numbers_of_rows_last_computed() -> None:
    rng, most = np.random.default_rng(0), MOST_ROWS + 10
    x, w = whole_numbers(rng, most, 8), whole_numbers(rng, 16, 8)
    usual = Computation(
        TensorForm((64, 8), (8, 1)), TensorForm((8, 16)), None, TensorForm((64, 16), (16, 1)), None
    )
    one = replace(usual, usual=usual, codes={})
    weight = laid_out(torch.from_numpy(w).T, usual)
    for rows in [*range(2, most), 3, 2]:
        out = torch.zeros(rows, 16)
        compute(one, None, torch.from_numpy(x[:rows]), weight, out)
        assert (out.numpy() == x[:rows] @ w.T).all()
        assert len(one.codes) <= MOST_ROWS
    assert list(one.codes)[-2:] == [3, 2]
    before = once.SPENT.ns
    compute(one, None, torch.from_numpy(x[:3]), weight, torch.zeros(3, 16))
    assert once.SPENT.ns == before  # code is there
    compute(one, None, torch.from_numpy(x[:9]), weight, torch.zeros(9, 16))
    assert once.SPENT.ns > before  # what compiling takes is no part of what calls do


@pytest.mark.parametrize("rows", [17, 64, 77, 91, 128, 200])
def test_numbers_of_rows_that_are_met_seldom_are_computed_in_pieces(rows: int) -> None:
    """By code that serves others as well; by code of their own once they were met often, or twice
    in a run, or where compiling is not put off.
    """
    rng = np.random.default_rng(0)
    x, w = whole_numbers(rng, rows, 24), whole_numbers(rng, 16, 24)
    usual = Computation(
        TensorForm((32, 24), (24, 1)), TensorForm((24, 16)), None, TensorForm((32, 16), (16, 1)),
        None,
    )  # fmt: skip
    weight = laid_out(torch.from_numpy(w).T, usual)

    def computed(one: Computation, times: int = 1) -> None:
        for _ in range(times):
            out = torch.full((rows, 16), np.nan)
            compute(one, None, torch.from_numpy(x), weight, out)
            assert (out.numpy() == x @ w.T).all()

    seldom, twice, at_once = (replace(usual, usual=usual, codes={}, met={}) for _ in range(3))
    has_own = rows % MANY_ROWS == 0
    for run in range(OFTEN + 1):
        assert (rows in seldom.codes) is (has_own and run > 0)
        with putting_off():
            computed(seldom)
    assert rows in seldom.codes
    assert all(size <= FEW_ROWS or size % FEW_ROWS == 0 for size in seldom.codes.keys() - {rows})
    with putting_off():
        computed(twice, times=2)
    computed(at_once)
    assert rows in twice.codes
    assert list(at_once.codes) == [rows]


@pytest.mark.parametrize("most", [1, 20, 64, 200])
def test_any_number_of_rows_is_put_together_from_few(most: int) -> None:
    rng = np.random.default_rng(0)
    w = whole_numbers(rng, 16, 24)
    usual = Computation(
        TensorForm((32, 24), (24, 1)), TensorForm((24, 16)), None, TensorForm((32, 16), (16, 1)),
        None,
    )  # fmt: skip
    weight = laid_out(torch.from_numpy(w).T, usual)
    one = replace(usual, usual=usual, codes={}, met={})
    for rows in list(one.lengths(most)):
        one.code(rows)
    there = set(one.codes)
    assert not list(one.lengths(most))
    for rows in range(1, most + 1):
        x, out = whole_numbers(rng, rows, 24), torch.full((rows, 16), np.nan)
        with putting_off():
            compute(one, None, torch.from_numpy(x), weight, out)
        assert (out.numpy() == x @ w.T).all()
    assert set(one.codes) == there
    assert not list(replace(one, window=((1,),), codes={}).lengths(most))


def test_weights_are_no_rows_however_many_bytes_they_are() -> None:
    rng, w = np.random.default_rng(0), np.ones((16, 8), np.float32)
    usual = Computation(
        TensorForm((32, 8), (8, 1)), TensorForm((8, 16)), None, TensorForm((32, 16), (16, 1)), None
    )
    weight = laid_out(torch.from_numpy(w).T, usual)
    rows = len(weight)
    x, out = whole_numbers(rng, rows + 1, 8), torch.zeros(rows + 1, 16)
    for count in (rows, rows + 1):
        with putting_off():
            one = replace(usual, usual=usual, codes={}, met={})
            compute(one, None, torch.from_numpy(x[:count]), weight, out[:count])
        assert (out[:count].numpy() == x[:count] @ w.T).all()


def test_bits_that_have_to_agree_are_computed_by_one_code() -> None:
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (80, 24)), g.parameter("w", (16, 24))))
    graph, seen = g.build(), []
    weights = {"w": np.ones((16, 24), np.float32)}
    for exact in (None, "bitwise"):
        session = GraphSession(graph, weights, exact=exact, calibrate=False)
        session.run({"x": np.ones((80, 24), np.float32)})
        program = session.last.program
        program.calls = [(lambda: seen.append(once.is_put_off()), ())]
        session.forget()
        session.run({"x": np.ones((80, 24), np.float32)})
    assert seen == [True, False]


def test_what_is_remembered_for_others_has_bounds() -> None:
    for remembered, most in (
        (_compiled, MOST_CODES), (described, MOST_DESCRIPTIONS), (_layout, MOST_LAYOUTS),
    ):  # fmt: skip
        assert remembered.cache_info().maxsize == most


@pytest.mark.parametrize("instructions", ["SSE41", "AVX2"])
def test_processors_with_fewer_instructions_have_products(instructions: str) -> None:
    which = "products_of_whole or same_code or last_computed or usual_sizes"
    files = [__file__, str(Path(__file__).with_name("test_direct_attention.py"))]
    assert passes_with(instructions, files, which) == 18 + 4


def test_without_the_library_everything_works() -> None:
    file = Path(__file__).with_name("test_packed.py")
    command = [sys.executable, "-c", HIDDEN, str(file), "laid_out_once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", sorted(direct.POSTS - {"add"}))
def test_functions_behind_a_convolution_are_part_of_the_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution of each channel by itself, as networks for phones have it."""
    quick = replace(kernel("conv", "conv_direct"), cost_ns=lambda site: 1.0)
    slow = [replace(one, cost_ns=lambda site: 1e9) for one in KERNELS["conv"]]
    kernels = [quick if one.name == quick.name else one for one in slow]
    monkeypatch.setitem(KERNELS, "conv", kernels)
    rng, wide = np.random.default_rng(0), 32
    weight = rng.normal(size=(wide, 1, 3, 3)).astype(np.float32)
    g = GraphBuilder()
    x = ops.conv(g.input("x", (1, wide, 9, 9)), g.parameter("w", weight.shape), padding=1,
                 groups=wide)  # fmt: skip
    bounds = (-1.0, 2.0) if name == "clamp" else ()
    g.output("y", ops.max_(getattr(ops, name)(x, *bounds), (2, 3)))
    session = GraphSession(g.build(), {"w": weight}, calibrate=False, making="always")
    image = 3 * rng.normal(size=(1, wide, 9, 9)).astype(np.float32)
    found = session.run({"x": image})["y"]
    rows = torch.nn.functional.conv2d(
        torch.from_numpy(image).double(), torch.from_numpy(weight).double(), padding=1, groups=wide
    )
    function = torch.clamp if bounds else getattr(torch.nn.functional, name)
    np.testing.assert_allclose(found, function(rows, *bounds).amax((2, 3)).numpy(), 1e-5, 1e-5)
    assert session.last is not None
    assert f"conv_direct + {name}" in {made.how for made in session.last.program.instructions}
