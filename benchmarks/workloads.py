"""Graphs with the traces that they are used with: what plans and cache policies are judged on.

    prefill_decode        a prompt, then a token a call, and again with the next prompt
    decode_edits          the same, with edits in the middle of what was written
    two_documents         two documents through the same weights, in turns
    encoder_edits         tokens of a batch of texts change at random, embeddings are asked for
    occlusion             a patch moves over an image, class scores are asked for
    random_layered        random layers; a Markov chain over a few kinds of calls
    unet_like             down and up again, with skips; the image, a style or the head changes
    adversarial           what simple policies are known to be bad at

Every trace is made of buckets alone; no array is needed, and nothing runs. The same arguments give
the same workload. The first call changes everything, as a session's first run does. Sizes: "small"
has fewer than 100 nodes and 40 calls, "bench" some hundreds of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.graph import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.simplify import simplify
from tgbench.runs.buckets import Bucket
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import MINILM, bert_reduced, gemma3_reduced

Size: TypeAlias = Literal["small", "bench"]
Spot: TypeAlias = "tuple[tuple[int, int], ...]"  # an interval per dimension


@dataclass(frozen=True)
class Workload:
    """A graph, simplified as a session does it, and a trace of it.

    Fields:
        buckets: in order; the first call changes every input.
    """

    name: str
    graph: Graph
    buckets: tuple[Bucket, ...]


def box(*intervals: tuple[int, int]) -> Region:
    return Region((Box(intervals),))


def _everything(graph: Graph) -> dict[str, Region]:
    return {name: Region.full(node.shape) for name, node in graph.inputs.items()}


def _workload(name: str, graph: Graph, trace: Callable[[Graph], Iterator[Bucket]]) -> Workload:
    """Simplify the graph, and let the trace begin with everything changed."""
    simple = simplify(graph)
    first, *rest = trace(simple)
    whole = Bucket.of(_everything(simple), dict(first.demand))
    return Workload(name, simple, (whole, *rest))


# --- a language model ----------------------------------------------------------------------------


def _small_decoder(tokens: int) -> Graph:
    """One causal layer, without norms: few nodes, and K and V come out as what is kept."""
    g = GraphBuilder()
    ids = g.input("ids", (1, tokens), "int64")
    x = ops.embedding(g.parameter("table", (64, 16)), ids)
    mask = ops.tril(g.constant(np.ones((tokens, tokens), bool)))
    for layer in range(2):
        q, k, v = (
            g.name(ops.linear(x, g.parameter(f"{part}{layer}", (16, 16))), f"{part}.{layer}")
            .reshape(1, tokens, 2, 8)
            .permute(0, 2, 1, 3)
            for part in "qkv"
        )
        mixed = ops.attention(q, k, v, mask).permute(0, 2, 1, 3).reshape(1, tokens, 16)
        x = x + ops.linear(mixed, g.parameter(f"o{layer}", (16, 16)))
        wide = ops.gelu(ops.linear(x, g.parameter(f"up{layer}", (32, 16))))
        x = x + ops.linear(wide, g.parameter(f"down{layer}", (16, 32)))
    g.output("logits", ops.linear(x, g.parameter("head", (64, 16))))
    return g.build()


def _decoder(size: Size, layers: int = 6, tokens: int = 128) -> Graph:
    """At bench size, layers as wide as those of Gemma 3 270M: nothing runs, only costs differ."""
    if size == "small":
        return _small_decoder(24)
    wide = {"hidden_size": 640, "intermediate_size": 2048, "head_dim": 256}
    heads = {"num_attention_heads": 4, "vocab_size": 32_768, "sliding_window": 32}
    return gemma3(gemma3_reduced(num_hidden_layers=layers, **wide, **heads), tokens=tokens)


@dataclass
class _Document:
    """The ids of one input so far: `end` of them are written, what comes after is padding."""

    name: str
    logits: str
    tokens: int
    rng: np.random.Generator
    vocab: int
    end: int = 0

    def call(self, start: int, stop: int) -> Bucket:
        """Ids [start:stop] change, the last written position is asked for."""
        last = box((0, 1), (self.end - 1, self.end), (0, self.vocab))
        return Bucket.of({self.name: box((0, 1), (start, stop))}, {self.logits: last})

    def prefill(self) -> Bucket:
        """A new prompt over the old text; both begin with the same few ids."""
        before = self.end
        self.end = int(self.rng.integers(self.tokens // 4, self.tokens // 2))
        shared = int(self.rng.integers(1, 4)) if before else 0
        return self.call(shared, max(before, self.end))

    def append(self) -> Bucket:
        self.end += 1
        return self.call(self.end - 1, self.end)

    def edit(self) -> Bucket:
        """One to four ids change somewhere in the second half of the text."""
        length = int(self.rng.integers(1, 5))
        start = int(self.rng.integers(self.end // 2, max(self.end - length, self.end // 2 + 1)))
        return self.call(start, min(start + length, self.end))

    def next(self, edits: float) -> Bucket:
        """An append or an edit; a new prompt where the text is full, or now and then."""
        if not self.end or self.end == self.tokens or self.rng.random() < 0.02:
            return self.prefill()
        return self.edit() if self.rng.random() < edits else self.append()


def _document(graph: Graph, name: str, logits: str, rng: np.random.Generator) -> _Document:
    _, tokens, vocab = graph.outputs[logits].shape
    return _Document(name, logits, tokens, rng, vocab)


def prefill_decode(size: Size = "small", seed: int = 0, edits: float = 0.0) -> Workload:
    """A prompt, then a token a call; `edits` is the share of calls that edit old tokens instead."""

    def trace(graph: Graph) -> Iterator[Bucket]:
        document = _document(graph, "ids", "logits", np.random.default_rng(seed))
        for _ in range(_calls(size)):
            yield document.next(edits)

    name = "decode with edits" if edits else "prefill and decode"
    return _workload(name, _decoder(size), trace)


def decoding(name: str, graph: Graph, calls: int, prompts: int, edits: float) -> Workload:
    """Prompts evenly spread over the calls, and a token a call or an edit after each."""

    def trace(simple: Graph) -> Iterator[Bucket]:
        document = _document(simple, "ids", "logits", np.random.default_rng(0))
        for i in range(calls):
            begins = i % (calls // prompts) == 0
            yield document.prefill() if begins else document.next(edits)

    return _workload(name, graph, trace)


def decode_edits(size: Size = "small", seed: int = 0) -> Workload:
    """Decoding in which every fifth call edits old tokens."""
    return prefill_decode(size, seed, edits=0.2)


def towers(graph: Graph, names: Sequence[str]) -> Graph:
    """One graph that holds several copies of another over the same parameters.

    Inputs and outputs are called `{old name}_{name of the copy}`.
    """
    builder = GraphBuilder()
    for name in names:
        new: dict[Node, Node] = {}
        for node in graph.nodes:
            inputs = tuple(new[parent] for parent in node.inputs)
            if node.op == "input":
                new[node] = builder.input(f"{node.name}_{name}", node.shape, node.dtype)
            elif node.is_leaf:
                new[node] = copy_node(builder, node, inputs)
            else:
                new[node] = builder.apply(
                    node.op, *inputs, name=f"{name}.{node.name}", **node.attrs
                )
        for output, node in graph.outputs.items():
            builder.output(f"{output}_{name}", new[node])
    return builder.build()


def two_documents(size: Size = "small", seed: int = 0) -> Workload:
    """Two documents through the same weights; each is written for a burst of calls."""
    one = _decoder(size, layers=4, tokens=96)

    def trace(graph: Graph) -> Iterator[Bucket]:
        rng = np.random.default_rng(seed)
        pair = [_document(graph, f"ids_{name}", f"logits_{name}", rng) for name in "ab"]
        turn = 0
        for _ in range(_calls(size)):
            yield pair[turn].next(edits=0.1)
            turn = turn if rng.random() < 0.85 else 1 - turn

    return _workload("two documents", towers(simplify(one), "ab"), trace)


def _calls(size: Size) -> int:
    return 40 if size == "small" else 300


# --- an encoder ----------------------------------------------------------------------------------


def encoder_edits(size: Size = "small", seed: int = 0) -> Workload:
    """One to three tokens of one text change; its embedding is asked for, or those of all."""
    tokens, batch = (8, 3) if size == "small" else (32, 6)

    def trace(graph: Graph) -> Iterator[Bucket]:
        rng = np.random.default_rng(seed)
        wide = int(graph.outputs["embedding"].shape[1])
        text = 0
        yield Bucket.of({}, {"embedding": Region.full((batch, wide))})
        for _ in range(_calls(size) - 1):
            text = text if rng.random() < 0.6 else int(rng.integers(batch))
            start = int(rng.integers(tokens))
            stop = min(start + int(rng.integers(1, 4)), tokens)
            rows = (text, text + 1) if rng.random() < 0.7 else (0, batch)
            changed = {"ids": box((text, text + 1), (start, stop))}
            yield Bucket.of(changed, {"embedding": box(rows, (0, wide))})

    config = (
        bert_reduced(num_hidden_layers=1) if size == "small" else MINILM | {"num_hidden_layers": 8}
    )
    return _workload("edits on an encoder", bert(config, tokens, batch), trace)


# --- an image ------------------------------------------------------------------------------------


def _stencil(x: Node, name: str) -> Node:
    """The 3 × 3 neighbourhood of each pixel, weighted along rows, then along columns.

    x is [rows, columns, channels]; a border of zeros is put around it. Each channel has weights of
    its own, 3 in each direction.
    """
    for axis in (0, 1):
        border = tuple(int(axis == other) for other in range(3))
        padded = ops.pad(x, border, border, 0.0)
        weight = x.builder.parameter(f"{name}_{axis}", (3, x.shape[2]))
        parts = [
            padded[tuple(slice(at, at + x.shape[axis]) if axis == other else slice(None)
                         for other in range(3))] * weight[at]
            for at in range(3)
        ]  # fmt: skip
        x = parts[0] + parts[1] + parts[2]
    return x


def _pooled(x: Node) -> Node:
    """Means over 2 × 2 pixels."""
    rows, columns, channels = x.shape
    return ops.mean(x.reshape(rows // 2, 2, columns // 2, 2, channels), (1, 3))


def _image_model(side: int, levels: Sequence[Sequence[int]], classes: int = 10) -> Graph:
    """Layers of a stencil per channel and a mix of channels; half as many pixels at each level.

    Args:
        levels: the channels after each layer of each level.
    """
    g = GraphBuilder()
    x = g.input("image", (side, side, 3))
    for level, widths in enumerate(levels):
        x = _pooled(x) if level else x
        for i, wide in enumerate(widths):
            with g.scope(f"layer_{level}_{i}"):
                x = _stencil(x, f"stencil{level}{i}") if x.shape[-1] > 3 else x
                mix = g.parameter(f"mix{level}{i}", (x.shape[-1], wide))
                x = g.name(ops.relu(x @ mix), "out")
    wide = levels[-1][-1]
    features = g.name(ops.mean(x, (0, 1)), "features").reshape(1, wide)
    g.output("scores", features @ g.parameter("head", (wide, classes)))
    return g.build()


def occlusion(size: Size = "small", seed: int = 0) -> Workload:
    """A patch moves over an image in steps: its old place and its new place change.

    The image itself is another one now and then.
    """
    side, patch = (16, 4) if size == "small" else (64, 16)
    levels = ((4,), (8,)) if size == "small" else ((16, 16, 16, 16), (64, 64, 64), (64, 64))

    def trace(graph: Graph) -> Iterator[Bucket]:
        rng = np.random.default_rng(seed)
        scores = {"scores": Region.full(graph.outputs["scores"].shape)}
        step = patch // 2
        places = [(r, c) for r in range(0, side - patch + 1, step)
                  for c in range(0, side - patch + 1, step)]  # fmt: skip
        before = at = int(rng.integers(len(places)))
        for _ in range(_calls(size)):
            if rng.random() < 0.02:
                yield Bucket.of(_everything(graph), scores)
                before = at = int(rng.integers(len(places)))
                continue
            at = (at + 1) % len(places)
            where = [
                Box(((r, r + patch), (c, c + patch), (0, 3)))
                for r, c in (places[before], places[at])
            ]
            yield Bucket.of({"image": Region.of(*where)}, scores)
            before = at

    return _workload("occlusion sweep", _image_model(side, levels), trace)


# --- random graphs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of call: inputs that change as a whole, and outputs that are asked for as a whole."""

    changed: tuple[str, ...]
    demand: tuple[str, ...]

    def bucket(self, graph: Graph) -> Bucket:
        changed = {n: Region.full(graph.inputs[n].shape) for n in self.changed}
        demand = {n: Region.full(graph.outputs[n].shape) for n in self.demand}
        return Bucket.of(changed, demand)


