"""The e-graph: congruence, counts beside egglog's, and what saturation says of itself."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import example

import tgbench.base.streams
import tgbench.graph.rewrite.egraph
import tgbench.graph.rewrite.pattern
import tgbench.graph.rewrite.saturate
from tgbench.base.errors import GraphError
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import Rule
from tgbench.graph.rewrite.rules import RULES
from tgbench.graph.rewrite.saturate import SaturationEnd, SaturationLimits, saturate

MODULES = (
    tgbench.base.streams, tgbench.graph.rewrite.egraph, tgbench.graph.rewrite.pattern,
    tgbench.graph.rewrite.saturate,
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


def test_merging_inputs_merges_what_reads_them() -> None:
    g = GraphBuilder()
    x, a, b = (g.input(name, (3,)) for name in "xab")
    g.output("y", (x + a) * b)
    g.output("z", (x + b) * b)
    egraph = EGraph.of_graph(g.build())
    a, b = (node for node in egraph.classes() if node.name in "ab")
    assert egraph.merge(a, b)
    egraph.rebuild()
    egraph.check()
    assert egraph.ends[0] is egraph.ends[1]
    assert sorted(node.op for node in egraph.nodes()) == ["add", "input", "input", "input", "mul"]


def test_commuting_operands_are_a_set() -> None:
    g = GraphBuilder()
    x, a = g.input("x", (3,)), g.input("a", (3,))
    g.output("y", x * a + a * x)
    egraph = EGraph.of_graph(g.build())
    assert sum(node.op == "mul" for node in egraph.nodes()) == 1


def test_classes_of_different_types_are_not_merged() -> None:
    g = GraphBuilder()
    g.output("y", g.input("x", (3,)) + g.input("a", (1,)))
    egraph = EGraph.of_graph(g.build())
    x, a, _ = egraph.classes()
    with pytest.raises(GraphError, match="differ in type"):
        egraph.merge(x, a)


def test_nodes_of_another_builder_are_refused() -> None:
    g = GraphBuilder()
    g.output("y", -g.input("x", (3,)))
    with pytest.raises(GraphError, match="builder of this e-graph"):
        EGraph.of_graph(g.build()).add(g.outputs["y"])


def test_a_weight_that_a_rule_finds_makes_its_readers_weights() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (3,)), g.parameter("w", (3,))
    g.output("y", (x - x + w) * 2.0)
    egraph = EGraph.of_graph(g.build())
    (y,) = egraph.ends
    assert not egraph.is_fixed(y)
    egraph.merge(y.inputs[0], next(n for n in egraph.classes() if n.name == "w"))
    egraph.rebuild()
    assert egraph.is_fixed(y)


@pytest.mark.parametrize("count", range(2, 8))
def test_a_chain_of_products_has_as_many_e_nodes_as_in_egglog(count: int) -> None:
    egglog = pytest.importorskip("egglog")
    g = GraphBuilder()
    product = g.input("m0", (2, 2))
    for i in range(1, count):
        product = product @ g.input(f"m{i}", (2, 2))
    g.output("y", product)
    egraph = EGraph.of_graph(g.build())
    rules = [rule for rule in RULES if rule.name in ("left first", "right first")]
    assert saturate(egraph, rules).stopped is SaturationEnd.SATURATED
    egraph.check()

    program = egglog.bindings.EGraph()
    text = "(datatype T (M i64) (P T T))\n" + "\n".join(
        (
            "(rewrite (P (P a b) c) (P a (P b c)))",
            "(rewrite (P a (P b c)) (P (P a b) c))",
        )
    )
    expression = "(M 0)"
    for i in range(1, count):
        expression = f"(P {expression} (M {i}))"
    text += f"\n(let e {expression})\n(run-schedule (saturate (run)))"
    program.run_program(*program.parse_program(text))
    (sizes,) = program.run_program(*program.parse_program("(print-size)"))
    assert f"(P {sum(node.op == 'matmul' for node in egraph.nodes())})" in str(sizes)


ROOTS = (
    Rule("minus minus", ("neg", ("neg", "a")), lambda a: a),
    Rule("minus a difference", ("neg", ("sub", "a", "b")), lambda a, b: b - a),
    Rule("sign of a quotient", ("div", ("neg", "a"), "b"), lambda a, b: -(a / b)),
    Rule(
        "quotient of a difference", ("div", ("sub", "a", "b"), "c"), lambda a, b, c: a / c - b / c
    ),
)
SAME = """
(datatype T (V i64) (S T T) (D T T) (N T))
(rewrite (N (N a)) a)
(rewrite (N (S a b)) (S b a))
(rewrite (D (N a) b) (N (D a b)))
(rewrite (D (S a b) c) (S (D a c) (D b c)))
"""


@given(choices=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9)),
                        min_size=1, max_size=7))  # fmt: skip
@settings(max_examples=60)
def test_random_expressions_have_as_many_e_nodes_as_in_egglog(
    choices: list[tuple[int, int, int]],
) -> None:
    egglog = pytest.importorskip("egglog")
    g = GraphBuilder()
    nodes: list[tuple[Node, str]] = [(g.input(f"v{i}", (2,)), f"(V {i})") for i in range(3)]
    for kind, i, j in choices:
        (a, left), (b, right) = nodes[i % len(nodes)], nodes[j % len(nodes)]
        made = (a - b, a / b, -a)[kind]
        text = (f"(S {left} {right})", f"(D {left} {right})", f"(N {left})")[kind]
        nodes.append((made, text))
    g.output("y", nodes[-1][0])
    egraph = EGraph.of_graph(g.build())
    assert (
        saturate(egraph, ROOTS, SaturationLimits(iterations=40)).stopped is SaturationEnd.SATURATED
    )
    egraph.check()

    program = egglog.bindings.EGraph()
    run = f"{SAME}(let e {nodes[-1][1]})\n(run-schedule (saturate (run)))\n(print-size)"
    sizes = " ".join(map(str, program.run_program(*program.parse_program(run))))
    for letter, op in (("S", "sub"), ("D", "div"), ("N", "neg")):
        count = sum(node.op == op for node in egraph.nodes())
        assert f"({letter} {count})" in sizes, sizes


def test_limits_are_kept_and_named() -> None:
    graph = example("distribute", (3, 3, 3))
    few = EGraph.of_graph(graph)
    assert saturate(few, RULES, SaturationLimits(nodes=8)).stopped is SaturationEnd.NODES
    assert len(few) <= 8
    assert saturate(EGraph.of_graph(graph), RULES, SaturationLimits(iterations=1)).stopped is (
        SaturationEnd.ITERATIONS
    )
    assert (
        saturate(EGraph.of_graph(graph), RULES, SaturationLimits(seconds=0)).stopped
        is SaturationEnd.SECONDS
    )


def test_equal_layers_stay_equal_whatever_the_limit() -> None:
    """A rule is applied in every layer or in none."""
    g = GraphBuilder()
    x = g.input("x", (4,))
    for i in range(6):
        x = (x + g.input(f"a{i}", (4,))) * g.input(f"b{i}", (4,))
    g.output("y", x)
    for nodes in (30, 45, 60, 90):
        egraph = EGraph.of_graph(g.build())
        saturate(egraph, RULES[:8], SaturationLimits(nodes=nodes))
        sizes = {len(egraph.members(node)) for node in egraph.of.values() if node.op == "mul"}
        assert len(sizes) <= 2, sizes  # the first layer has no sum before its own
