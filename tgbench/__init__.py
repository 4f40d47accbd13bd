"""tgbench: exact incremental programs of tensor graphs under a memory budget."""

__version__ = "0.1.0"
