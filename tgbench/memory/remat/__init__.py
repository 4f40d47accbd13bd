"""Rematerialisation inside one run: compute some values again, so that a run fits its budget.

    Schedule        values with costs, sizes and inputs, in a topological order
    rematerialise   schedule, budget → a `Recipe`: what to compute when, and where each value lies
    replay          the slow checker of a recipe

The order of a sequence is free: a value is computed again, or for the first time, where that is
cheapest. An engine takes the sequence in stages, each in schedule order.
"""

from tgbench.memory.remat.planner import Progress, Rematerialisation, rematerialise
from tgbench.memory.remat.policies import POLICIES, Policy, simulate
from tgbench.memory.remat.recipe import Recipe, Stage
from tgbench.memory.remat.replay import replay
from tgbench.memory.remat.schedule import Schedule, Value, least_bytes

__all__ = [
    "POLICIES",
    "Policy",
    "Progress",
    "Recipe",
    "Rematerialisation",
    "Schedule",
    "Stage",
    "Value",
    "least_bytes",
    "rematerialise",
    "replay",
    "simulate",
]
