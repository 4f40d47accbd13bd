"""Which node is to blame: the session's value of every node beside exact ones.

    total   the session's value − the reference in float64, from the same inputs
    own     the session's value − the node's reference in float64, of the values that the session
            itself gave it

    total of a chain, one kernel wrong:      ·  ·  ·  X  X  X  X     everything behind it is off
    own:                                     ·  ·  ·  X  ·  ·  ·     and it alone is to blame
    total of a chain, errors that grow:      ·  ·  ·  ·  x  x  X     nobody is to blame
    own:                                     ·  ·  ·  ·  ·  ·  ·

Sums that cancel are allowed more: their error is relative to what the same op makes of absolute
values (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgbench.base.errors import KernelError
from tgbench.base.regions import Box
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import FLOATS, OPS, numpy_dtype
from tgbench.session.check.compare import Array, Difference, difference, largest, tolerance_of
from tgbench.session.check.copies import parameters, twin
from tgbench.session.session import GraphSession

CHUNK_BYTES = 256 << 20  # of node values that are looked at together


@dataclass(frozen=True)
class NodeCheck:
    """One node of a full run.

    Fields:
        own: relative error, given the inputs that it got.
        total: relative error against the reference from the run's inputs.
        box: around the elements that are wrong by themselves; where `total` is too large if none.
        kernels: what computed it.
        original: relative error against the original's value, where there is one.
    """

    name: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    own: float
    total: float
    tolerance: float
    box: Box | None
    kernels: tuple[str, ...]
    original: float | None = None

    @property
    def is_wrong(self) -> bool:
        """By itself."""
        return not self.own <= self.tolerance

    @property
    def is_off(self) -> bool:
        """By itself, or because of what it got."""
        return not self.total <= self.tolerance


def check_nodes(
    session: GraphSession,
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
    tolerance: float | None,
    originals: Mapping[str, Array],
    progress: Callable[[int, int, str], None],
) -> tuple[tuple[NodeCheck, ...], dict[str, Array]]:
    """Every computed node of a full run, in topological order; and the reference's outputs.

    The nodes are computed by the session's kernels, each kept, some hundred MiB at a time.
    """
    graph = session.graph
    weights = parameters(session)
    exact = exact_values(graph, {**inputs, **states}, weights)
    checks: list[NodeCheck] = []
    outputs: dict[str, Array] = {}
    ends = {node: name for name, node in graph.outputs.items()}
    count = sum(not node.is_leaf for node in graph.nodes)
    for chunk in _chunks(graph):
        found, kernels = _materialised(session, chunk, inputs, states)
        for node in chunk:
            right = exact(node)
            if node in ends:
                outputs |= {name: right for name, end in graph.outputs.items() if end is node}
            given = [_value(p, found, inputs, states, weights) for p in node.inputs]
            checks.append(
                _checked(node, found[node], right, given, tolerance, kernels.get(node.name, ()),
                         originals.get(node.name))
            )  # fmt: skip
            progress(len(checks), count, node.name)
    for name, node in graph.outputs.items():
        if node.is_leaf:
            outputs[name] = _value(node, {}, inputs, states, weights)
    return tuple(checks), outputs


def _checked(
    node: Node,
    found: Array,
    right: Array,
    given: Sequence[Array],
    tolerance: float | None,
    kernels: tuple[str, ...],
    original: Array | None,
) -> NodeCheck:
    allowed = tolerance_of(node.attrs.get("arithmetic", node.dtype), tolerance)
    own = difference(found, _reference(node, given), allowed)
    cancels = OPS[node.op].cancels
    if own.relative > allowed and cancels is not None:
        absolute = _reference(node, [np.abs(array) for array in given], cancels)
        own = difference(found, _reference(node, given), allowed, largest(absolute))
    total = difference(found, right, allowed)
    apart: Difference | None = None
    if original is not None and original.shape == found.shape:
        apart = difference(found, original, allowed)
    box = own.box or total.box or (apart.box if apart is not None else None)
    return NodeCheck(
        node.name, node.op, node.dtype, node.shape, own.relative, total.relative, allowed, box,
        kernels, apart.relative if apart is not None else None,
    )  # fmt: skip


# --- the session's values -------------------------------------------------------------------------


def _chunks(graph: Graph) -> Iterator[tuple[Node, ...]]:
    """Neighbouring computed nodes, so many that their values may all be held."""
    chunk: list[Node] = []
    size = 0
    for node in graph.nodes:
        if node.is_leaf:
            continue
        if chunk and size + node.type.size_bytes > CHUNK_BYTES:
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(node)
        size += node.type.size_bytes
    if chunk:
        yield tuple(chunk)


def _materialised(
    session: GraphSession,
    chunk: Sequence[Node],
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
) -> tuple[dict[Node, Array], dict[str, tuple[str, ...]]]:
    """Values of these nodes and of what they read, and the kernels that computed them."""
    read = [parent for node in chunk for parent in node.inputs if not parent.is_leaf]
    wanted = tuple(dict.fromkeys([*read, *chunk]))
    sub = Graph.of({node.name: node for node in wanted})
    apart = twin(session, sub)
    for name in apart.graph.states:
        apart.set_state(name, states[name])
    results = apart.run({name: inputs[name] for name in apart.graph.inputs})
    kernels: dict[str, dict[str, None]] = {}
    for made in apart.last.program.instructions if apart.last is not None else ():
        kernels.setdefault(made.node.name, {})[made.kernel] = None
    return {node: results[node.name] for node in wanted}, {n: tuple(k) for n, k in kernels.items()}


def _value(
    node: Node,
    found: Mapping[Node, Array],
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
    weights: Mapping[str, Array],
) -> Array:
    if not node.is_leaf:
        return found[node]
    if node.op == "constant":
        constant: Array = node.attrs["data"].array
        return constant
    return {"input": inputs, "state": states, "parameter": weights}[node.op][node.name]


# --- exact ones -----------------------------------------------------------------------------------


def exact_values(
    graph: Graph, leaves: Mapping[str, Array], weights: Mapping[str, Array]
) -> Callable[[Node], Array]:
    """Values by the references in float64, asked for in topological order and then let go."""
    kept: dict[Node, Array] = {}
    left = {node: len(users) for node, users in graph.consumers.items()}

    def value(node: Node) -> Array:
        if node.is_leaf:
            return _value(node, {}, leaves, leaves, weights)
        return kept[node]

    def exact(node: Node) -> Array:
        kept[node] = made = _reference(node, [value(parent) for parent in node.inputs])
        for parent in dict.fromkeys(node.inputs):
            left[parent] -= 1
            if not left[parent]:
                kept.pop(parent, None)
        return made

    return exact


def _reference(
    node: Node, given: Sequence[Array], rule: Callable[..., Array] | None = None
) -> Array:
    """One op in float64, where it is one of floats; tables it picks from, which may be large, as
    they are.
    """
    attrs = {key: _widened(value) for key, value in node.attrs.items()}
    op = OPS[node.op]
    wide = [
        a.astype(np.float64) if a.dtype.kind == "f" and i not in op.picks else a
        for i, a in enumerate(given)
    ]
    try:
        with np.errstate(all="ignore"):
            made = (rule or op.reference)(attrs, *wide)
    except Exception as error:
        raise KernelError(
            f"the reference of {node!r} failed: {error}; mend the op's `reference`"
        ) from error
    if made.dtype.kind != "f" and made.dtype != numpy_dtype(node.dtype):
        made = made.astype(numpy_dtype(node.dtype))
    return np.asarray(made)


def _widened(value: Any) -> Any:
    return "float64" if isinstance(value, str) and value in FLOATS else value
