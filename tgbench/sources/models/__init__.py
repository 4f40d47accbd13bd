"""Models as graph builders, their checkpoints, and text in and out."""

from tgbench.sources.models.bert import bert
from tgbench.sources.models.gemma3 import gemma3
from tgbench.sources.models.text import Tokenizer, complete, generate, stream

__all__ = ["Tokenizer", "bert", "complete", "gemma3", "generate", "stream"]
