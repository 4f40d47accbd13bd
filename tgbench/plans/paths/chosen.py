"""A path as data that a plan holds, and whether it is one of the graph at hand.

    a graph, another one, names of rules ─→ both in one e-graph ─→ ends in the same classes?

What a stranger wrote is believed as little as it is executed: the other graph is read by the op
table, and computes the same because rules of this release say so, from one to the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from tgbench.base.errors import PlanError
from tgbench.base.words import shorten
from tgbench.graph.graph import Graph, Node, copy_node
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule
from tgbench.graph.rewrite.rules import LESS, RULES
from tgbench.graph.rewrite.saturate import SaturationLimits, saturate
from tgbench.plans.decisions import PlanPath

MEND = "delete the plan to plan anew"
LONGEST = 2.0  # seconds that rules are left out for, which a path can do without
PATIENT = SaturationLimits(seconds=30.0)  # what decides is how many e-nodes, not a slow machine


def described(
    given: Graph,
    graph: Graph,
    rules: Iterable[str],
    kernels: Iterable[tuple[str, str]] = (),
    tolerance: float | None = None,
) -> PlanPath:
    """A path as a plan holds it.

    Args:
        rules: that it uses; if they alone do not lead from one graph to the other, all do.

    Raises PlanError where none do within what a plan's reader is ready to try.
    """
    known = tuple(rule.name for rule in (RULES if tolerance is None else (*RULES, *LESS)))
    names = next((n for n in (tuple(rules), known) if are_equal(given, graph, n)), None)
    if names is None:
        raise PlanError("the rules do not show this to be a path within limits; take another one")
    if names is known:
        names = _fewer(given, graph, names)
    return PlanPath(given.fingerprint, graph_to_json(graph), names, tuple(kernels), tolerance)


def _fewer(given: Graph, graph: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    """Rules without some that are not needed: of halves, quarters, … those whose absence is seen.

    What takes long is not done again and again, nor to its end: the rules are as good as they are
    then.
    """
    size, until = (len(names) + 1) // 2, time.monotonic() + LONGEST
    while True:
        for start in reversed(range(0, len(names), size)):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return names
            rest = names[:start] + names[start + size :]
            if are_equal(given, graph, rest, replace(PATIENT, seconds=left_s)):
                names = rest
        if size == 1:
            return names
        size = (size + 1) // 2


def opened(path: PlanPath, graph: Graph, tolerance: float | None = None) -> Graph:
    """The graph that a plan wants to be run instead of another one, or of itself.

    Args:
        tolerance: the largest relative error that is allowed; None where nothing may be in less.

    Raises PlanError for one of another graph, and one that may not be, or is not shown to be equal.
    """
    found = graph_from_json(path.graph)
    if found.fingerprint == graph.fingerprint:
        return graph
    if path.given != graph.fingerprint:
        raise PlanError(
            f"path.given: the path is for graph {shorten(path.given[:12])}, this is "
            f"{graph.fingerprint[:12]}; use the graph it was made for, or {MEND}"
        )
    if path.tolerance is not None and (tolerance is None or tolerance < path.tolerance):
        raise PlanError(
            f"path.tolerance: the plan computes in less, and may be off by {path.tolerance:g}; "
            f"make the session with tolerance={path.tolerance:g} if that is right, or {MEND}"
        )
    known = {rule.name for rule in (RULES if path.tolerance is None else (*RULES, *LESS))}
    for name in path.rules:
        if name not in known:
            raise PlanError(f"path.rules: {shorten(name)} is no rule of this release; {MEND}")
    if not are_equal(graph, found, path.rules):
        raise PlanError(
            "path.graph: the rules that it names do not show it to compute what the session's "
            f"graph does; {MEND}"
        )
    return found


def are_equal(
    given: Graph, other: Graph, names: Iterable[str], limits: SaturationLimits = PATIENT
) -> bool:
    """Whether rules of these names show two graphs to compute the same, from the same leaves.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> def of(make):
    ...     g = GraphBuilder(); a, b, c = (g.input(name, (2, 2)) for name in "abc")
    ...     g.output("y", make(a, b, c)); return g.build()
    >>> first, last = of(lambda a, b, c: (a @ b) @ c), of(lambda a, b, c: a @ (b @ c))
    >>> are_equal(first, last, ["right first"]), are_equal(first, last, ["bias"])
    (True, False)
    """
    wanted = set(names)
    rules: list[AnyRule] = [rule for rule in (*RULES, *LESS) if rule.name in wanted]
    egraph = EGraph.of_graph(given)
    ends = _added(egraph, given, other)
    if ends is None:
        return False
    pairs = [(ends[name], egraph.of[node]) for name, node in _ends(given).items()]

    def is_shown() -> bool:
        return all(egraph.find(a) is egraph.find(b) for a, b in pairs)

    saturate(egraph, rules, limits, is_shown)
    return is_shown()


def _added(egraph: EGraph, given: Graph, other: Graph) -> dict[str, Node] | None:
    """The ends of another graph in the e-graph of one; None where leaves or ends differ."""
    leaves = {n.name: n for n in given.nodes if n.is_leaf and n.op != "constant"}
    mine, theirs = _ends(given), _ends(other)
    if list(mine) != list(theirs):
        return None
    new: dict[Node, Node] = {}
    for node in other.nodes:
        if not node.is_leaf or node.op == "constant":
            new[node] = copy_node(egraph.builder, node, tuple(new[n] for n in node.inputs))
            egraph.add(new[node])
            continue
        leaf = leaves.get(node.name)
        if leaf is None or (leaf.op, leaf.type) != (node.op, node.type):
            return None
        new[node] = egraph.of[leaf]
    if any(theirs[name].type != node.type for name, node in mine.items()):
        return None
    return {name: new[node] for name, node in theirs.items()}


def _ends(graph: Graph) -> dict[str, Node]:
    """Outputs and updates, in order, apart by name."""
    updates = {f"update {name}": node for name, node in graph.updates.items()}
    return {f"output {name}": node for name, node in graph.outputs.items()} | updates
