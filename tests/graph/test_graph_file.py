"""Graph files: the same graph back, damaged and hostile ones named, nothing executed."""

from __future__ import annotations

import base64
import json
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from op_cases import CASES
from session.test_bad_input import STRANGE, paths_of, replaced
from session.test_session import stateful
from strategies import Maker, graphs

import tgbench.graph.ops as ops
from tgbench.base.errors import GraphError
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import graph_from_json, graph_to_json, load_graph, save_graph
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import bert_reduced, gemma3_reduced

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads((resources.files("tgbench") / "schemas" / "graph-1.json").read_text())


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def assert_comes_back(graph: Graph, validator: Any) -> Graph:
    text = graph_to_json(graph)
    validator.validate(json.loads(text))
    again = graph_from_json(text)
    assert again.fingerprint == graph.fingerprint
    assert str(again) == str(graph)
    assert graph_to_json(again) == text
    return again


# --- round trips ----------------------------------------------------------------------------------


@given(graphs())
def test_any_graph_comes_back(validator: Any, case: tuple[Graph, Maker]) -> None:
    graph, make = case
    again = assert_comes_back(graph, validator)
    found, right = evaluate(again, make(0)), evaluate(graph, make(0))
    assert all(np.array_equal(found[name], right[name]) for name in right)


@pytest.mark.parametrize("name", CASES)
def test_every_op_of_the_table_comes_back(name: str, validator: Any) -> None:
    assert_comes_back(CASES[name].graph, validator)


@pytest.mark.parametrize("tokens", [12, dim("rows_of_a_file", max=64)], ids=["bound", "symbolic"])
def test_models_come_back(tokens: Any, validator: Any) -> None:
    for graph in (gemma3(gemma3_reduced(), tokens), bert(bert_reduced(), tokens, batch=2)):
        again = assert_comes_back(graph, validator)
        if graph.symbols:
            bound = [one.bind(rows_of_a_file=8).fingerprint for one in (again, graph)]
            assert bound[0] == bound[1]
            with pytest.raises(GraphError, match=r"outside 1..64"):
                again.bind(rows_of_a_file=65)
        else:
            assert_comes_back(simplify(graph), validator)


def strange() -> Graph:
    """States, an infinite constant, a large one, every kind of attribute, derived dimensions."""
    g = GraphBuilder()
    rows, columns = dim("R"), dim("C", max=9)
    x = g.input('a name: with "signs" é', (rows * 4 + 2, columns * rows))
    g.output("x", x.reshape(-1, 2))
    table = g.constant(np.random.default_rng(0).standard_normal((40, 30)))
    g.output("pad", ops.pad(g.constant([[True, False]]).cast("float32"), (1, 1), (0, 1), -np.inf))
    g.output("table", ops.max_(table + g.constant(np.float64(np.nan)), (0, 1)))
    g.output("zero", g.constant(np.array([-0.0, 1e-45, 3.4028235e38], "float32")) + 0.0)
    return g.build()


@pytest.mark.parametrize("graph", [stateful(0), stateful(1), strange()], ids=["0", "1", "strange"])
def test_odd_graphs_come_back(graph: Graph, validator: Any, tmp_path: Path) -> None:
    assert_comes_back(graph, validator)
    saved = save_graph(graph, tmp_path / "graph.json")
    assert load_graph(saved).fingerprint == graph.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"], "left-over files"


def test_masks_take_little_room() -> None:
    g = GraphBuilder()
    mask = g.constant(np.tril(np.ones((1024, 1024), bool)))
    g.output("y", ops.where(mask, g.input("x", (1024, 1024)), 0.0))
    assert len(graph_to_json(g.build())) < 20_000


def test_an_attribute_that_no_file_holds_is_named(tmp_path: Path) -> None:
    g = GraphBuilder()
    g.output("y", ops.pad(g.input("x", (4,)), (0,), (1,), np.float64(2.0)))
    with pytest.raises(GraphError, match=r"pad.value is a float64, which a graph file cannot"):
        save_graph(g.build(), tmp_path / "graph.json")
    assert not list(tmp_path.iterdir())


