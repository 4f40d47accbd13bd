"""Does a session give what another framework gave, and if not, which node is to blame?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tgbench.base.errors import InputError, check_number
from tgbench.base.surroundings import plainly
from tgbench.base.words import Progress, silent
from tgbench.graph.holding import may_round
from tgbench.session.check.compare import Array, difference, tolerance_of
from tgbench.session.check.copies import twin
from tgbench.session.check.edits import EditFailure, try_edits
from tgbench.session.check.nodes import NodeCheck, check_nodes
from tgbench.session.check.original import Original, values_of
from tgbench.session.check.pairs import Pair, Pairs, as_array, as_pairs, check_outputs
from tgbench.session.check.report import Blame, Cause, CheckReport, OutputCheck
from tgbench.session.session import GraphSession


@plainly
def check(
    session: GraphSession,
    pairs: Pairs | Any,
    *,
    tolerance: float | None = None,
    bisect: bool = True,
    edits: int = 0,
    seed: int = 0,
    against: Original | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Compare a session with pairs of inputs and outputs from another framework.

    Where weights are rounded (`weights_dtype`), or what is multiplied (`arithmetic`), outputs
    differ by that too, which the report says; nodes are compared with exact ones of the same
    rounded weights, and products that may round may be off by what the dtype that they round to
    may be.

    The runs are those of a second session with the same weights, budget and plan, so that inputs,
    states and trace of this one stay as they are. Pairs follow one another, each incrementally on
    the one before; states begin at 0.

    Args:
        pairs: `(inputs, outputs)` by name, or the path of a file that `save_pairs` wrote. Every
            input of the graph, at least one output.
        tolerance: largest relative error of a float output, the largest distance by the largest
            right value; by dtype if None (float32: 1e-5). Integers must be equal.
        bisect: look for the node to blame where a pair fails.
        edits: random edits to try besides, each run beside one that computes everything.
        seed: of the edits.
        against: the original, to compare node by node: a torch module or exported program, values
            by node name, or a function of the inputs that gives these.
        progress: called with (done, of, what).

    Raises:
        InputError: the pairs do not fit the graph, hold NaN, or there are none.

    >>> import numpy as np, tgbench as tg
    >>> g = tg.GraphBuilder(); g.output("y", g.input("x", (2,)) * 2.0)
    >>> x = np.ones(2, np.float32)
    >>> print(check(tg.GraphSession(g.build()), [({"x": x}, {"y": x + x})]))
    pair  output      absolute  relative  allowed
    ────  ──────────  ────────  ────────  ───────
    0     y: float32  0.00e+00  0.00e+00  1e-05
    1 of 1 output is right
    """
    _check_arguments(tolerance, edits, seed)
    found = _fitting(session, as_pairs(pairs))
    tell = progress if progress is not None else silent
    apart = twin(session)
    outputs: list[OutputCheck] = []
    verdict: Blame | None = None
    nodes: tuple[NodeCheck, ...] = ()
    for i, pair in enumerate(found):
        tell(i, len(found), "pairs")
        states = {name: apart.state_value(name) for name in apart.graph.states}
        checks = _run(apart, i, pair, tolerance)
        outputs += checks
        if bisect and verdict is None and not all(row.passed for row in checks):
            verdict, nodes = _bisect(session, apart, i, pair, states, tolerance, against, tell)
    failure: EditFailure | None = None
    if edits:
        failure = try_edits(session, found, edits, seed, tolerance, tell)
    inexact = sum(map(may_round, session.graph.nodes))
    rounded = len(session.rounded)
    return CheckReport(tuple(outputs), verdict, nodes, edits, failure, rounded, inexact)


def _check_arguments(tolerance: float | None, edits: int, seed: int) -> None:
    if tolerance is not None and not (0 <= tolerance < math.inf):
        raise InputError(f"tolerance={tolerance} is not a number ≥ 0; pass one, such as 1e-5")
    check_number(InputError, "edits", edits, whole=True, optional=False)
    check_number(InputError, "seed", seed, whole=True, optional=False)


def _fitting(session: GraphSession, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The pairs without inputs that nothing depends on; raises InputError where one cannot run."""
    known = session.graph.inputs
    made = []
    for i, pair in enumerate(pairs):
        for name in [*known, *pair.inputs]:
            if name not in pair.inputs:
                raise InputError(f"pairs[{i}] has no input {name!r} ({known[name].type}); add it")
            if name not in known and name not in session.unused_inputs:
                raise InputError(
                    f"pairs[{i}]: unknown input {name!r}; the graph takes {', '.join(known)}"
                )
        check_outputs(session.graph, pair, f"pairs[{i}]")
        made.append(Pair({name: pair.inputs[name] for name in known}, pair.outputs))
    return tuple(made)


def _run(apart: GraphSession, i: int, pair: Pair, tolerance: float | None) -> list[OutputCheck]:
    """Run one pair after the one before, and compare."""
    try:
        found = apart.run(pair.inputs)
    except InputError as error:
        raise InputError(f"pairs[{i}]: {error}") from error
    return [_compared(apart, i, name, found[name], pair, tolerance) for name in pair.outputs]


def _compared(
    apart: GraphSession, i: int, name: str, found: Array, pair: Pair, tolerance: float | None
) -> OutputCheck:
    dtype = apart.graph.outputs[name].dtype
    allowed = tolerance_of(dtype, tolerance)
    error = difference(found, pair.outputs[name], allowed)
    return OutputCheck(i, name, dtype, error.absolute, error.relative, allowed)


def _bisect(
    session: GraphSession,
    apart: GraphSession,
    i: int,
    pair: Pair,
    states: Mapping[str, Array],
    tolerance: float | None,
    against: Original | None,
    progress: Progress,
) -> tuple[Blame, tuple[NodeCheck, ...]]:
    """Why a pair fails: the first node that is wrong by itself, or what else explains it."""
    if not states and _is_right_afresh(session, i, pair, tolerance):
        return Blame(i, Cause.INCREMENTAL), ()
    originals = values_of(against, session.graph, pair.inputs)
    nodes, exact = check_nodes(apart, pair.inputs, states, tolerance, originals, progress)
    wrong = next((node for node in nodes if node.is_wrong), None)
    if wrong is not None:
        return Blame(i, Cause.KERNEL, wrong), nodes
    odd = [n for n in nodes if n.original is not None and not n.original <= n.tolerance]
    if odd:
        return Blame(i, Cause.ORIGINAL, odd[0]), nodes
    rows = [_compared(apart, i, n, as_array(exact[n]), pair, tolerance) for n in pair.outputs]
    if not all(row.passed for row in rows):
        return Blame(i, Cause.GRAPH), nodes
    off = next((node for node in nodes if node.is_off), None)
    return Blame(i, Cause.MEMORY if off is None else Cause.GROWTH, off), nodes


def _is_right_afresh(session: GraphSession, i: int, pair: Pair, tolerance: float | None) -> bool:
    return all(row.passed for row in _run(twin(session), i, pair, tolerance))