def markov(
    kinds: Sequence[Kind], moves: Any, calls: int, rng: np.random.Generator
) -> Callable[[Graph], Iterator[Bucket]]:
    """A trace that goes from kind i to kind j with probability moves[i][j]."""
    rows = np.asarray(moves, float)
    rows = rows / rows.sum(axis=1, keepdims=True)

    def trace(graph: Graph) -> Iterator[Bucket]:
        at = 0
        for _ in range(calls):
            yield kinds[at].bucket(graph)
            at = int(rng.choice(len(kinds), p=rows[at]))

    return trace


def sticky(count: int, rng: np.random.Generator, stay: float = 0.7) -> Any:
    """A transition matrix that stays where it is with a probability, and else goes anywhere."""
    moves = rng.dirichlet(np.ones(count), count) * (1 - stay)
    return moves + np.eye(count) * stay


def random_layered(size: Size = "small", seed: int = 0) -> Workload:
    """Layers of nodes that read one to three of the two layers before, of very unequal widths."""
    layers, width = (4, 4) if size == "small" else (14, 9)
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    rows = 8 if size == "small" else 32
    before = [[g.input(f"in{i}", (rows, _width(rng))) for i in range(3)]]
    for layer in range(layers):
        pool = [node for nodes in before[-2:] for node in nodes]
        before.append([_mixed(g, f"n{layer}_{i}", pool, rng) for i in range(width)])
    for i, node in enumerate(before[-1][:3]):
        g.output(f"out{i}", node)
    graph = g.build()
    kinds = _random_kinds(graph, rng)
    trace = markov(kinds, sticky(len(kinds), rng), _calls(size), rng)
    return _workload("random layers", graph, trace)


