"""The public names, and how results show themselves: what `tgbench` is once a name is asked for."""

from tgbench.sources import models
from tgbench.graph import ops
from tgbench.memory.arena import Arena
from tgbench.runs.buckets import Bucket, BucketClass, BucketSpace
from tgbench.session.check import CheckReport, Pair, check, load_pairs, save_pairs
from tgbench.costs.model import CostModel
from tgbench.base.errors import (
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
    RecordsWarning,
    SearchError,
    TgbenchError,
    TraceError,
    UnsupportedOpError,
    WeightsError,
    WidgetError,
)
from tgbench.memory.estimate import MemoryEstimate, estimate_memory
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.graph_file import load_graph, save_graph
from tgbench.sources.torch import Imported, Support, from_pt2, from_torch, supported
from tgbench.plans.plan import Plan
from tgbench.session.placing import Placing, place
from tgbench.session.profile import profile
from tgbench.costs.records import Records
from tgbench.graph.reference import evaluate
from tgbench.base.regions import Box, Region
from tgbench.session.report import Report
from tgbench.session.session import GraphSession
from tgbench.runs.trace import Trace
from tgbench.views.show import attach as _attach_views
from tgbench.base.safetensors import Weights
from tgbench.session.what_if import WhatIf

_attach_views()

__all__ = [
    "Arena", "Box", "Bucket", "BucketClass", "BucketSpace", "BudgetError", "CheckError",
    "CheckReport", "CostModel", "DemandError", "ExactnessError", "ExportError", "Graph",
    "GraphBuilder", "GraphError", "GraphSession", "HintError", "Imported", "ImporterError",
    "InputError", "KernelError", "MemoryEstimate", "Node", "PackingError", "Pair", "Placing",
    "Plan", "PlanError", "Records", "RecordsError", "RecordsWarning", "Region", "Report",
    "SearchError", "Support", "TgbenchError", "Trace", "TraceError", "UnsupportedOpError",
    "Weights", "WeightsError", "WhatIf", "WidgetError", "check", "dim", "estimate_memory",
    "evaluate", "from_pt2", "from_torch", "load_graph", "load_pairs", "models", "ops", "place",
    "profile", "save_graph", "save_pairs", "supported",
]  # fmt: skip
