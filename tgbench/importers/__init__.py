"""Graphs from other libraries."""

from tgbench.importers.imported import Imported
from tgbench.importers.support import Support
from tgbench.importers.torch_export import from_pt2, from_torch, supported

__all__ = ["Imported", "Support", "from_pt2", "from_torch", "supported"]
