"""A random case: which outputs and updates a drawn graph has, options, and what is done."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from fuzz.case import LEAVES, Json, leaves, trimmed
from fuzz.drawing import Drawing, random_graph

Shapes = Mapping[str, tuple[int, ...]]
MODES = ("greedy", "search", "exact")


def random_case(seed: int) -> Json:
    """A case, the same for the same seed."""
    random = Random(seed)
    drawing = random_graph(random)
    outputs, updates = _outputs(drawing), _updates(drawing)
    shapes = {name: drawing.sample[i].shape for name, i in outputs.items()}
    nodes = drawing.nodes
    case = trimmed({"seed": seed, "nodes": nodes, "outputs": outputs, "updates": updates})
    return case | {
        "options": _options(random, case),
        "steps": _steps(random, case, shapes),
    }


# --- outputs and updates --------------------------------------------------------------------------


def _outputs(d: Drawing) -> dict[str, int]:
    made = [i for i, node in enumerate(d.nodes) if node["op"] not in LEAVES]
    used = {i for node in d.nodes for i in node.get("args", ())}
    sinks = [i for i in made if i not in used]
    chosen = [made[-1]]
    chosen += [i for i in sinks if d.chance(0.6)]
    chosen += [d.pick(made)] if d.chance(0.4) else []
    return {f"y{k}": i for k, i in enumerate(dict.fromkeys(chosen))}


def _updates(d: Drawing) -> list[Json]:
    states = [i for i, node in enumerate(d.nodes) if node["op"] == "state"]
    found = [_update(d, i) for i in states]
    return [update for update in found if update is not None]


def _update(d: Drawing, state: int) -> Json | None:
    shape, dtype = d.sample[state].shape, d.sample[state].dtype
    if shape and d.chance(0.5):
        return _part_update(d, state)
    value = d.some(lambda x: x.shape == shape and x.dtype == dtype)
    return None if value is None else {"state": state, "value": value}


def _part_update(d: Drawing, state: int) -> Json | None:
    shape, dtype = d.sample[state].shape, d.sample[state].dtype
    axis = d.integer(0, len(shape) - 1)
    count = d.integer(1, shape[axis])
    part = (*shape[:axis], count, *shape[axis + 1 :])
    value = d.some(lambda x: x.shape == part and x.dtype == dtype)
    if value is None:
        value = d.leaf(part, dtype, "input")
    update: Json = {"state": state, "value": value, "axis": axis}
    kind = d.pick(["fixed", "start", "each"])
    if kind == "fixed":
        return update | {"at": d.integer(0, shape[axis] - count)}
    below = shape[axis] - count + 1 if kind == "start" or count == 1 else shape[axis]
    size = [1] if kind == "start" else [count]
    return update | {"at": [d.leaf(size, "int64", "input", {"kind": "index", "below": below})]}


# --- options --------------------------------------------------------------------------------------


def _options(random: Random, case: Json) -> Json:
    options: Json = {
        "memory": random.choice([*[None] * 7, "exact", "little", "ample"]),
        "poison": random.random() < 0.8,
        "torch": random.random() < 0.15,
    }
    if random.random() < 0.12:
        options["retain"] = "all"
    inputs = list(leaves(case, "input"))
    if inputs and random.random() < 0.15:
        names = random.sample(inputs, 1)
        options["buckets"] = {name: random.choice(["exact", "pow2", "full"]) for name in names}
    if random.random() < 0.1:
        options["packed_bytes"] = 0
    if random.random() < 0.08:
        options["exact"] = "bitwise"
    if random.random() < 0.5:
        options["making"] = "always"
    if random.random() < 0.5:
        options["serve"] = random.randrange(1000)
    if "exact" not in options and random.random() < 0.4:
        options["kernels"] = random.randrange(1000)
    return options


# --- steps ----------------------------------------------------------------------------------------

_BETWEEN = {
    "forget": 2, "release": 1, "reload": 1.5, "optimize": 1, "prepare": 0.5, "set_state": 6,
    "reset_states": 1, "plan_for": 0.5, "divide": 1,
}  # fmt: skip


def _steps(random: Random, case: Json, shapes: Shapes) -> list[Json]:
    steps: list[Json] = []
    edits: list[Json] = []
    for _ in range(random.choice([4, 8, 16, 32])):
        if steps and random.random() < 0.15:
            steps.append(_between(random, case, shapes))
        steps.append(_run(random, case, shapes, edits))
        edits += steps[-1]["edits"]
    return steps


def _between(random: Random, case: Json, shapes: Shapes) -> Json:
    names = [n for n in _BETWEEN if "state" not in n or leaves(case, "state")]
    name = random.choices(names, [_BETWEEN[n] for n in names])[0]
    if name == "optimize":
        return {"do": name, "mode": random.choice(MODES), "steps": random.randint(1, 4)}
    if name == "set_state":
        leaf = random.choice(list(leaves(case, "state").values()))
        return {"do": name, "edit": _edit(random, leaf)}
    if name == "divide":
        return {"do": name, "view": random.random()}
    if name == "plan_for":
        return {"do": name, "want": _want(random, shapes)}
    return {"do": name}


def _run(random: Random, case: Json, shapes: Shapes, before: list[Json]) -> Json:
    found = list(leaves(case, "input").values())
    edited = random.sample(found, min(len(found), random.choice([0, 1, 1, 1, 1, 2, 2, 3])))
    edits = [_edit(random, leaf) for leaf in edited for _ in range(random.choice([1, 1, 1, 2, 3]))]
    if before and random.random() < 0.15:
        edits.append(random.choice(before))  # a value that was there before
    if before and random.random() < 0.3:
        edits = [_elsewhere(random, case, random.choice(before))]
    step: Json = {"do": "run", "edits": edits}
    if random.random() < 0.4:
        step["want"] = _want(random, shapes)
    if edits and random.random() < 0.3:
        step |= _where_edited(random, case, shapes, edits[-1])
    if random.random() < 0.08:
        step["keep"] = False
    if random.random() < 0.1:
        step["copy"] = False
    if random.random() < 0.15:
        step["changed"] = random.choice(["exact", "hull", "all"])
        step["check"] = random.random() < 0.3
    if random.random() < 0.3:
        step["only_edited"] = True
    return step


def _edit(random: Random, leaf: Json) -> Json:
    """New numbers for a box of a leaf: one element, some, or all."""
    shape, edit = leaf["shape"], {"name": leaf["name"], "seed": random.randint(0, 10**6)}
    kind = random.choice(["element", "element", "box", "box", "row", "all"])
    if kind == "all" or leaf["fill"]["kind"] == "distinct":
        return edit | {"box": [[0, size] for size in shape]}
    if kind == "row" and shape:
        axis = random.randrange(len(shape))
        at = random.randrange(shape[axis])
        return edit | {"box": [[at, at + 1] if i == axis else [0, n] for i, n in enumerate(shape)]}
    return edit | {"box": [_interval(random, n, 1 if kind == "element" else n) for n in shape]}


def _elsewhere(random: Random, case: Json, edit: Json) -> Json:
    """A change of that size at another place: the program for the first one is moved there."""
    leaf = leaves(case, "input")[edit["name"]]
    extents = [stop - start for start, stop in edit["box"]]
    starts = [random.randint(0, n - e) for n, e in zip(leaf["shape"], extents, strict=True)]
    box = [[start, start + e] for start, e in zip(starts, extents, strict=True)]
    return edit | {"box": box, "seed": random.randint(0, 10**6)}


def _where_edited(random: Random, case: Json, shapes: Shapes, edit: Json) -> Json:
    """What lies beside a change is asked for, as by whoever writes a word and looks at the next."""
    leaf = leaves(case, "input")[edit["name"]]
    sides = [
        (name, axis, *side)
        for size, side in zip(leaf["shape"], edit["box"], strict=True)
        for name, shape in shapes.items()
        for axis, other in enumerate(shape)
        if other == size > 1
    ]
    if not sides:
        return {}
    name, axis, start, stop = random.choice(sides)
    return {"want": {name: [*[[None, None, None]] * axis, [start, stop, None]]}}


def _interval(random: Random, size: int, most: int) -> list[int]:
    start = random.randrange(size)
    return [start, random.randint(start + 1, min(size, start + most))]


def _want(random: Random, shapes: Shapes) -> Json:
    """Parts of some outputs, as indices."""
    chosen = random.sample(list(shapes), random.randint(1, len(shapes)))
    return {name: _wish(random, shapes[name]) for name in chosen}


def _wish(random: Random, shape: tuple[int, ...]) -> Any:
    kind = random.choice(["all", "part", "part", "part", "list"])
    if kind == "all" or not shape:
        return ["..."]
    if kind == "list":
        return {"list": [_part(random, shape) for _ in range(random.randint(1, 3))]}
    return _part(random, shape)


def _part(random: Random, shape: tuple[int, ...]) -> list[Any]:
    """A basic index of the first dimensions, or of the last ones behind an ellipsis."""
    count = random.randint(1, len(shape))
    if random.random() < 0.2:
        return ["...", *(_along(random, size) for size in shape[len(shape) - count :])]
    return [_along(random, size) for size in shape[:count]]


def _along(random: Random, size: int) -> Any:
    start, stop = _interval(random, size, size)
    return random.choice([start, start - size, [start, stop, None], [None, None, None]])
