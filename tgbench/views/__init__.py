"""Views: values in, pictures out. The payloads are plain data, tested without a browser.

Widgets are imported when they are first asked for, as `tgbench.views.MemoryTimeline`; they need
the `lab` extra.
"""

from importlib import import_module
from typing import Any

WIDGETS = {
    "AliasMap": "alias_map",
    "BudgetCurve": "budget_curve",
    "GraphMap": "graph_map",
    "Listing": "listing",
    "MemoryTimeline": "memory_timeline",
    "PlanBar": "plan_bar",
    "ProgramList": "program_list",
    "RegionInspector": "region_inspector",
    "SearchMonitor": "search_monitor",
    "Selection": "widget",
    "TransitionMap": "transition_map",
    "Panel": "widget",
    "Workbench": "workbench",
    "explore": "workbench",
}


def __getattr__(name: str) -> Any:
    if name not in WIDGETS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.panels.{WIDGETS[name]}"), name)
