"""What a caller set around a call of ours, for PyTorch or for the process, changes no result."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any, Literal

import numpy as np
import pytest
import torch
from conftest import surroundings
from interrupts.injecting import Injector, in_turns, places
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tgbench as tg
from tgbench.base.surroundings import PRECISION, apart, is_plain, plainly
from tgbench.graph.graph import GraphBuilder
from tgbench.session.session import GraphSession
from tgbench.sources.models import gemma3
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced


class Net(nn.Module):
    """Convolutions, which autocast rounds; and, with `opaque`, what PyTorch computes whole."""

    def __init__(self, opaque: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.opaque = nn.Conv2d(3, 4, 3), nn.Linear(36, 5), opaque

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(torch.relu(self.conv(x)).flatten(1))
        return y + torch.fft.fft(x).abs().mean() if self.opaque else y


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def precision(op: str, found: str) -> Iterator[None]:
    torch._C._set_fp32_precision_setter("mkldnn", op, found)
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", op, "none")


@contextmanager
def medium() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")


class Functions(TorchFunctionMode):
    """A mode that makes everything twice as large."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        return found * 2 if isinstance(found, Tensor) and found.is_floating_point() else found


class Dispatches(TorchDispatchMode):
    """A mode in which nothing can be computed."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{function} was told of")


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "matmul precision": medium,
    "precision": lambda: precision("all", "bf16"),
    "no gradients": torch.no_grad,
    "gradients": torch.enable_grad,
    "a device": lambda: torch.device("meta"),
    "a default device": lambda: default_device("meta"),
    "functions": Functions,
    "dispatches": Dispatches,
    "fake tensors": FakeTensorMode,
}
Around = Callable[[], AbstractContextManager[Any]]
around = pytest.mark.parametrize("around", AROUND.values(), ids=list(AROUND))


@around
@pytest.mark.parametrize("opaque", [False, True])
@torch.no_grad()
def test_what_is_set_around_a_session_changes_no_result(around: Around, opaque: bool) -> None:
    module, x = Net(opaque).eval(), torch.rand(1, 3, 5, 5, generator=torch.manual_seed(1))
    images = [x, x.clone(), x.clone()]
    images[1][..., 2:] = 0.5
    images[2][..., :2] = 0.25
    right, array = list(map(module, images)), x.numpy()
    with around():
        imported = tg.from_torch(module, (x,))
        session = tg.GraphSession(imported, making="always")
        found = [session.run({"x": image})["output"] for image in images]
        told = tg.evaluate(imported, {"x": array})["output"]
    np.testing.assert_allclose(told, right[0].numpy(), atol=1e-5)
    for one, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-5)


@around
def test_nor_one_of_rounded_weights(around: Around) -> None:
    g = GraphBuilder()
    g.output("y", tg.ops.linear(g.input("x", (2, 4)), g.parameter("w", (3, 4))))
    graph, weights = g.build(), {"w": np.arange(12, dtype="float32").reshape(3, 4) - 6}
    x = np.ones((2, 4), np.float32)
    with around():
        y = tg.GraphSession(graph, weights, weights_dtype="int8").run({"x": x})["y"]
    np.testing.assert_allclose(y, x @ weights["w"].T, atol=0.2)


# --- whatever is called there ---------------------------------------------------------------------

SMALL = torch.rand(1, 3, 5, 5, generator=torch.manual_seed(1))
IMAGES = [SMALL.numpy(), SMALL.numpy().copy(), SMALL.numpy().copy()]
IMAGES[1][..., 2:] = 0.5
IMAGES[2][..., :2] = 0.25


@cache
def imported() -> tg.Imported:
    return tg.from_torch(Net(opaque=False).eval(), (SMALL,))


def opened(exact: Literal["bitwise"] | None = None) -> GraphSession:
    return GraphSession(imported(), making="always", exact=exact)


def runs(session: GraphSession) -> list[bytes]:
    return [session.run({"x": image})["output"].tobytes() for image in IMAGES]


@around
def test_sessions_are_used_inside_and_outside_in_turns(around: Around) -> None:
    """What is made inside is written into outside, and the other way round."""
    right = runs(opened("bitwise"))
    with around():
        made_inside = opened("bitwise")
    made_outside = opened("bitwise")
    for session in (made_inside, made_outside):
        with around():
            assert runs(session) == right
        assert runs(session) == right
        with around():
            session.forget()
            assert runs(session) == right
            session.release()
        assert runs(session) == right


@around
def test_an_arena_and_states_made_inside_are_written_into_outside(around: Around) -> None:
    g = GraphBuilder()
    total = g.state("total", (4,))
    g.update(total, total + g.input("x", (4,)))
    g.output("y", total * 2.0)
    x = np.ones(4, np.float32)
    with around():
        arena = tg.Arena("cpu", "1MiB")
        session = tg.GraphSession(g.build(), arena=arena)
        session.set_state("total", x * 3)
        first = session.run({"x": x})["y"]
    second = session.run({"x": x})["y"]
    with around():
        session.set_state("total", x)
        third, held = session.run({"x": x})["y"], session.state_value("total")
        session.reset_states()
    last = session.run({"x": x})["y"]
    found = [float(one[0]) for one in (first, second, third, held, last)]
    assert found == [6.0, 8.0, 2.0, 2.0, 0.0]


def race(session: GraphSession, folder: Path) -> None:
    paths = session.paths()
    paths.race([paths.given], rounds=1)
    assert paths.error(paths.given) < 1e-5


CALLS: dict[str, Callable[[GraphSession, Path], Any]] = {
    "optimize": lambda session, folder: session.optimize(steps=1),
    "search": lambda session, folder: session.search(),
    "prepare": lambda session, folder: session.prepare(),
    "plan_for": lambda session, folder: session.plan_for([({"x": np.s_[..., 1:3]}, None)]),
    "adopt": lambda session, folder: session.adopt(session.plan),
    "take": lambda session, folder: session.take(None),
    "profile": lambda session, folder: tg.profile(session, tg.Records(folder / "r.db"), seconds=1),
    "programs": lambda session, folder: session.load_programs(session.save_programs(folder / "p")),
    "race": race,
    "check": lambda session, folder: tg.check(session, [({"x": IMAGES[0]}, {"output": Y})]),
    "report": lambda session, folder: str(session.report()),
    "what-if": lambda session, folder: str(tg.WhatIf.of(session).verdict),
}
Y = np.zeros((1, 5), np.float32)


@around
@pytest.mark.parametrize("call", CALLS)
def test_whatever_is_called_inside_changes_no_result(
    call: str, around: Around, tmp_path: Path
) -> None:
    session = opened()
    right = np.frombuffer(b"".join(runs(session)), np.float32)
    with around():
        CALLS[call](session, tmp_path)
    found = np.frombuffer(b"".join(runs(session)), np.float32)
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)


@around
def test_graphs_and_checkpoints_are_made_inside(around: Around, tmp_path: Path) -> None:
    config = gemma3_reduced()
    ids = np.arange(8)[None]
    right = GraphSession(gemma3(config, tokens=8), gemma3_checkpoint(tmp_path / "a", config))
    with around():
        weights = gemma3_checkpoint(tmp_path / "b", config)
        session = GraphSession(gemma3(config, tokens=8), weights)
        found = session.run({"ids": ids})["logits"]
    np.testing.assert_allclose(found, right.run({"ids": ids})["logits"], rtol=0, atol=1e-5)


# --- or is compiled -------------------------------------------------------------------------------


@pytest.fixture
def frames() -> Iterator[Counter[str]]:
    """What PyTorch's compiler looks into, counted."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()
    counters.clear()
    yield counters["frames"]
    reset()