# --- damaged, foreign, hostile --------------------------------------------------------------------


def small() -> dict[str, Any]:
    g = GraphBuilder()
    n = dim("N", max=8)
    x, s = g.input("x", (n * 2, 3)), g.state("s", (3,))
    w = g.constant(np.arange(20, dtype="float32").reshape(4, 5))
    g.update(s, ops.softmax(s * 2.0))
    g.output("y", ops.pad(x, (0, 1), (0, 1), np.inf))
    g.output("z", ops.sum_(w, (0,)))
    data: dict[str, Any] = json.loads(graph_to_json(g.build()))
    return data


SMALL = small()
LARGE = next(i for i, node in enumerate(SMALL["nodes"]) if node["type"][1] == [4, 5])
AT = {node["name"]: i for i, node in enumerate(SMALL["nodes"])}


def load(data: Any) -> Graph:
    return graph_from_json(json.dumps(data))


def test_the_small_one_is_sound(validator: Any) -> None:
    validator.validate(SMALL)
    load(SMALL)


@given(st.data())
def test_whatever_is_changed_gives_a_typed_error_or_the_same_graph(data: Any) -> None:
    path = data.draw(st.sampled_from(paths_of(SMALL)))
    value = data.draw(STRANGE)
    changed = replaced(json.loads(json.dumps(SMALL)), path, value, drop=data.draw(st.booleans()))
    try:
        graph = load(changed)
    except GraphError:
        return
    assert graph.fingerprint == SMALL["fingerprint"], path


@given(st.data())
def test_what_the_schema_rejects_is_no_graph(validator: Any, data: Any) -> None:
    path = data.draw(st.sampled_from(paths_of(SMALL)))
    changed = replaced(json.loads(json.dumps(SMALL)), path, data.draw(STRANGE), drop=False)
    if not validator.is_valid(changed):
        with pytest.raises(GraphError):
            load(changed)


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_torn_file_is_an_error(start: int, length: int) -> None:
    text = json.dumps(SMALL, separators=(",", ":"))
    with pytest.raises(GraphError):
        graph_from_json(text[: start % len(text)] + text[start % len(text) + length + 1 :])


def deep(levels: int) -> Any:
    made: Any = "N"
    for _ in range(levels):
        made = ["+", made, 1]
    return made


