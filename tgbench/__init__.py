"""tgbench: exact incremental programs of tensor graphs under a memory budget."""

from tgbench import models, ops
from tgbench.arena import Arena
from tgbench.buckets import Bucket, BucketClass, BucketSpace
from tgbench.checking import CheckReport, Pair, check, load_pairs, save_pairs
from tgbench.cost import CostModel
from tgbench.errors import (
    BudgetError,
    CheckError,
    DemandError,
    ExactnessError,
    ExportError,
    GraphError,
    HintError,
    ImporterError,
    InputError,
    KernelError,
    PackingError,
    PlanError,
    RecordsError,
    SearchError,
    TgbenchError,
    TraceError,
    UnsupportedOpError,
    WeightsError,
    WidgetError,
)
from tgbench.estimate import MemoryEstimate, estimate_memory
from tgbench.graph import Graph, GraphBuilder, Node, dim
from tgbench.graphfile import load_graph, save_graph
from tgbench.importers import Imported, Support, from_pt2, from_torch, supported
from tgbench.plan import Plan
from tgbench.profiler import profile
from tgbench.records import Records
from tgbench.reference import evaluate
from tgbench.regions import Box, Region
from tgbench.report import Report
from tgbench.session import GraphSession
from tgbench.trace import Trace
from tgbench.views.show import attach as _attach_views
from tgbench.weights import Weights
from tgbench.whatif import WhatIf

_attach_views()

__version__ = "0.1.0"

__all__ = [
    "Arena", "Box", "Bucket", "BucketClass", "BucketSpace", "BudgetError", "CheckError",
    "CheckReport", "CostModel", "DemandError", "ExactnessError", "ExportError", "Graph",
    "GraphBuilder", "GraphError", "GraphSession", "HintError", "Imported", "ImporterError",
    "InputError", "KernelError", "MemoryEstimate", "Node", "PackingError", "Pair", "Plan",
    "PlanError", "Records", "RecordsError", "Region", "Report", "SearchError", "Support",
    "TgbenchError", "Trace", "TraceError", "UnsupportedOpError", "Weights", "WeightsError",
    "WhatIf", "WidgetError", "check", "dim", "estimate_memory", "evaluate", "from_pt2",
    "from_torch", "load_graph", "load_pairs", "models", "ops", "profile", "save_graph",
    "save_pairs", "supported",
]  # fmt: skip
