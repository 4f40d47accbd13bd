"""A small session whose search does not end by itself: graph and trace of `search_cases`."""

from __future__ import annotations

import time

import numpy as np
from search_cases import COLUMNS, ROWS, busy_case

from tgbench import GraphSession  # with all that a front page brings: `explore` too
from tgbench.runs.trace import LoggedCall, Trace


def busy_session() -> GraphSession:
    """A session that ran once, with the case's trace and budget."""
    case = busy_case()
    trace = Trace()
    for bucket in case.buckets:
        trace.append(LoggedCall(bucket, True, 1_000_000, time.time()))
    weights = {name: np.eye(COLUMNS, dtype=np.float32) for name in case.graph.parameters}
    session = GraphSession(case.graph, weights, trace=trace)
    zeros = {name: np.zeros((ROWS, COLUMNS), np.float32) for name in case.graph.inputs}
    session.run(zeros)
    session.budget_bytes = case.budget_bytes
    return session
