"""Graphs from other libraries."""

from tgbench.sources.torch.imported import Imported
from tgbench.sources.torch.importing import from_pt2, from_torch, supported
from tgbench.sources.torch.support import Support

__all__ = ["Imported", "Support", "from_pt2", "from_torch", "supported"]
