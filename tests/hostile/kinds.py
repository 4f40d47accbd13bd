"""Kinds of files: samples of each, and what is done with one that somebody sent."""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tgbench as tg
from tgbench import ops
from tgbench.base.arrays import read_array
from tgbench.base.errors import InputError
from tgbench.base.safetensors import save
from tgbench.costs.records import Record, Records, TilingRecord
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import graph_to_json, load_graph
from tgbench.graph.reference import evaluate
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.graph.simplify import simplify
from tgbench.memory.packing.drawing import draw
from tgbench.memory.packing.files import read_minimalloc, write_minimalloc
from tgbench.memory.packing.packer import pack
from tgbench.memory.packing.problem import Buffer, Problem
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.session.check import check, save_pairs
from tgbench.sources.models import bert, checkpoints, gemma3
from tgbench.sources.models.config import load_config
from tgbench.sources.torch import from_pt2

LARGEST_RUN = 1 << 16  # elements of a graph that is run, so that its reference takes no time


class Wrong(AssertionError):  # noqa: N818
    """A file was read, and what came of it is not right."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Fields:
        suffix: of its name.
        samples: the bytes of sound ones.
        used: reads one and does with it what users do; raises `Wrong` where that comes out wrong.
    """

    suffix: str
    samples: Callable[[], tuple[bytes, ...]]
    used: Callable[[Path], None]


# --- graphs ---------------------------------------------------------------------------------------


def decoder() -> Graph:
    """Rows that see the rows before them: an embedding, attention, a state, two outputs."""
    g = GraphBuilder()
    ids = g.input("ids", (8,), "int64")
    x = ops.embedding(g.parameter("table", (6, 4)), ids)
    seen = ops.attention(*(
        (x @ g.parameter(name, (4, 4))).reshape(1, 1, 8, 4) for name in "qkv"
    ), g.constant(np.tri(8, dtype=bool)))  # fmt: skip
    y = ops.layer_norm(seen.reshape(8, 4) + x, g.parameter("scale", (4,)), g.parameter("by", (4,)))
    state = g.state("seen", (8, 4))
    g.update(state, y, at=g.input("at", (1,), "int64"))
    g.output("y", ops.softmax(y[2:7:2]) * 2.0)
    g.output("state", ops.sum_(state, (0,)))
    return g.build()


def picture() -> Graph:
    """A convolution, a pool, padding, windows, reshapes, constants listed and deflated."""
    g = GraphBuilder()
    x = g.input("x", (1, 2, 6, 6))
    y = ops.relu(ops.conv(x, g.parameter("w", (3, 2, 3, 3)), None, padding=1))
    y = ops.max_pool(y, 2)
    y = ops.pad(y, (0, 0, 1, 0), (0, 0, 0, 1), -np.inf).permute(0, 2, 1, 3)
    ones = g.constant(np.ones((4, 3, 4)), "float32")
    y = ops.concat([ops.maximum(y, 0.0), y.reshape(1, 4, 3, 4) * ones], 2)
    rows = ops.gather(y, g.constant(np.array([3, 0, 1, 1])), 1)
    g.output("out", ops.mean(rows, (2,)).cast("float64").expand(2, 1, 4, 4))
    return g.build()


def symbolic() -> Graph:
    """Dimensions with names, and expressions of them."""
    g = GraphBuilder()
    n, m = dim("N", max=8), dim("M")
    x = g.input("x", (n * 2 + 1, m))
    y = (x * 3.0).reshape(1, n * 2 + 1, m).expand(2, n * 2 + 1, m)
    g.output("y", ops.sum_(ops.pad(y, (0, 1, 0), (0, 1, 2), 1.0), (0,)))
    g.output("z", ops.concat([x, x], 0))
    return g.build()


def values_of(graph: Graph) -> dict[str, Any]:
    draw = np.random.default_rng(0).integers
    leaves = {**graph.inputs, **graph.parameters}
    return {
        n: draw(0, 2, node.shape).astype("float32" if node.dtype == "bfloat16" else node.dtype)
        for n, node in leaves.items()
    }


def _graph(path: Path) -> None:
    graph = load_graph(path)
    assert str(graph)
    assert graph.to_dot()
    if graph.symbols:
        graph = graph.bind(**{str(symbol): 3 for symbol in graph.symbols})
    sizes = [math.prod(node.shape) for node in graph.nodes]
    if sum(sizes) > LARGEST_RUN:
        tg.GraphSession(graph, {}, "16MiB") if not graph.parameters else None
        return
    _compared(graph)


def _compared(graph: Graph, **options: Any) -> None:
    """Run a graph twice, and compare with its reference."""
    values = values_of(graph)
    weights = {name: values.pop(name) for name in graph.parameters}
    session = tg.GraphSession(graph, weights, "16MiB", calibrate=False, **options)
    for _ in range(2):
        kept = {name: session.state_value(name) for name in graph.states}
        found = session.run(values)
        with np.errstate(all="ignore"):
            right = evaluate(graph, {**values, **weights, **kept})
        for name, array in right.items():
            if not np.allclose(found[name], array, rtol=1e-2, atol=1e-3, equal_nan=True):
                raise Wrong(f"output {name!a} differs from the reference")
        for name in values:
            values[name] = np.roll(values[name], 1)