BOMB = {"deflated": base64.b64encode(zlib.compress(bytes(10**7))).decode(), "sha256": ""}
SUM, PAD, W, X = AT["sum"], AT["pad"], LARGE, AT["x"]
DAMAGE: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "version": (("version",), 2, "version: 2 is not 1; save the graph again"),
    "an unknown op": (("nodes", PAD, "op"), "system", r"\.op: 'system' is unknown; the table has"),
    "a cycle": (("nodes", PAD, "inputs"), [PAD], r"inputs: .* is not a list of earlier nodes"),
    "a node to come": (("nodes", PAD, "inputs"), [99], "earlier nodes"),
    "a negative node": (("nodes", PAD, "inputs"), [-1], "earlier nodes"),
    "an output of nobody": (("outputs", "y"), 99, "outputs.'y': 99 is not a node"),
    "no output": (("outputs",), {}, "outputs: there are none"),
    "an update of nobody": (("updates",), {"t": 0}, "updates.'t': no state of that name"),
    "a wrong type": (("nodes", PAD, "type"), ["float32", [3, 3]], "pad gives .* not"),
    "a wrong dtype": (("nodes", PAD, "type", 0), "complex64", r"type: .* is not \[dtype"),
    "no elements": (("nodes", X, "type", 1), [0, 3], "is empty, or has more than"),
    "too many elements": (("nodes", X, "type", 1), [1 << 60, 1 << 60], "is empty, or has more"),
    "a formula": (("nodes", X, "type", 1, 0), "__import__('os')", "is not a dimension"),
    "an operator": (("nodes", X, "type", 1, 0), ["exec", "N"], "is not a dimension"),
    "a tower": (("nodes", X, "type", 1, 0), ["**", 9, ["**", 9, 9]], "is not a dimension"),
    "a power": (("nodes", X, "type", 1, 0), ["**", "N", 999], "is not a dimension"),
    "by zero": (("nodes", X, "type", 1, 0), ["/", 4, 0], "is not a dimension"),
    "one over zero": (("nodes", X, "type", 1, 0), ["mod", "N", 0], "is not a dimension"),
    "a deep one": (("nodes", X, "type", 1, 0), deep(60), "is not a dimension"),
    "an unknown symbol": (("nodes", X, "type", 1, 0), "M", "'M' is not a dimension"),
    "a repeated node": (("nodes", W + 1), SMALL["nodes"][0], "it repeats"),
    "an attribute": (("nodes", PAD, "attrs", "low"), ["a", 1], "is no such attribute of an op"),
    "a real size": (("nodes", PAD, "attrs", "low"), [0.0, 1], "is no such attribute of an op"),
    "one too many": (("nodes", PAD, "attrs", "extra"), 1, "is no such attribute"),
    "one called op": (("nodes", PAD, "attrs", "op"), "exp", "is no such attribute"),
    "one of a leaf": (("nodes", X, "attrs", "a"), 1, "is no such attribute"),
    "a number": (("nodes", PAD, "attrs", "value"), 1 << 63, "is not an attribute's value"),
    "another number": (("nodes", PAD, "attrs", "value"), 1.0, "fingerprint: .* not that of these"),
    "another name": (("nodes", PAD, "name"), "x", "two nodes are called 'x'"),
    "a constant": (("nodes", W, "attrs", "data"), {"values": [1.0]}, "not a list of 20 numbers"),
    "its digest": (("nodes", W, "attrs", "data", "sha256"), "0", "sha256: not that of the values"),
    "its bytes": (("nodes", W, "attrs", "data", "deflated"), "????", "deflated: .* damaged"),
    "its end": (("nodes", W, "attrs", "data", "deflated"), "eJw=", "not the 80 bytes of its type"),
    "a bomb": (("nodes", W, "attrs", "data"), BOMB, "not the 80 bytes of its type"),
    "a large constant": (("nodes", W, "type", 1), [1 << 20, 1 << 20], "constants take more than"),
    "a dimension": (("dimensions",), {"N": -1}, "is not a largest size or null"),
    "a place": (("nodes", PAD, "source"), "net.py\n\x1b[2J", "source: .* is no line"),
    "a long place": (("nodes", PAD, "source"), "x" * 2000, "source: .* is no line"),
    "no place": (("nodes", PAD, "source"), ["net.py"], "source: .* is no line"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_is_named(case: str, tmp_path: Path) -> None:
    path, value, message = DAMAGE[case]
    file = tmp_path / "graph.json"
    data = json.loads(json.dumps(SMALL))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(GraphError, match=message) as error:
        load_graph(file)
    assert str(error.value).startswith(str(file))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "nul", '{"version": 1, "version": 1}', '{"version": NaN}', "[" * 9**6],
    ids=["empty", "list", "open", "word", "twice", "nan", "deep"],
)  # fmt: skip
def test_what_is_no_graph_file_is_refused(text: str) -> None:
    with pytest.raises(GraphError, match=r"restore the file|save the graph again"):
        graph_from_json(text)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="a plan, not a graph; pass a file that `save_graph`"):
        graph_from_json('{"slots": [], "version": 4}')
    with pytest.raises(GraphError, match="cannot be read"):
        load_graph(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match="cannot be read"):
        load_graph(tmp_path / "binary.json")
