"""Fused ops found in graphs that were written without them, such as imported ones.

    graph ─→ loops   steps that were written out, all at once
          ─→ cells   written out in atomic ops
          ─→ terms   one form for equal arithmetic
          ─→ forms   what each fused op of the table looks like
          ─→ cover   which of them replace what
          ─→ margins zeros around images, taken into convolutions
          ─→ experts products with matrices that an index names
          ─→ layers  products with weights, whichever way these lie
          ─→ layout  permutes moved behind what works on rows
          ─→ affine  scales and shifts of channels moved into weights

Nothing is known of models here: an op is found by its decomposition.
"""

from __future__ import annotations

from tgbench.graph.graph import Graph
from tgbench.graph.recognise.affine import into_weights
from tgbench.graph.recognise.cover import cover, covered
from tgbench.graph.recognise.experts import by_index
from tgbench.graph.recognise.layers import as_layers
from tgbench.graph.recognise.layout import rows_first
from tgbench.graph.recognise.loops import rolled_up
from tgbench.graph.recognise.margins import into_windows
from tgbench.graph.simplify import simplify

__all__ = ["recognise"]


def recognise(graph: Graph) -> Graph:
    """The graph with fused ops in place of what equals their decompositions.

    The graph should be simplified. Values stay the same but for rounding: sums and products may be
    taken in another order, that of the op. Scales and shifts of channels after a convolution or a
    linear layer go into its weights. Where nothing is found, the graph itself comes back.

    >>> import tgbench.graph.ops as ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (2, 8))
    >>> g.output("y", x / (1.0 + ops.exp(-x)))
    >>> print(recognise(g.build()))
    x: float32[2, 8] = input()
    div: float32[2, 8] = silu(x)
    output y = div
    """
    found = rolled_up(graph)
    found = found if found is graph else simplify(found)
    while taken := cover(found):
        found = simplify(covered(found, taken))
    moved = rows_first(as_layers(by_index(into_windows(found))))
    return into_weights(found if moved is found else simplify(moved))
