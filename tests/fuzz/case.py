"""A case: a graph, the options of a session, and what is done with it, all as plain JSON.

nodes     leaves {"op", "name", "shape", "dtype", "fill", "seed"}; ops {"op", "args", "attrs"}
outputs   name → number of a node
updates   [{"state", "value"}], with {"at", "axis"} for slices; at: a number, or [node]
options   of the session; see `replay`
steps     {"do": "run", …} and what else `replay` knows
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fuzz.ops  # noqa: F401  (fills the table)
import tgbench as tg
from fuzz import fills
from fuzz.bounded import Bounded, exact
from fuzz.ops.indexing import scattered
from fuzz.table import TABLE, written
from tgbench import ops
from tgbench.graph.graph import Graph

Json = dict[str, Any]
Array = np.ndarray[Any, Any]
LEAVES = ("input", "parameter", "constant", "state")


def leaves(case: Json, *kinds: str) -> dict[str, Json]:
    """The leaves of these kinds, by name."""
    return {node["name"]: node for node in case["nodes"] if node["op"] in kinds}


def first_value(leaf: Json) -> Array:
    """What a leaf holds at first."""
    return fills.values(leaf["fill"], leaf["shape"], leaf["dtype"], leaf["seed"])


def trimmed(case: Json) -> Json:
    """The case without the nodes that nothing needs."""
    wanted = set(case["outputs"].values())
    for update in case["updates"]:
        wanted |= {update["state"], update["value"], *_index_of(update)}
    for i in reversed(range(len(case["nodes"]))):
        if i in wanted:
            wanted.update(case["nodes"][i].get("args", ()))
    number = {old: new for new, old in enumerate(sorted(wanted))}
    return case | {
        "nodes": [_renumbered(case["nodes"][old], number) for old in sorted(wanted)],
        "outputs": {name: number[i] for name, i in case["outputs"].items()},
        "updates": [_moved(update, number) for update in case["updates"]],
    }


def _index_of(update: Json) -> list[int]:
    at = update.get("at")
    return at if isinstance(at, list) else []


def _renumbered(node: Json, number: Mapping[int, int]) -> Json:
    return node | {"args": [number[i] for i in node["args"]]} if "args" in node else node


def _moved(update: Json, number: Mapping[int, int]) -> Json:
    found = update | {key: number[update[key]] for key in ("state", "value")}
    if _index_of(update):
        found["at"] = [number[i] for i in _index_of(update)]
    return found


# --- the graph by the public API ------------------------------------------------------------------


def graph_lines(case: Json) -> list[str]:
    """The graph as Python; constants are variables of their own name."""
    names = node_names(case)
    lines = ["g = tg.GraphBuilder()"]
    for name, node in zip(names, case["nodes"], strict=True):
        lines.append(f"{name} = {_expression(node, names)}")
    lines += [_update_line(update, names) for update in case["updates"]]
    lines += [f"g.output({name!r}, {names[i]})" for name, i in case["outputs"].items()]
    return lines


def node_names(case: Json) -> list[str]:
    """A variable for each node: leaves have their names."""
    return [node.get("name", f"n{i}") for i, node in enumerate(case["nodes"])]


def _expression(node: Json, names: Sequence[str]) -> str:
    if node["op"] == "constant":
        return f"g.constant(v_{node['name']}, {node['dtype']!r})"
    if node["op"] in LEAVES:
        return f"g.{node['op']}({node['name']!r}, {tuple(node['shape'])}, {node['dtype']!r})"
    return written(node["op"], [names[i] for i in node["args"]], node["attrs"])


def _update_line(update: Json, names: Sequence[str]) -> str:
    state, value = names[update["state"]], names[update["value"]]
    if "at" not in update:
        return f"g.update({state}, {value})"
    at = names[update["at"][0]] if _index_of(update) else update["at"]
    return f"g.update({state}, {value}, at={at}, axis={update['axis']})"


def build(case: Json) -> Graph:
    """The graph; raises GraphError where the builder refuses it."""
    scope: Json = {"tg": tg, "ops": ops, "np": np}
    scope |= {f"v_{name}": first_value(leaf) for name, leaf in leaves(case, "constant").items()}
    for line in graph_lines(case):
        exec(line, scope)
    graph: Graph = scope["g"].build()
    return graph


# --- the graph by torch ---------------------------------------------------------------------------


def evaluate(case: Json, values: Mapping[str, Bounded]) -> list[Bounded]:
    """Every node, by the fuzzer's own table."""
    found: list[Bounded] = []
    for node in case["nodes"]:
        if node["op"] in LEAVES:
            found.append(values[node["name"]])
        else:
            inputs = [found[i] for i in node["args"]]
            found.append(TABLE[node["op"]].compute(*inputs, **node["attrs"]))
    return found


def fixed_values(case: Json) -> dict[str, Bounded]:
    """Parameters and constants."""
    found = leaves(case, "parameter", "constant")
    return {n: exact(torch.tensor(first_value(leaf)), leaf["dtype"]) for n, leaf in found.items()}


def updated_states(case: Json, found: Sequence[Bounded]) -> dict[str, Bounded]:
    """What the states hold after a run; a state without an update is left out."""
    result = {}
    for update in case["updates"]:
        before, value = found[update["state"]], found[update["value"]]
        name = case["nodes"][update["state"]]["name"]
        result[name] = value if "at" not in update else _written(before, value, update, found)
    return result


def _written(before: Bounded, value: Bounded, update: Json, found: Sequence[Bounded]) -> Bounded:
    axis = update["axis"] % before.rank
    count = value.shape[axis]
    if not _index_of(update):
        at = torch.arange(count) + update["at"]
        return scattered(before, exact(at, "int64"), value, axis)
    index = found[update["at"][0]]
    rows = index.value.reshape(-1)
    rows = rows + torch.arange(count) if rows.numel() == 1 else rows
    return scattered(before, Bounded(rows, index.error.sum().expand(count), "int64"), value, axis)


# --- files ----------------------------------------------------------------------------------------


def save(case: Json, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(case, indent=1) + "\n")


def load(path: Path) -> Json:
    case: Json = json.loads(path.read_text())
    return case
