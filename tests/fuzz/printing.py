"""A case as a Python test: the public API, and numbers as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzz import fills
from fuzz.bounded import exact
from fuzz.case import Array, Json, evaluate, first_value, fixed_values, graph_lines, leaves
from fuzz.table import indexed, text


def python_test(case: Json) -> str:
    """A test function that makes the same graph, session and steps.

    Where the graph has no states, and no run is left out, the last run is compared with what the
    evaluator says; else what should come out is said by the failure.
    """
    lines = [
        f"v_{n} = {literal(first_value(leaf))}" for n, leaf in leaves(case, "constant").items()
    ]
    lines += graph_lines(case)
    lines += ["graph = g.build()", f"weights = {_arrays(leaves(case, 'parameter'))}"]
    lines += [f"session = tg.GraphSession(graph, weights{_options(case['options'])})"]
    now = {name: first_value(leaf) for name, leaf in leaves(case, "input").items()}
    lines += [f"{name} = {literal(array)}" for name, array in now.items()]
    for step in case["steps"]:
        lines += _step(case, step, now)
    lines += _comparison(case, now)
    body = "\n".join(f"    {line}" for line in lines)
    head = "import numpy as np\nimport tgbench as tg\nfrom tgbench import ops\n\n\n"
    return f"{head}def test_found_by_fuzzing():\n{body}\n"


def literal(array: Array) -> str:
    """An array as Python."""
    numbers = text(_lists(array.tolist()))
    return f"np.array({numbers}, np.{array.dtype}).reshape({array.shape})"


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, list) else value


def _arrays(found: dict[str, Json]) -> str:
    return (
        "{" + ", ".join(f"{n!r}: {literal(first_value(leaf))}" for n, leaf in found.items()) + "}"
    )


def _options(options: Json) -> str:
    known = ("memory", "retain", "buckets", "packed_bytes", "exact", "making")
    found = {key: options[key] for key in known if options.get(key) is not None}
    return "".join(f", {key}={value!r}" for key, value in {**found, "calibrate": False}.items())


def _step(case: Json, step: Json, now: dict[str, Array]) -> list[str]:
    if step["do"] == "run":
        return _run(case, step, now)
    if step["do"] == "optimize":
        return [f"session.optimize({step['mode']!r}, steps={step['steps']})"]
    if step["do"] == "set_state":
        edit = step["edit"]
        leaf = leaves(case, "state")[edit["name"]]
        name = edit["name"]
        value = literal(_numbers(leaf, edit))
        return [
            f"{name} = session.state_value({name!r})", f"{name}[{_place(edit)}] = {value}",
            f"session.set_state({name!r}, {name})",
        ]  # fmt: skip
    if step["do"] == "reload":
        return [f"session = tg.GraphSession(graph, weights, plan=session.plan"
                f"{_options(case['options'])})"]  # fmt: skip
    if step["do"] == "divide":
        return [
            "from tgbench.session.what_if import WhatIf", "scheduled = session.scheduled",
            "views = [n.name for n in scheduled.schedule if n in scheduled.views]",
            f"what = WhatIf.of(session).retained(views[int({step['view']} * len(views))])",
            "session.adopt(what.plan)",
        ]  # fmt: skip
    return [f"session.{step['do']}()"]


def _numbers(leaf: Json, edit: Json) -> Array:
    shape = [z - a for a, z in edit["box"]]
    return fills.values(leaf["fill"], shape, leaf["dtype"], edit["seed"])


def _place(edit: Json) -> str:
    return indexed([[a, z, None] for a, z in edit["box"]]) or "()"


def _run(case: Json, step: Json, now: dict[str, Array]) -> list[str]:
    lines = []
    for edit in step["edits"]:
        leaf = leaves(case, "input")[edit["name"]]
        numbers = _numbers(leaf, edit)
        now[edit["name"]][tuple(slice(a, z) for a, z in edit["box"])] = numbers
        lines.append(f"{edit['name']}[{_place(edit)}] = {literal(numbers)}")
    given = ", ".join(f"{name!r}: {name}" for name in now)
    options = "".join(
        f", {key}={step[key]!r}" for key in ("keep", "copy", "changed", "check") if key in step
    )
    want = "" if not step.get("want") else f", want={_wishes(step['want'])}"
    return [*lines, f"found = session.run({{{given}}}{want}{options})"]


def _wishes(want: Json) -> str:
    parts = []
    for name, wish in want.items():
        if isinstance(wish, dict):
            parts.append(f"{name!r}: [{', '.join(f'np.s_[{indexed(p)}]' for p in wish['list'])}]")
        else:
            parts.append(f"{name!r}: np.s_[{indexed(wish)}]")
    return "{" + ", ".join(parts) + "}"


def _comparison(case: Json, now: dict[str, Array]) -> list[str]:
    """What the last run should have given, if all of it was asked for."""
    last = case["steps"][-1] if case["steps"] else {"do": ""}
    if last["do"] != "run" or last.get("want") or leaves(case, "state"):
        return []
    values = {n: exact(torch.tensor(now[n]), leaf["dtype"])
              for n, leaf in leaves(case, "input").items()}  # fmt: skip
    found = evaluate(case, {**fixed_values(case), **values})
    lines = []
    for name, i in case["outputs"].items():
        right, slack = found[i].value.numpy(), found[i].error.numpy()
        lines.append(f"right = {literal(np.asarray(right))}")
        lines.append(f"slack = {literal(np.asarray(slack))}")
        lines.append(f"assert (abs(found[{name!r}] - right) <= slack).all()")
    return lines
