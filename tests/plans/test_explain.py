"""What a plan says of a node, and of another plan: golden text, and the facts behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import GOLDEN
from session.test_session import causal, share_of_examples
from session_cases import CheckedSession
from strategies import Maker, graphs

from tgbench import ops
from tgbench.base.errors import PlanError
from tgbench.base.words import listed
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.memory.placement import Turn
from tgbench.plans.decisions import PlanBucket, PlanReason, PlanSlot, SearchRecord
from tgbench.plans.diff import Kept, PlanDiff
from tgbench.plans.explain import Weighed
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession

KIB, MIB = 1 << 10, 1 << 20
ROW = ((("x", (((0, 1), (None, 8)),)),), (("y", (((0, 1), (None, 8)),)),), (7,))
EDIT = ((("x", (((0, 1), (None, 8)),)),), (("y", (((None, 8), (None, 8)),)),), (7,))
ALL = ((("x", (((None, 8), (None, 8)),)),), (("y", (((None, 8), (None, 8)),)),), ())


def slot(node: str, offset: int, size: int, **more: Any) -> PlanSlot:
    rows = size // 32
    return PlanSlot(node, offset, size, (rows, 8), (0, 0), more.pop("retained", False), **more)


def found(stop: str = "optimal", bound_ns: float = 900_000.0) -> SearchRecord:
    return SearchRecord("exact", 0, 12, stop, 950_000.0, 950_000.0, 4e6, 1.2e6, bound_ns)


def made() -> Plan:
    """By hand, so that it holds one node of every kind.

    offset 0     x: the input
           1 K   k: retained, 256 KiB
         257 K   h: there after ROW and EDIT; the runs of ALL put q there
         257 K   q, s: slices; s takes over q's bytes, and its kernel's scratch lies on z
         513 K   z: a slice
    """
    kept = {"retained": True}
    slots = (
        slot("x", 0, KIB, **kept),
        slot("k", KIB, 256 * KIB, **kept),
        slot("h", 257 * KIB, 128 * KIB, through=(0, 1), **kept),
        slot("q", 257 * KIB, 128 * KIB),
        slot("s", 257 * KIB, 128 * KIB, donor="q",
             scratch_offset_bytes=513 * KIB, scratch_bytes=KIB),
        slot("z", 513 * KIB, 64 * KIB),
    )  # fmt: skip
    buckets = (
        PlanBucket(*ROW, 90.0, (3,)),
        PlanBucket(*EDIT, 9.0, (2,)),
        PlanBucket(*ALL, 1.0, ()),
    )
    reasons = (
        PlanReason("k", 256 * KIB, 410_000.0),
        PlanReason("h", 128 * KIB, 60_000.0),
        PlanReason("s", MIB, 20_000.0),
    )
    return Plan(
        "0123456789abcdef", "cpu", ("k", "view", "h", "q", "s", "z"), slots, ("k", "h"),
        ("h", "s"), ("", 0, 1), 577 * KIB, 257 * KIB, 500 * KIB, 3, 950_000.0, 600 * KIB,
        buckets, tuple(map(Turn, range(3))), {}, reasons, 0.4, found(),
    )  # fmt: skip


def other() -> Plan:
    """As `made`, under a smaller budget: k went, h is kept throughout, runs are cut."""
    plan = made()
    x, k, h, q, s, _ = plan.slots
    slots = (
        x,
        replace(h, offset_bytes=KIB, through=None),
        replace(k, offset_bytes=129 * KIB, retained=False, size_bytes=32 * KIB, extents=(1024, 8)),
        replace(q, offset_bytes=161 * KIB),
        replace(s, offset_bytes=161 * KIB, donor="", scratch_offset_bytes=400 * KIB),
        slot("t", 300 * KIB, 32 * KIB),
    )
    return replace(
        plan, slots=slots, schedule=("k", "view", "q", "s", "h", "t"), retained=("h",),
        dropped=("k", "s"), cut=("x", 0, 4), size_bytes=401 * KIB, kept_bytes=129 * KIB,
        bound_bytes=400 * KIB, expected_ns=1_400_000.0, budget_bytes=450 * KIB,
        buckets=(plan.buckets[0], replace(plan.buckets[2], weight=2.0)), turns=(Turn(0), Turn(1)),
        reasons=(PlanReason("h", 128 * KIB, 70_000.0), PlanReason("k", 256 * KIB, 390_000.0)),
        price_ns=2.0, search=found("time", 1_300_000.0),
    )  # fmt: skip


# --- explain -------------------------------------------------------------------------------------


def golden(name: str, text: str) -> None:
    assert text + "\n" == (GOLDEN / name).read_text()


def test_a_plan_explains_every_kind_of_node() -> None:
    plan = made()
    names = [slot.node for slot in plan.slots] + ["view"]
    golden("plan_explained.txt", "\n\n".join(str(plan.explain(name)) for name in names))


def explained(node: str, **changes: Any) -> str:
    return str(replace(made(), **changes).explain(node))


def weighed(node: str, saves_ns: float, size: int = KIB) -> tuple[PlanReason, ...]:
    return (PlanReason(node, size, saves_ns),)


@pytest.mark.parametrize(
    ("node", "changes", "words"),
    [
        ("k", {"price_ns": 0.0}, "more memory would save nothing now; it would be dropped if"),
        ("k", {"reasons": weighed("k", 0.0)}, "dropped for anything that saves time"),
        ("k", {"reasons": weighed("k", 5.0)}, "its bytes are worth more than that elsewhere"),
        ("k", {"reasons": weighed("k", 500.0, 1000), "price_ns": 0.001}, "500 × rarer"),
        ("s", {"reasons": weighed("s", 5.0)}, "82 × as often, or in the 23 KiB that the budget"),
        ("s", {"reasons": weighed("s", 0.0)}, "only if memory were left over"),
        ("s", {"reasons": weighed("s", 5e6)}, "or the search ended too early"),
        ("s", {"reasons": weighed("s", 5e6), "price_ns": 0.0}, "it may survive as it is"),
        ("z", {}, "saves nothing beside what else is retained"),
        ("z", {"reasons": ()}, "no planned run reads its earlier values"),
        ("z", {"dropped": ("z",), "reasons": (), "search": None}, "`optimize(mode='search')` does"),
        ("k", {"reasons": (), "dropped": ()}, "everything that is read again is retained"),
        ("k", {"reasons": (), "dropped": (), "search": found("running", 0.0)}, "on its way"),
        ("k", {"reasons": ()}, "was not weighed: no bound was sought for runs cut in this way"),
        ("k", {"reasons": (), "search": None}, "was not weighed: `optimize(mode='search')`"),
    ],
)  # fmt: skip
def test_what_would_flip_a_decision(node: str, changes: dict[str, Any], words: str) -> None:
    assert words in explained(node, **changes)


@given(st.floats(1, 1e9), st.integers(1, 1 << 40), st.floats(1e-6, 1e3))
def test_at_the_named_price_or_frequency_a_byte_breaks_even(
    saves_ns: float, size_bytes: int, price_ns: float
) -> None:
    weighed = Weighed(saves_ns, size_bytes, price_ns)
    assert replace(weighed, price_ns=weighed.density_ns).times == pytest.approx(1)
    assert replace(weighed, saves_ns=saves_ns / weighed.times).density_ns == pytest.approx(price_ns)
    assert replace(weighed, spare_bytes=weighed.more_bytes).more_bytes == 0


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    plan = replace(made(), schedule=("layer_0.k", "layer_0.v", "mlp"))
    with pytest.raises(
        PlanError, match=r"no node 'layer_0.K'; did you mean layer_0\.v, layer_0\.k\?"
    ):
        plan.explain("layer_0.K")
    with pytest.raises(PlanError, match=r"named as in session\.graph .*graph=session\.graph"):
        plan.explain("☃" * 400)


def graph_of_all_roles() -> Graph:
    g = GraphBuilder()
    x, w = g.input("x", (4, 3)), g.parameter("w", (3, 3))
    turned = g.name(w.permute(1, 0) * 2.0, "turned")
    both = g.name(x @ turned + x @ w, "both")  # which reads the weight itself as well
    g.output("y", ops.softmax(g.name(both.reshape(3, 4), "flat") + 1.0))
    return g.build()


def test_with_the_graph_it_tells_views_and_weights_apart() -> None:
    session = GraphSession(graph_of_all_roles(), {"w": np.eye(3, dtype="float32")})
    session.run({"x": np.ones((4, 3), "float32")})
    plan, graph = session.plan, session.graph
    roles = {node.name: plan.explain(node.name, graph).role for node in graph.nodes}
    assert roles["x"] == "input"
    assert roles["w"] == "weight"
    assert roles["turned"] == "frozen"
    assert roles["flat"] == "view"
    assert "it shows the bytes of both" in str(plan.explain("flat", graph))
    assert plan.explain("flat").role == "unplaced"
    with pytest.raises(PlanError, match=r"no node 'w'; .*graph=session\.graph"):
        plan.explain("w")
    with pytest.raises(PlanError, match=r"no node 'ww'; did you mean w\?$"):
        plan.explain("ww", graph)
    with pytest.raises(PlanError, match=r"pass session\.graph"):
        plan.explain("ww", causal(8))


@share_of_examples(2)
@given(graphs(most_ops=8), st.booleans())
def test_every_node_of_any_plan_is_explained_as_the_map_has_it(
    case: tuple[Graph, Maker], keep_all: bool
) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), retain="all" if keep_all else "auto")
    session.run()
    inner = session.session
    plan, placement = inner.plan, inner.placement
    for node in inner.graph.nodes:
        explained = plan.explain(node.name, inner.graph)
        assert str(explained).startswith(f"{node.name}: ")
        assert (node in placement.slots) == bool(explained.size_bytes)
        assert (explained.role == "view") == (
            node in inner.scheduled.views and not _fixed(inner, node)
        )
        if node in placement.overlaps:
            there = {n.name for n in placement.overlaps[node]}
            named = {name.removesuffix(" (scratch)") for name in explained.aliases}
            assert named | {explained.donor, *explained.takers} >= there
            assert named <= there


def _fixed(session: GraphSession, node: Any) -> bool:
    return node in session.scheduled.frozen


def sources() -> Graph:
    """A sum of three products, each cheaper than the one before: x0 @ w0 + x1 @ w1 + x2 @ w2."""
    g = GraphBuilder()
    products = [
        g.name(g.input(f"x{i}", (64, inner)) @ g.parameter(f"w{i}", (inner, 64)), f"made{i}")
        for i, inner in enumerate((256, 64, 16))
    ]
    g.output("y", products[0] + products[1] + products[2])
    return g.build()


@cache
def searched() -> tuple[GraphSession, Plan, Plan]:
    """Inputs change in turn, so that each run reads two of three products; and less room."""
    graph = sources()
    leaves = {**graph.inputs, **graph.parameters}
    session = CheckedSession(graph, {n: np.ones(x.shape, "float32") for n, x in leaves.items()})
    session.run()
    for turn in range(6):
        name = f"x{turn % 3}"
        session.run({name: session.values[name] + 1})
    inner = session.session
    roomy = inner.optimize("exact", steps=1)
    return inner, roomy, inner.optimize("exact", steps=1, budget=roomy.size_bytes - 24 * KIB)


def test_what_a_search_weighed_is_explained() -> None:
    _, _, plan = searched()
    assert {"made0", "made1", "made2"} <= {reason.node for reason in plan.reasons}
    for reason in plan.reasons:
        explained = plan.explain(reason.node)
        assert explained.weighed is not None
        assert explained.weighed.saves_ns == reason.saves_ns
        assert "memory is worth" in str(explained)


def test_with_the_memory_it_asks_for_a_dropped_node_is_retained() -> None:
    session, _, plan = searched()
    products = [plan.explain(f"made{i}") for i in range(3)]
    left_out = [explained for explained in products if explained.role == "slice"]
    assert left_out
    for explained in left_out:
        assert plan.budget_bytes is not None
        assert explained.weighed is not None
        more = plan.budget_bytes + explained.weighed.more_bytes
        richer = session.optimize("exact", steps=1, budget=more)
        assert richer.expected_ns < plan.expected_ns
        assert len(richer.retained) > len(plan.retained)


def test_long_lists_are_counted() -> None:
    assert listed(list("abcdef")) == "a, b, c, d, e, f"
    assert listed(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"


# --- diff ----------------------------------------------------------------------------------------


def test_a_plan_does_not_differ_from_itself() -> None:
    assert not made().diff(made())
    assert str(made().diff(made())) == "no difference"
    elsewhere = replace(made(), machine={"threads": "64"}, price_ns=7.0)
    assert not made().diff(elsewhere)
    assert str(made().diff(elsewhere)) == "no difference, but in how the plans were found"


def test_what_differs_reads_well() -> None:
    found = made().diff(other())
    assert found
    golden("plan_diff.txt", str(found))
    golden("plan_diff_back.txt", str(other().diff(made())))
    assert repr(found) == str(found)


def test_retention_is_compared() -> None:
    found = made().diff(other())
    assert [kept.node for kept in found.lost] == ["k"]
    assert found.lost[0].saves_ns == 410_000.0
    assert not found.gained
    ((before, after),) = found.rearranged
    assert before.node == after.node == "h"
    assert after.after is None
    assert before.after is not None
    assert len(before.after) == 2
    assert str(Kept("h", 64)) == "h (64 B)"


def test_classes_are_compared_by_what_they_are() -> None:
    """Buckets in another order give `through` other numbers, and mean the same."""
    plan = made()
    x, k, h, *rest = plan.slots
    turned = replace(
        plan,
        buckets=(plan.buckets[2], plan.buckets[1], plan.buckets[0]),
        slots=(x, k, replace(h, through=(1, 2)), *rest),
    )
    assert not plan.diff(turned)
    assert plan.diff(replace(turned, slots=plan.slots)).rearranged


@given(st.permutations(range(6)))
def test_the_fewest_nodes_change_places(order: Sequence[int]) -> None:
    """Against all subsets that could stay."""
    before = replace(made(), schedule=tuple("abcdef"))
    after = replace(before, schedule=tuple("abcdef"[i] for i in order))
    moved = PlanDiff(before, after).reordered
    rest = [name for name in after.schedule if name not in moved]
    assert rest == sorted(rest)
    most = max(
        length for length in range(7)
        if any(list(some) == sorted(some) for some in _subsequences(order, length))
    )  # fmt: skip
    assert len(moved) == 6 - most


def _subsequences(order: Sequence[int], length: int) -> list[tuple[int, ...]]:
    place = {value: i for i, value in enumerate(order)}
    return [
        some for some in permutations(order, length)
        if list(some) == sorted(some, key=lambda value: place[value])
    ]  # fmt: skip


def test_plans_of_two_budgets_differ_in_what_they_keep() -> None:
    _, roomy, tight = searched()
    found = roomy.diff(tight)
    assert found
    kept = set(roomy.retained) - set(tight.retained)
    assert {k.node for k in found.lost} == kept
    assert "arena" in str(found)