def test_a_compiler_goes_around_a_run(frames: Counter[str]) -> None:
    session, image = opened("bitwise"), torch.tensor(IMAGES[0])
    right = session.run({"x": image})["output"]

    @torch.compile(backend="eager")
    def compiled(x: Tensor) -> Tensor:
        return session.run({"x": x * 2 / 2})["output"] + 1

    torch.testing.assert_close(compiled(image), right + 1, rtol=0, atol=0)
    assert frames["total"] == 2  # before the run and behind it
    run = torch.compile(session.run, backend="eager")
    torch.testing.assert_close(run({"x": image})["output"], right, rtol=0, atol=0)
    assert frames["total"] == 2


def test_a_compiler_goes_around_all_that_is_made(frames: Counter[str]) -> None:
    graph, image = imported(), torch.tensor(IMAGES[0])

    @torch.compile(backend="eager")
    def compiled(x: Tensor) -> Any:
        return GraphSession(graph).run({"x": x + 1})["output"]

    right = compiled(image)
    torch.testing.assert_close(right, GraphSession(graph).run({"x": image + 1})["output"])
    assert frames["total"] <= 5  # its own three, two of which begin twice


def test_a_compiler_that_wants_everything_is_told_what_to_do() -> None:
    session = opened()
    run = torch.compile(lambda x: session.run({"x": x}), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="leave fullgraph=True out"):
        run(torch.tensor(IMAGES[0]))


