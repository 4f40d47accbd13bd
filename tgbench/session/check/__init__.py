"""Checking a session against pairs of inputs and outputs that another framework gave."""

from tgbench.session.check.check import check
from tgbench.session.check.pairs import Pair, load_pairs, save_pairs
from tgbench.session.check.report import CheckReport

__all__ = ["CheckReport", "Pair", "check", "load_pairs", "save_pairs"]
