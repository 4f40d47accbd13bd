"""Checking a session against pairs of inputs and outputs that another framework gave."""

from tgbench.checking.check import check
from tgbench.checking.pairs import Pair, load_pairs, save_pairs
from tgbench.checking.report import CheckReport

__all__ = ["CheckReport", "Pair", "check", "load_pairs", "save_pairs"]
