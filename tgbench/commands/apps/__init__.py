"""What exact incremental runs are good for: one module and one command an application.

occlusion   which parts of an image a classifier looks at
streaming   a causal audio network, block of samples by block
editing     embeddings of a document while it is edited
completion  a language model that writes on after every edit of its prompt
"""

from tgbench.commands.apps.completion import Completion, completions
from tgbench.commands.apps.editing import EditReport, edit
from tgbench.commands.apps.occlusion import OcclusionMap, occlusion
from tgbench.commands.apps.streaming import Stream, stream

__all__ = [
    "Completion", "EditReport", "OcclusionMap", "Stream", "completions", "edit", "occlusion",
    "stream",
]  # fmt: skip
