"""Attention of many rows, out of blocks: the compiled half.

    keys of a head, laid out   ──→ scores of some rows, a block after the other
    softmax of each row            over the keys that the mask leaves any of them
    values of a head, laid out ──→ their sums

Keys and values are laid out as panels once for all rows of all heads that share them; then both
products are those of `blocks`. Keys behind the last that is open to a group of rows are not
computed, which is half of a causal mask. Scores lie at the number of their key modulo `PAD`, so
that the sum of a row has one order, whichever keys are asked about.
"""

from __future__ import annotations