@cache
def _graphs() -> tuple[bytes, ...]:
    return tuple(graph_to_json(make()).encode() for make in (decoder, picture, symbolic))


# --- plans and traces -----------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """As the process that reads has: programs are for a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
@one_thread()
def _session_files() -> Mapping[str, bytes]:
    """Those that a session of the decoder wrote."""
    graph, values = decoder(), values_of(decoder())
    weights = {name: values.pop(name) for name in graph.parameters}
    with tempfile.TemporaryDirectory() as folder:
        plan, trace = Path(folder, "plan.json"), Path(folder, "trace.jsonl")
        session = tg.GraphSession(graph, weights, "1MiB", trace=trace, plan=plan, calibrate=False)
        for at in (0, 3, 4):
            values["ids"] = values["ids"].copy()
            values["ids"][at] = 5
            session.run(values, {"y": np.s_[at % 3]})
        session.trace.close()
        session.optimize("greedy", steps=1)
        session.prepare()
        session.save_programs()
        return {path.suffix: path.read_bytes() for path in Path(folder).iterdir()}


@cache
def _plan_with_path() -> bytes:
    """A plan for the decoder computed in another way."""
    graph, values = decoder(), values_of(decoder())
    weights = {name: values.pop(name) for name in graph.parameters}
    session = tg.GraphSession(graph, weights, "1MiB", calibrate=False)
    session.run(values)
    paths = session.paths(limits=SaturationLimits(nodes=500))
    session.take(next(path for path in paths if path.rules).chosen())
    session.run(values)
    return session.plan.to_json().encode()


def _plan(path: Path) -> None:
    plan = Plan.load(path)
    assert str(plan)
    assert plan.to_json()
    _compared(decoder(), plan=plan)


def _trace(path: Path) -> None:
    trace = Trace.load(path)
    assert str(trace)
    trace.pairs(decoder())
    trace.to_frame()
    _compared(decoder(), trace=trace)
    Trace(path).close()


def _programs(path: Path) -> None:
    graph, values = decoder(), values_of(decoder())
    weights = {name: values.pop(name) for name in graph.parameters}
    plan = path.with_name("of_programs.json")
    plan.write_bytes(_session_files()[".json"])
    session = tg.GraphSession(graph, weights, "1MiB", plan=Plan.load(plan), calibrate=False)
    session.load_programs(path)
    for at in (0, 3, 4):
        values["ids"] = values["ids"].copy()
        values["ids"][at] = 5
        right = evaluate(graph, {**values, **weights})["y"]
        for index in (np.s_[at % 3], np.s_[:]):
            found = session.run(values, {"y": index})["y"]
            if not np.allclose(found, right[index], rtol=1e-2, atol=1e-3):
                raise Wrong("output 'y' differs from the reference")


# --- records --------------------------------------------------------------------------------------


@cache
def _records() -> tuple[bytes, ...]:
    from costs.test_records import MACHINE

    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder, "records.db"))
        key = ("add", "1f", "add(…)", MACHINE.fingerprint)
        records.add([Record(*key, samples_ns=(1200, 1300, 1100))], MACHINE)
        records.add([Record(*key[:3], "0", samples_ns=(), failure="ValueError: no")])
        records.add_tilings([TilingRecord(*key, (1, 4), (1, 4), False, 3, 1)])
        with records.database.transaction() as connection:
            connection.ask("PRAGMA wal_checkpoint(TRUNCATE)")
        return (Path(folder, "records.db").read_bytes(),)


def _used_records(path: Path) -> None:
    records = Records(path, timeout_s=1)
    assert str(records)
    records.all()
    records.tilings()
    records.to_frame()
    _compared(decoder(), records=records)


# --- weights, programs of PyTorch -----------------------------------------------------------------


@cache
def _weights() -> tuple[bytes, ...]:
    graph, values = decoder(), values_of(decoder())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.safetensors")
        save({name: values[name] for name in graph.parameters}, path, {"format": "pt"})
        return (path.read_bytes(),)


def _used_weights(path: Path) -> None:
    values = values_of(decoder())
    session = tg.GraphSession(decoder(), path, "1MiB", calibrate=False)
    session.run({name: values[name] for name in decoder().inputs})