def _width(rng: np.random.Generator) -> int:
    """8 to 128, small ones as likely as large ones."""
    return int(2 ** rng.uniform(3, 7))


def _mixed(g: GraphBuilder, name: str, pool: Sequence[Node], rng: np.random.Generator) -> Node:
    """A product of some nodes side by side with a matrix, or a cheap function of one of them."""
    chosen = [
        pool[int(i)] for i in rng.choice(len(pool), min(len(pool), 1 + int(rng.integers(3))), False)
    ]
    if len(chosen) == 1 and rng.random() < 0.7:
        return g.name(ops.tanh(chosen[0]) * g.scalar(float(rng.integers(2, 9)), "float32"), name)
    x = ops.concat(chosen) if len(chosen) > 1 else chosen[0]
    return g.name(x @ g.parameter(f"w_{name}", (x.shape[-1], _width(rng))), name)


def _random_kinds(graph: Graph, rng: np.random.Generator, count: int = 3) -> list[Kind]:
    """Kinds of calls that each change one or two inputs and ask for one or two outputs."""

    def some(names: Sequence[str]) -> tuple[str, ...]:
        most = min(2, len(names))
        return tuple(sorted(rng.choice(names, int(rng.integers(1, most + 1)), replace=False)))

    return [Kind(some(list(graph.inputs)), some(list(graph.outputs))) for _ in range(count)]


