"""Exact incremental programs for static tensor graphs, under a memory budget."""

__version__ = "0.1.0"