def test_nothing_loads_the_compiler() -> None:
    code = (
        "import sys, torch, tgbench as tg, numpy as np; g = tg.GraphBuilder();"
        " g.output('y', g.input('x', (2,)) * 2.0); s = tg.GraphSession(g.build());"
        " s.run({'x': np.ones(2, 'f')}); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- and it is all there afterwards ---------------------------------------------------------------


def everything() -> ExitStack:
    """All of it at once."""
    stack = ExitStack()
    for name in (
        "autocast", "a device", "functions", "matmul precision", "inference mode", "dispatches"
    ):  # fmt: skip
        stack.enter_context(AROUND[name]())
    return stack


def set_here() -> tuple[Any, ...]:
    functions = torch.overrides._get_current_function_mode_stack()
    dispatches = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return surroundings(), list(map(id, functions)), list(map(id, dispatches))


def fails() -> None:
    assert is_plain()
    raise KeyError


@around
def test_what_is_set_is_set_again_afterwards(around: Around) -> None:
    with around():
        before = set_here()
        assert apart(is_plain)
        with pytest.raises(KeyError):
            plainly(fails)()
        assert set_here() == before


def test_a_precision_is_full_until_the_last_thread_that_asked_is_done() -> None:
    """It is set for the process: whoever leaves first takes it from nobody, and finds none."""
    inside, done = Event(), Event()

    def stays() -> None:
        inside.set()
        done.wait()

    with medium(), ThreadPoolExecutor() as pool:
        staying = pool.submit(apart, stays)
        inside.wait()
        assert not is_plain()
        assert apart(is_plain)
        assert torch._C._get_fp32_precision_getter("mkldnn", "matmul") == "ieee"
        done.set()
        staying.result()
        assert torch._C._get_fp32_precision_getter("mkldnn", "matmul") == "bf16"
    assert is_plain()


def test_an_op_has_what_is_set_for_all_afterwards() -> None:
    with precision("all", "bf16"):
        apart(is_plain)
    assert is_plain()


def test_an_interrupt_anywhere_leaves_all_as_it_was() -> None:
    """At every bytecode, each time that it is reached."""

    def calls() -> None:
        apart(is_plain)

    with everything():
        before = set_here()
        found = places(calls)
        points = list(in_turns(found))
        assert len(points) > 150
        for point in points:
            injector = Injector(point, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                injector.call(calls)
            assert set_here() == before, point
            assert not PRECISION.asking, point
    assert is_plain()


def test_nothing_is_left_of_a_run_that_is_interrupted_inside() -> None:
    session = opened()
    right = runs(session)
    with everything():
        before = set_here()

        def act() -> Any:
            return session.run({"x": IMAGES[0]})

        act()
        points = list(in_turns(places(act)))
        for point in points[:: max(len(points) // 50, 1)]:
            with suppress(KeyboardInterrupt):
                Injector(point, KeyboardInterrupt).call(act)
            assert set_here() == before, point
    assert runs(session) == right


def test_generators_are_not_called_so() -> None:
    def steps() -> Iterator[None]:
        yield

    with pytest.raises(AssertionError, match="before a generator is over"):
        plainly(steps)