def unet_like(size: Size = "small", seed: int = 0) -> Workload:
    """Rows are halved on the way down and doubled on the way up, where the skips come in.

    Three kinds of calls: another image, another style (it enters at the bottom), another scale of
    the head. The last two leave all skips as they are.
    """
    depth, rows, wide, blocks = (3, 16, 4, 1) if size == "small" else (5, 512, 64, 6)
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    x = g.input("image", (rows, wide))
    style, scale = g.input("style", (1, wide)), g.input("scale", (1, wide))
    skips: list[Node] = []
    for level in range(depth):
        x = _block(g, x, f"down{level}", wide, blocks)
        skips.append(x)
        x = x.reshape(x.shape[0] // 2, 2 * wide) @ g.parameter(f"halve{level}", (2 * wide, wide))
    x = ops.tanh(x + style)
    for level in reversed(range(depth)):
        grown = x @ g.parameter(f"double{level}", (wide, 2 * wide))
        x = ops.concat([grown.reshape(2 * x.shape[0], wide), skips[level]])
        x = _block(g, x, f"up{level}", wide, blocks)
    g.output("picture", ops.tanh(x * scale))
    kinds = [Kind((name,), ("picture",)) for name in ("image", "style", "scale")]
    trace = markov(kinds, sticky(3, rng, stay=0.6), _calls(size), rng)
    return _workload("skips", g.build(), trace)


def _block(g: GraphBuilder, x: Node, name: str, wide: int, count: int) -> Node:
    for i in range(count):
        x = ops.tanh(x @ g.parameter(f"{name}_{i}", (x.shape[-1], wide)))
    return g.name(x, name)


def adversarial(size: Size = "small", seed: int = 0, form: str = "sizes") -> Workload:
    """What simple policies are known to be bad at.

    Args:
        form: "sizes": cheap large values are read often, small expensive ones rarely;
            "cycle": kinds of calls come in a fixed circle, so that the least recently used value
            is the one that is needed next;
            "phases": what is asked for often changes half-way;
            "jumps": the next kind does not depend on the last one, and hardly ever repeats.

    Raises GraphError for another form.
    """
    if form not in FORMS:
        raise GraphError(f"form {form!r} is not known; use one of {', '.join(FORMS)}")
    branches, rows, depth = (6, 16, 1) if size == "small" else (16, 64, 4)
    rng = np.random.default_rng(seed)
    graph, calls = _branches(branches, rows, depth, rng), _calls(size)
    kinds = [Kind(("switch",), (f"out{i}",)) for i in range(branches)]
    trace = markov(kinds, FORMS[form](branches), calls, rng)
    if form == "phases":
        halves = [markov(kinds, _favoured(branches, first), calls // 2, rng)
                  for first in (0, branches // 2)]  # fmt: skip

        def trace(graph: Graph) -> Iterator[Bucket]:
            for half in halves:
                yield from half(graph)

    return _workload(f"adversarial, {form}", graph, trace)


def _branches(count: int, rows: int, depth: int, rng: np.random.Generator) -> Graph:
    """Branches from one base: half of them expensive and narrow, half cheap and wide.

    Each ends in an output that also reads a switch, which changes at every call.
    """
    g = GraphBuilder()
    base, switch = g.input("base", (rows, 64)), g.input("switch", (1, 8))
    for i in range(count):
        x = base
        for level in range(depth):
            if i % 2:  # wide
                x = ops.concat([x, x * g.scalar(2.0 + i, "float32")]) if x.shape[-1] < 256 else -x
            else:
                inner = 64 * int(rng.integers(2, 5))
                hidden = ops.tanh(x @ g.parameter(f"a{i}_{level}", (x.shape[-1], inner)))
                x = hidden @ g.parameter(f"b{i}_{level}", (inner, 64 if level + 1 < depth else 8))
            x = g.name(x, f"branch{i}_{level}")
        summary = ops.mean(x.reshape(rows, 8, x.shape[-1] // 8), -1)
        g.output(f"out{i}", summary * switch)
    return g.build()


def _favoured(count: int, first: int = 0) -> Any:
    """Some kinds are far more frequent than the others, whatever came before."""
    share = np.ones(count)
    share[first : first + max(count // 4, 1)] = 4 * count
    return np.tile(share, (count, 1))


def _often_wide(count: int) -> Any:
    """Wide branches are asked for five times as often as expensive ones."""
    return np.tile([5.0 if i % 2 else 1.0 for i in range(count)], (count, 1))


def _circle(count: int) -> Any:
    return np.roll(np.eye(count), 1, axis=1)


def _jumps(count: int) -> Any:
    return np.ones((count, count)) - 0.95 * np.eye(count)


FORMS: Mapping[str, Callable[[int], Any]] = {
    "sizes": _often_wide, "cycle": _circle, "phases": _favoured, "jumps": _jumps,
}  # fmt: skip

NAMED: tuple[Callable[[Size, int], Workload], ...] = (
    prefill_decode, decode_edits, two_documents, encoder_edits, occlusion,
)  # fmt: skip
RANDOM: tuple[Callable[[Size, int], Workload], ...] = (
    random_layered, unet_like, *(partial(adversarial, form=form) for form in FORMS),
)  # fmt: skip


def workloads(size: Size = "small", seed: int = 0) -> list[Workload]:
    """The five kinds of trace of real models, and the random and adversarial ones."""
    return [make(size, seed) for make in (*NAMED, *RANDOM)]
