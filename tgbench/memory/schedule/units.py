"""Exact simplifications: tasks that run in one go, and places where an order can be cut.

unit   a task, and others that can wait for it without making any step worse
cut    beside a unit that comes before or after every other one, in whatever order
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tgbench.memory.schedule.tasks import Tasks, covers

Unit: TypeAlias = tuple[int, ...]  # tasks that run one right after the other


def units_of(tasks: Tasks) -> list[Unit]:
    """Tasks that may run in one go in some best order, in the order of their last ones."""
    members: dict[int, list[int]] = {}
    for task in range(len(tasks.nodes)):
        joined: list[int] = []
        for parent in tasks.inputs[task]:
            if _can_wait(tasks, parent, task):
                more = members.pop(parent)
                joined = joined + more if joined else more
        joined.append(task)
        members[task] = joined
    return [tuple(unit) for unit in _with_followers(tasks, members)]


def _can_wait(tasks: Tasks, task: int, user: int) -> bool:
    """Whether putting a task off until its only user never makes a step worse.

    It takes at least what it frees, and the user's own step is at least as high as its own.
    """
    if tasks.held[task] or tasks.users[task] != (user,):
        return False
    frees = sum(tasks.sizes[read] for read in tasks.inputs[task] if not tasks.held[read])
    room = tasks.scratch[user] + (0 if tasks.donors[user] else tasks.sizes[user])
    needs = tasks.scratch[task] + frees
    return covers(tasks.sizes[task], frees) and covers(room, needs)


def _with_followers(tasks: Tasks, members: dict[int, list[int]]) -> Iterator[list[int]]:
    """A task without bytes that only one other leads to runs right behind that one."""
    units = dict(members)
    owner = {task: last for last, unit in members.items() for task in unit}
    for last in sorted(members):
        if members[last] != [last] or tasks.sizes[last] or tasks.scratch[last]:
            continue
        if tasks.users[last] or len(tasks.inputs[last]) != 1:
            continue
        units[owner[tasks.inputs[last][0]]].append(last)
        del units[last]
    return iter(units.values())


def cuts_of(tasks: Tasks, units: Sequence[Unit]) -> list[int]:
    """Positions where the state is the same in every order: around units that all others meet."""
    count = len(units)
    where = {task: i for i, unit in enumerate(units) for task in unit}
    first, last = [count] * count, [-1] * count
    for i, unit in enumerate(units):
        for parent in {where[p] for task in unit for p in tasks.inputs[task]} - {i}:
            first[parent] = min(first[parent], i)
            last[i] = max(last[i], parent)
    meets_later = [count] * (count + 1)
    for i in range(count - 1, -1, -1):
        meets_later[i] = min(meets_later[i + 1], last[i])
    found, meets_earlier = {0, count}, -1
    for i in range(count):
        if meets_earlier <= i <= meets_later[i + 1]:
            found |= {i, i + 1}
        meets_earlier = max(meets_earlier, first[i])
    return sorted(found)
