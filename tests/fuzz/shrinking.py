"""The smallest case that fails as a given one does: what can be left out is left out.

Each pass proposes smaller cases; the first that fails alike is taken, and the passes begin again.
A proposal that makes no sense (a shape that no op takes) fails in another way, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy

import torch

from fuzz.bounded import Bounded, exact
from fuzz.case import LEAVES, Json, evaluate, first_value, leaves, trimmed
from fuzz.replay import Failure, replay

Proposals = Callable[[Json], Iterator[Json]]


def shrunk(case: Json, failure: Failure, seconds: float = 60) -> tuple[Json, Failure]:
    """The smallest case found, and how it fails."""
    end = time.monotonic() + seconds
    if failure.step >= 0:  # else it is in what all steps ask for
        case = case | {"steps": case["steps"][: failure.step + 1]}
    while time.monotonic() < end:
        found = _smaller(case, failure, end)
        if found is None:
            break
        case, failure = found
    return case, failure


def _smaller(case: Json, failure: Failure, end: float) -> tuple[Json, Failure] | None:
    for proposals in _PASSES:
        for proposal in proposals(case):
            if time.monotonic() > end:
                return None
            found = _attempt(proposal)
            if found is not None and found.is_like(failure):
                return proposal, found
    return None


def _attempt(case: Json) -> Failure | None:
    """How a proposal fails; one that the evaluator cannot compute does not."""
    try:
        with torch.no_grad():
            _sample(case)
    except Exception:
        return None
    return replay(case)


def _sample(case: Json) -> list[Bounded]:
    found = leaves(case, *LEAVES).items()
    return evaluate(case, {n: exact(torch.tensor(first_value(leaf)), leaf["dtype"])
                           for n, leaf in found})  # fmt: skip


# --- steps and options ----------------------------------------------------------------------------


def _without_steps(case: Json) -> Iterator[Json]:
    steps = case["steps"]
    size = len(steps) // 2
    while size:
        for first in range(0, len(steps), size):
            yield case | {"steps": steps[:first] + steps[first + size :]}
        size //= 2


def _plainer_steps(case: Json) -> Iterator[Json]:
    """Steps without an option, or without an edit."""
    for i, step in enumerate(case["steps"]):
        for key in step:
            if key not in ("do", "edits", "edit", "mode", "steps"):
                yield _with_step(case, i, {k: v for k, v in step.items() if k != key})
        for j in range(len(step.get("edits", ()))):
            edits = step["edits"][:j] + step["edits"][j + 1 :]
            yield _with_step(case, i, step | {"edits": edits})


def _with_step(case: Json, i: int, step: Json) -> Json:
    return case | {"steps": [*case["steps"][:i], step, *case["steps"][i + 1 :]]}


def _without_options(case: Json) -> Iterator[Json]:
    for key in case["options"]:
        yield case | {"options": {k: v for k, v in case["options"].items() if k != key}}


# --- the graph ------------------------------------------------------------------------------------


def _without_outputs(case: Json) -> Iterator[Json]:
    for name in case["outputs"]:
        if len(case["outputs"]) > 1:
            outputs = {n: i for n, i in case["outputs"].items() if n != name}
            steps = [_unwished(step, name) for step in case["steps"]]
            yield _cut(case | {"outputs": outputs, "steps": steps})


def _unwished(step: Json, name: str) -> Json:
    if not step.get("want"):
        return step
    want = {n: wish for n, wish in step["want"].items() if n != name}
    return step | {"want": want or None}


def _without_updates(case: Json) -> Iterator[Json]:
    for i in range(len(case["updates"])):
        yield _cut(case | {"updates": case["updates"][:i] + case["updates"][i + 1 :]})


def _cut(case: Json) -> Json:
    """Without the nodes that nothing needs now, and what is done with them."""
    case = trimmed(case)
    names = leaves(case, *LEAVES)
    steps = []
    for step in case["steps"]:
        if "edits" in step:
            step = step | {"edits": [e for e in step["edits"] if e["name"] in names]}
        if "edit" not in step or step["edit"]["name"] in names:
            steps.append(step)
    return case | {"steps": steps}


def _earlier_outputs(case: Json) -> Iterator[Json]:
    """An output that is one of the inputs of what it was."""
    for name, i in case["outputs"].items():
        for parent in case["nodes"][i].get("args", ()):
            if case["nodes"][parent]["op"] not in LEAVES:
                steps = [_unwished(step, name) for step in case["steps"]]
                yield _cut(case | {"outputs": case["outputs"] | {name: parent}, "steps": steps})


def _bridged(case: Json) -> Iterator[Json]:
    """A node replaced by an input of it of the same type, or by a new leaf."""
    try:
        sample = _sample(case)
    except Exception:
        return
    for i, node in reversed(list(enumerate(case["nodes"]))):
        if node["op"] in LEAVES:
            continue
        for parent in node["args"]:
            if sample[parent].shape == sample[i].shape and sample[parent].dtype == sample[i].dtype:
                yield _cut(_redirected(case, i, parent))
        yield _cut(_with_leaf(case, i, sample[i]))


def _redirected(case: Json, old: int, new: int) -> Json:
    case = deepcopy(case)
    for node in case["nodes"]:
        node["args"] = [new if i == old else i for i in node.get("args", ())]
        if node["op"] in LEAVES:
            del node["args"]
    case["outputs"] = {n: new if i == old else i for n, i in case["outputs"].items()}
    for update in case["updates"]:
        update["value"] = new if update["value"] == old else update["value"]
    return case


def _with_leaf(case: Json, i: int, sample: Bounded) -> Json:
    leaf = {
        "op": "input", "name": f"i{i}", "shape": [*sample.shape], "dtype": sample.dtype,
        "fill": {"kind": "ints"}, "seed": i,
    }  # fmt: skip
    nodes = [*case["nodes"][:i], leaf, *case["nodes"][i + 1 :]]
    return case | {"nodes": nodes}


def _plainer_leaves(case: Json) -> Iterator[Json]:
    """Inputs in place of parameters and states; whole numbers in place of others."""
    for i, node in enumerate(case["nodes"]):
        if node["op"] not in LEAVES:
            continue
        if node["op"] == "parameter":
            yield _with_node(case, i, node | {"op": "input"})
        if node["fill"]["kind"] in ("reals", "special"):
            yield _with_node(case, i, node | {"fill": {"kind": "ints"}})


def _with_node(case: Json, i: int, node: Json) -> Json:
    return case | {"nodes": [*case["nodes"][:i], node, *case["nodes"][i + 1 :]]}


def _smaller_sizes(case: Json) -> Iterator[Json]:
    """One size less wherever a size stands in a leaf or an attribute of a shape."""
    sizes = {n for node in case["nodes"] for n in node.get("shape", ()) if n > 1}
    for size in sorted(sizes, reverse=True):
        for less in (1, size - 1):
            yield _resized(case, size, less)
    for i, node in enumerate(case["nodes"]):
        for axis, size in enumerate(node.get("shape", ())):
            if size > 1:
                shape = [*node["shape"]]
                shape[axis] = size - 1
                yield _fitted(_with_node(case, i, node | {"shape": shape}))


def _resized(case: Json, size: int, less: int) -> Json:
    nodes = []
    for node in case["nodes"]:
        node = deepcopy(node)
        if "shape" in node:
            node["shape"] = [less if n == size else n for n in node["shape"]]
        if node.get("fill", {}).get("below") == size:
            node["fill"]["below"] = less
        if "shape" in node.get("attrs", {}):
            node["attrs"]["shape"] = [less if n == size else n for n in node["attrs"]["shape"]]
        nodes.append(node)
    return _fitted(case | {"nodes": nodes})


def _fitted(case: Json) -> Json:
    """Edits clipped to the leaves as they are now; indices that are too large made whole."""
    shapes = {name: leaf["shape"] for name, leaf in leaves(case, *LEAVES).items()}
    steps = []
    for step in case["steps"]:
        step = deepcopy(step)
        for edit in [*step.get("edits", ()), *([step["edit"]] if "edit" in step else [])]:
            edit["box"] = [
                [min(a, n - 1), max(min(a, n - 1) + 1, min(z, n))]
                for (a, z), n in zip(edit["box"], shapes[edit["name"]], strict=True)
            ]
        steps.append(step)
    return case | {"steps": steps}


def _smaller_edits(case: Json) -> Iterator[Json]:
    """Edits of one element."""
    for i, step in enumerate(case["steps"]):
        for j, edit in enumerate(step.get("edits", ())):
            if any(z - a > 1 for a, z in edit["box"]):
                edits = [*step["edits"]]
                edits[j] = edit | {"box": [[a, a + 1] for a, _ in edit["box"]]}
                yield _with_step(case, i, step | {"edits": edits})


_PASSES: tuple[Proposals, ...] = (
    _without_steps, _without_options, _without_outputs, _without_updates, _earlier_outputs,
    _bridged, _plainer_steps, _plainer_leaves, _smaller_sizes, _smaller_edits,
)  # fmt: skip
