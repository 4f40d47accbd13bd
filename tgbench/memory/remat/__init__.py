"""Rematerialisation inside one run: some values computed again, so that fewer bytes are live.

    Schedule        values with costs, sizes and inputs, in a topological order
    rematerialise   schedule, budget → a `Tape`: what to compute in which order
    tightest        schedule → a tape that takes as little memory as is found

The order of a sequence is free: a value is computed again, or for the first time, where that is
cheapest. Where the bytes of each computation lie is not decided here.
"""

from tgbench.memory.remat.planner import Rematerialisation, rematerialise, tightest
from tgbench.memory.remat.policies import POLICIES, Policy, simulate
from tgbench.memory.remat.schedule import Schedule, Value, least_bytes
from tgbench.memory.remat.tape import Tape

__all__ = [
    "POLICIES",
    "Policy",
    "Rematerialisation",
    "Schedule",
    "Tape",
    "Value",
    "least_bytes",
    "rematerialise",
    "simulate",
    "tightest",
]
