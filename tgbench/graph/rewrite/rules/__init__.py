"""The rules, by what they are about. Each is one line of data with a name.

`RULES` keep values but for rounding; those of `LESS` do not, and are for whoever allows an error.
"""

from __future__ import annotations

from tgbench.graph.rewrite.rule import AnyRule
from tgbench.graph.rewrite.rules.arithmetic import ARITHMETIC
from tgbench.graph.rewrite.rules.fused import FUSED
from tgbench.graph.rewrite.rules.less import LESS
from tgbench.graph.rewrite.rules.motion import MOTION
from tgbench.graph.rewrite.rules.norms import NORMS
from tgbench.graph.rewrite.rules.products import PRODUCTS
from tgbench.graph.rewrite.rules.rowwise import ROWWISE
from tgbench.graph.rewrite.rules.slices import SLICES
from tgbench.graph.rewrite.rules.sums import SUMS

__all__ = ["LESS", "RULES"]

RULES: tuple[AnyRule, ...] = (
    *FUSED, *ARITHMETIC, *SUMS, *MOTION, *SLICES, *PRODUCTS, *NORMS, *ROWWISE,
)  # fmt: skip
