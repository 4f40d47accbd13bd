"""`tgbench compile`: compile the kernels of this processor, once, and say so.

$ tgbench compile
compiled in 48 s: /home/me/.venv/lib/python3.12/site-packages/tgbench/kernels/numba/__pycache__

Sessions start this beside where nobody did, and until it is done they compute with what libraries
have ready. In an image that containers start from, it is a line of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from tgbench.base.errors import TgbenchError
from tgbench.base.regions import Box
from tgbench.base.words import Progress, format_time
from tgbench.commands.progress import bar, say
from tgbench.costs.model import CostModel
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.graph.ops.elementwise import exp, sigmoid, tanh, where
from tgbench.graph.ops.images.conv import conv
from tgbench.graph.ops.images.pool import avg_pool, max_pool
from tgbench.graph.ops.images.resample import upsample
from tgbench.graph.ops.index import gather
from tgbench.graph.ops.nn import (
    attention,
    gated_linear,
    gelu,
    hardsigmoid,
    hardswish,
    layer_norm,
    linear,
    prelu,
    relu,
    rms_norm,
    rope,
    silu,
    softmax,
    widening_linear,
)
from tgbench.graph.ops.products.gathered import gather_linear
from tgbench.graph.ops.recurrent import CELLS, CellKind
from tgbench.graph.ops.reduce import mean
from tgbench.graph.ops.scan import linear_recurrence
from tgbench.kernels import beside
from tgbench.kernels.numba import rows
from tgbench.kernels.numba.marking import mark
from tgbench.kernels.registry import KERNELS, Kernel, Site, View, scratch_views
from tgbench.kernels.torch.packed import SPATIAL
from tgbench.kernels.views import dense

WIDE, ROWS = 512, 4  # of samples: a matrix of so many columns is worth a team


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--again", action="store_true", help="look at all, though it was done")


def run(arguments: argparse.Namespace) -> int:
    """0, also where there is nothing to do."""
    done = mark()
    if done is None:
        say("nothing is compiled here: numba is not installed, or no folder keeps what it makes")
        return 0
    beside.insist()
    began = time.perf_counter()
    with beside.alone(done):
        if done.exists() and not arguments.again:
            say(f"compiled already: {done.parent}")
            return 0
        beside.be_modest()
        with bar() as progress:
            compile_all(progress)
        done.touch()
    say(f"compiled in {format_time((time.perf_counter() - began) * 1e9)}: {done.parent}")
    return 0


def compile_all(progress: Progress) -> None:
    """Bind every kernel that compiles, at samples of what models ask for."""
    found = list(bindings())
    for i, (kernel, site) in enumerate(found):
        progress(i, len(found), kernel.name)
        with suppress(TgbenchError):
            kernel.bind(site, scratch_views(kernel.scratch(site)))
    progress(len(found), len(found), "chains")
    rows.compile_chains()


def bindings() -> Iterator[tuple[Kernel, Site]]:
    """Kernels that compile, with the sites of samples that they take."""
    costs = CostModel()
    for node in samples():
        site = costs.site(node.call, Box.full(node.shape))
        sites = site, replace(site, ins=tuple(map(_turned, range(len(site.ins)), site.ins)))
        for kernel in KERNELS.get(node.op, ()):
            taken = filter(kernel.takes, sites) if kernel.compiles else iter(())
            if (found := next(taken, None)) is not None:
                yield kernel, found


def _turned(i: int, view: View | None) -> View | None:
    """An image whose channels lie side by side, or the columns of a matrix that it is multiplied
    by.
    """
    if view is not None and view.rank == 2 + SPATIAL and i == 0:
        images, channels, *sizes = view.shape
        lies = dense((images, *sizes, channels), view.dtype).permute(0, -1, 1, 2)
        return replace(lies, buffer=view.buffer)
    if view is not None and view.rank == 2 and i == 1:
        return replace(dense(view.shape[::-1], view.dtype).transpose(), buffer=view.buffer)
    return view


def samples() -> list[Node]:
    """A call of every kind that loops compute, in the dtypes that models have; the commonest first:
    whoever waits for all of them, what is half done serves the next process.
    """
    g = GraphBuilder()
    x, w, bias = _of(g, ROWS, WIDE), _weight(g, WIDE, WIDE), _weight(g, WIDE)
    q, keys = (_of(g, 1, heads, ROWS, 64) for heads in (4, 2))
    image, window = _of(g, 1, 16, 8, 8), _weight(g, 32, 16, 3, 3)
    mask = g.input("mask", (1, 1, ROWS, ROWS), "bool")
    found = [
        linear(x, w, bias), linear(x, w), layer_norm(x, bias, bias), attention(q, keys, keys),
        gelu(x), conv(image, window, padding=1), relu(x), softmax(x), x + bias, rms_norm(x, bias),
        gated_linear(x, w, w), silu(x), rope(q, _of(g, ROWS, 64), _of(g, ROWS, 64)),
        conv(_of(g, 1, 16, 3, 3), window, bias[:32]), tanh(x), sigmoid(x),
        attention(q, keys, keys, mask), q.permute(0, 2, 1, 3), x[:, 1:], exp(x),
        q @ _of(g, 1, 4, 64, 1), linear_recurrence(x, x, x[:1]),
        attention(q, keys, keys, _of(g, 1, 1, ROWS, ROWS)),
        max_pool(image, 2), avg_pool(image, 2).inputs[0], upsample(image, size=16), hardswish(x),
        hardsigmoid(x), where(_of(g, ROWS, WIDE) > 0.0, x, bias), prelu(x, bias),
        mean(image, (2, 3)), conv(image, _weight(g, 16, 1, 3, 3), groups=16),
    ]  # fmt: skip
    found += [_steps(g, kind, cell) for kind, cell in CELLS.items()]
    for dtype in ("int64", "int32"):
        ids = g.input(f"ids_{dtype}", (ROWS,), dtype)
        found += [gather(w, ids), ids.reshape(2, ROWS // 2).permute(1, 0)]
        found += [gather_linear(x, _weight(g, 4, WIDE, WIDE), ids)]
    for dtype in ("bfloat16", "float16", "int8"):
        less = g.parameter(f"w_{dtype}", (WIDE, WIDE), dtype)
        found += [widening_linear(x, less), widening_linear(x, less, bias)]
    return found


def _steps(g: GraphBuilder, kind: str, cell: CellKind) -> Node:
    """Of a recurrent layer."""
    wide = cell.gates * WIDE
    return g.apply(
        kind, _of(g, ROWS, 1, wide), _weight(g, wide, WIDE), _weight(g, wide),
        _of(g, 1, 1, cell.states * WIDE), **cell.attrs,
    )  # fmt: skip


def _of(g: GraphBuilder, *shape: int) -> Node:
    return g.input("x" + "_".join(map(str, (len(g.nodes), *shape))), shape)


def _weight(g: GraphBuilder, *shape: int) -> Node:
    return g.parameter("w" + "_".join(map(str, (len(g.nodes), *shape))), shape)