class Net(torch.nn.Module):
    """Enough of PyTorch: weights, a buffer, a mask that is made, views, a reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(8.0).reshape(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) + self.table
        seen = torch.tril(torch.ones(8, 8)) * (y @ y.T)
        return (seen + torch.arange(8).view(1, 8)).softmax(-1).sum(0)[1:7:2]


@cache
def _programs_of_torch() -> tuple[bytes, ...]:
    torch.manual_seed(0)
    made = torch.export.export(Net().eval(), (torch.zeros(8, 4),)).run_decompositions()
    found = io.BytesIO()
    torch.export.save(made, found)
    return (found.getvalue(),)


def _pt2(path: Path) -> None:
    imported = from_pt2(path)
    sizes = [math.prod(node.shape) for node in imported.graph.nodes]
    if sum(sizes) > LARGEST_RUN:
        return
    session = tg.GraphSession(imported, None, "16MiB", calibrate=False)
    values = values_of(imported.graph)
    values = {name: values[name] for name in imported.graph.inputs}
    found, right = session.run(values), evaluate(imported, values)
    for name, array in right.items():
        if not np.allclose(found[name], array, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise Wrong(f"output {name!a} differs from the reference")


# --- pairs, shards, configurations, packings, arrays ----------------------------------------------


def _session() -> tg.GraphSession:
    values = values_of(decoder())
    weights = {name: values[name] for name in decoder().parameters}
    return tg.GraphSession(decoder(), weights, "1MiB", calibrate=False)


@cache
def _pairs() -> tuple[bytes, ...]:
    values = values_of(decoder())
    given = {name: values[name] for name in decoder().inputs}
    with tempfile.TemporaryDirectory() as folder:
        path = save_pairs(Path(folder, "p.safetensors"), [(given, _session().run(given))] * 2)
        return (path.read_bytes(),)


def _used_pairs(path: Path) -> None:
    assert str(check(_session(), path, bisect=False))


SHARDS = {"a.safetensors": ("table", "q", "k"), "b.safetensors": ("v", "scale", "by")}


def _index() -> tuple[bytes, ...]:
    places = {name: shard for shard, names in SHARDS.items() for name in names}
    return (json.dumps({"metadata": {"total_size": 9}, "weight_map": places}).encode(),)


def _used_index(path: Path) -> None:
    values = values_of(decoder())
    for shard, names in SHARDS.items():
        save({name: values[name] for name in names}, path.with_name(shard))
    _used_weights(path)


@cache
def _configs() -> tuple[bytes, ...]:
    made = (checkpoints.gemma3_reduced(), checkpoints.bert_reduced())
    return tuple(json.dumps(config).encode() for config in made)


def _config(path: Path) -> None:
    config = load_config(path)
    build = bert if config.get("model_type") == "bert" else gemma3
    assert str(simplify(build(config, 4)))


@cache
def _packings() -> tuple[bytes, ...]:
    draw = np.random.default_rng(0).integers
    sizes, starts, lives = draw(1, 900, 30), draw(0, 40, 30), draw(4, 20, 30)
    buffers = tuple(
        Buffer(f"b{i}", int(size), int(at), int(at + live), ((int(at) + 1, int(at) + 2),))
        for i, (size, at, live) in enumerate(zip(sizes, starts, lives, strict=True))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.csv")
        problem = Problem(buffers, alignment=1)
        write_minimalloc(path, problem, pack(problem, search=False))
        return (path.read_bytes(),)


def _packing(path: Path) -> None:
    problem = read_minimalloc(path)
    found = pack(problem, search=True, seconds=0.1)
    live = [b for b in problem.buffers if b.size_bytes and b.intervals]
    for i, one in enumerate(live):
        for other in live[:i]:
            together = any(a < d and c < b for a, b in one.intervals for c, d in other.intervals)
            low, high = found.offsets[one.name], found.offsets[other.name]
            if together and low < high + other.size_bytes and high < low + one.size_bytes:
                raise Wrong(f"{one.name} and {other.name} clash")
    picture = draw(problem, found)
    if not picture.replace("\n", "").isprintable():
        raise Wrong("the picture is not plain")


@cache
def _arrays() -> tuple[bytes, ...]:
    made = []
    for array in (np.arange(12.0).reshape(3, 4), np.asfortranarray(np.eye(3)), np.array(2)):
        found = io.BytesIO()
        np.save(found, array)
        made.append(found.getvalue())
    return tuple(made)


def _array(path: Path) -> None:
    try:
        assert read_array(path).size < LARGEST_RUN
    except ValueError as error:  # who asks for one says which file
        raise InputError(str(error)) from error


def _harm(path: Path) -> None:
    exec(path.read_text(), {})


HARM = Kind(".txt", tuple, _harm)  # what the limits are tried with
KINDS: Mapping[str, Kind] = {
    "graph": Kind(".json", _graphs, _graph),
    "plan": Kind(".json", lambda: (_session_files()[".json"], _plan_with_path()), _plan),
    "trace": Kind(".jsonl", lambda: (_session_files()[".jsonl"],), _trace),
    "programs": Kind(".programs", lambda: (_session_files()[".programs"],), _programs),
    "records": Kind(".db", _records, _used_records),
    "weights": Kind(".safetensors", _weights, _used_weights),
    "pt2": Kind(".pt2", _programs_of_torch, _pt2),
    "pairs": Kind(".safetensors", _pairs, _used_pairs),
    "shards": Kind(".index.json", _index, _used_index),
    "config": Kind(".json", _configs, _config),
    "packing": Kind(".csv", _packings, _packing),
    "array": Kind(".npy", _arrays, _array),
}
