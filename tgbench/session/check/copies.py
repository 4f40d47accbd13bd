"""Sessions like another one, with its weights, budget and plan, that leave it undisturbed."""

from __future__ import annotations

from typing import Any

from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.session.check.compare import Array
from tgbench.session.check.pairs import as_array
from tgbench.session.session import GraphSession
from tgbench.sources.torch.imported import Imported


def twin(
    session: GraphSession, graph: Graph | None = None, plan: Plan | None = None
) -> GraphSession:
    """A session with an arena of its own, over the same graph or another one of its nodes.

    Over the same graph it has the budget, and the plan that is in force or `plan`; over another
    one it has what memory it needs.
    """
    options: dict[str, Any] = {"device": session.device, "exact": session.exact}
    options |= {"ignore_weights": ("*",), "calibrate": session.planning.calibrator is not None}
    same = Imported(session.graph if graph is None else graph, weights_of(session), {})
    if graph is not None:
        return GraphSession(same, **options)
    return GraphSession(
        same, **options, memory=session.budget_bytes, retain=session.retain,
        plan=plan_of(session) if plan is None else plan, buckets=session.buckets,
        path=session.path, tolerance=session.tolerance,
    )  # fmt: skip


def plan_of(session: GraphSession) -> Plan | None:
    """The plan in force, if one is."""
    return session.plan if session.is_planned else None


def weights_of(session: GraphSession) -> dict[str, Any]:
    """The session's own parameters, not copies; of its graph, whichever path is in force."""
    keys = [(name, node.dtype) for name, node in session.ground.held.parameters.items()]
    buffers = session.pool.buffers
    return {name: buffers[name, dtype] for name, dtype in keys if (name, dtype) in buffers}


def parameters(session: GraphSession) -> dict[str, Array]:
    """The same as arrays on the host."""
    return {name: as_array(value) for name, value in weights_of(session).items()}
