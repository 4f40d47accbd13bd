"""tgbench: exact incremental programs of tensor graphs under a memory budget."""

from tgbench import models, ops
from tgbench.arena import Arena
from tgbench.buckets import Bucket, BucketClass, BucketSpace
from tgbench.cost import CostModel
from tgbench.errors import (
    BudgetError,
    DemandError,
    GraphError,
    HintError,
    InputError,
    KernelError,
    PackingError,
    PlanError,
    RecordsError,
    SearchError,
    TgbenchError,
    TraceError,
    WeightsError,
)
from tgbench.estimate import MemoryEstimate, estimate_memory
from tgbench.graph import Graph, GraphBuilder, Node, dim
from tgbench.plan import Plan
from tgbench.profiler import profile
from tgbench.records import Records
from tgbench.reference import evaluate
from tgbench.regions import Box, Region
from tgbench.report import Report
from tgbench.session import GraphSession
from tgbench.trace import Trace
from tgbench.weights import Weights

__version__ = "0.1.0"

__all__ = [
    "Arena", "Box", "Bucket", "BucketClass", "BucketSpace", "BudgetError", "CostModel",
    "DemandError", "Graph", "GraphBuilder", "GraphError", "GraphSession", "HintError", "InputError",
    "KernelError", "MemoryEstimate", "Node", "PackingError", "Plan", "PlanError", "Records",
    "RecordsError", "Region", "Report", "SearchError", "TgbenchError", "Trace", "TraceError",
    "Weights", "WeightsError", "dim", "estimate_memory", "evaluate", "models", "ops", "profile",

]  # fmt: skip
