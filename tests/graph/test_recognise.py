"""Recognition: fused ops come back from their decompositions, however these are spelled."""

from __future__ import annotations

import doctest
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Maker, graphs

import tgbench.graph.ops as ops
import tgbench.graph.recognise as module
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import OPS, Attrs, OpDef, numpy_dtype, register, same_dtype
from tgbench.graph.recognise import recognise
from tgbench.graph.recognise.atomic import Cells
from tgbench.graph.recognise.checker import Checker
from tgbench.graph.recognise.cover import patterns
from tgbench.graph.recognise.normal_form import (
    FULL,
    NUMBER,
    PRODUCT,
    SUM,
    TOTAL,
    Term,
    Terms,
    term_of,
)
from tgbench.graph.reference import evaluate
from tgbench.graph.simplify import simplify
from tgbench.sources.models.bert import bert
from tgbench.sources.models.checkpoints import bert_reduced, gemma3_reduced
from tgbench.sources.models.gemma3 import gemma3

Array = np.ndarray[Any, Any]
Make = Callable[[GraphBuilder], Node]
NEVER = {
    "rowwise",  # what paths have in place of clusters
    "upsample",  # written out as gathers and sums that depend on the sizes
    "widening_linear",  # what a session makes of `linear`
}


def graph_of(make: Make) -> Graph:
    g = GraphBuilder()
    g.output("y", make(g))
    return simplify(g.build())


def computed(graph: Graph) -> list[Node]:
    """What a run computes: no leaves, no views, nothing that depends on weights alone."""
    fixed: set[Node] = set()
    for node in graph.nodes:
        leaf_is_fixed = node.op in ("parameter", "constant")
        if leaf_is_fixed if node.is_leaf else all(parent in fixed for parent in node.inputs):
            fixed.add(node)
    views = ("reshape", "permute", "expand")
    return [n for n in graph.nodes if not n.is_leaf and n not in fixed and n.op not in views]


def written_out(graph: Graph) -> Graph:
    """A graph without fused ops."""

    def atomic(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        definition = None if node.is_leaf else OPS[node.op]
        if definition is None or definition.decompose is None:
            return copy_node(builder, node, inputs)
        return definition.decompose(node.attrs, *inputs)

    while any(not node.is_leaf and OPS[node.op].is_fused for node in graph.nodes):
        graph = graph.rebuild(atomic)
    return simplify(graph)


def drawn(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    values = {}
    for node in graph.nodes:
        if node.is_leaf and node.op != "constant":
            scale = rng.normal(size=node.shape)
            whole = rng.integers(0, 2, node.shape)
            is_float = node.dtype.startswith("float")
            values[node.name] = (scale if is_float else whole).astype(numpy_dtype(node.dtype))
    return values


def assert_same_values(before: Graph, after: Graph, tolerance: float = 2e-6) -> None:
    values = drawn(before)
    kept = {node.name for node in after.nodes}
    with np.errstate(all="ignore"):
        expected = evaluate(before, values)
        found = evaluate(after, {name: a for name, a in values.items() if name in kept})
    for name, array in expected.items():
        assert array.dtype == found[name].dtype
        scale = max(1.0, float(np.abs(array[np.isfinite(array)]).max(initial=0)))
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance * scale)


def structure(graph: Graph) -> dict[str, str]:
    """A hash of each output's expression: leaves by name, op nodes without their names."""
    seen: dict[Node, str] = {}
    for node in graph.nodes:
        attrs = [
            (key, f"{value:.6g}" if isinstance(value, float) else repr(value))
            for key, value in sorted(node.attrs.items())
        ]
        name = node.name if node.is_leaf and node.op != "constant" else ""
        line = (node.op, name, attrs, str(node.type), [seen[parent] for parent in node.inputs])
        seen[node] = hashlib.sha256(repr(line).encode()).hexdigest()
    return {name: seen[node] for name, node in graph.outputs.items()}


# --- every fused op, from its own decomposition ---------------------------------------------------

SIZES = st.integers(2, 5)
NUMBERS = st.floats(0.01, 3, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def applied(draw: Any, op: str, dtype: str) -> Graph:
    """A fused op of random shapes and attributes, alone in a graph."""
    g = GraphBuilder()
    a, b, c, d = (draw(SIZES) for _ in range(4))
    number = draw(NUMBERS)
    lead = [draw(SIZES) for _ in range(draw(st.integers(1, 3)))]
    x = g.input("x", (*lead, 2 * d), dtype)

    def weight(name: str, *shape: int) -> Node:
        return g.parameter(name, shape, dtype)

    width = 2 * d
    if op in ("rms_norm", "layer_norm"):
        weights = [weight("w", width), weight("b", width)][: 1 + (op == "layer_norm")]
        y = g.apply(op, x, *weights, eps=number / 1e4)
    elif op in ("group_norm", "channel_affine"):
        image = g.input("image", (a, 2 * b, *lead), dtype)
        weights = [weight("w", 2 * b), weight("b", 2 * b)]
        if op == "channel_affine":
            y = ops.channel_affine(image, *weights)
        else:
            with_weights = draw(st.booleans())
            y = g.apply(op, image, *(weights if with_weights else []), groups=2, eps=number / 1e4)
    elif op == "prelu":
        slopes = draw(st.sampled_from([(1,), (width,), (lead[-1], 1)]))
        y = ops.prelu(x, weight("slope", *slopes))
    elif op == "linear":
        y = ops.linear(x, weight("w", a, width), draw(st.sampled_from([None, weight("b", a)])))
    elif op == "gated_linear":
        kind = draw(st.sampled_from(["gelu_tanh", "gelu", "silu", "relu"]))
        y = ops.gated_linear(x, weight("w", a, width), weight("u", a, width), kind)
    elif op == "rope":
        y = ops.rope(x, weight("cos", lead[-1], width), weight("sin", lead[-1], width))
    elif op == "attention":
        y = draw_attention(draw, g, (a, b, c, d), dtype)
    else:
        attrs = {
            "softmax": {"axis": draw(st.integers(0, x.rank - 1))},
            "gelu": {"approximate": draw(st.sampled_from(["none", "tanh"]))},
            "clamp": {"low": -number, "high": number},
            "leaky_relu": {"slope": number / 4},
            "elu": {"alpha": number},
            "softplus": {"beta": number, "threshold": 20.0},
        }.get(op, {})
        y = g.apply(op, x, **attrs)
    g.output("y", y)
    return g.build()


def draw_attention(draw: Any, g: GraphBuilder, sizes: tuple[int, ...], dtype: str) -> Node:
    batch, shared, tokens, depth = sizes
    times = draw(st.integers(1, 3))
    keys = tokens + draw(st.integers(1, 2))
    q = g.input("q", (batch, shared * times, tokens, depth), dtype)
    k, v = (g.input(name, (batch, shared, keys, depth), dtype) for name in "kv")
    rows = np.tri(tokens, keys, k=keys - tokens, dtype=bool)
    mask = draw(st.sampled_from([None, g.constant(rows), g.input("mask", (tokens, keys), dtype)]))
    return ops.attention(q, k, v, mask, scale=draw(NUMBERS))


FUSED = sorted(name for name, op in OPS.items() if op.is_fused and name not in NEVER)


def test_every_fused_op_has_a_form() -> None:
    assert {pattern.form.op for pattern in patterns()} >= set(FUSED)


@pytest.mark.parametrize("op", FUSED)
@settings(max_examples=12)
@given(data=st.data())
def test_a_decomposition_becomes_its_op_again(op: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    fused = data.draw(applied(op, dtype))
    atomic = written_out(fused)
    found = recognise(atomic)
    assert structure(found) == structure(simplify(fused)), f"{atomic}\n\n{found}"
    assert_same_values(atomic, found, 1e-5 if dtype == "float32" else 1e-12)


# --- other spellings ------------------------------------------------------------------------------


def leaves(g: GraphBuilder) -> tuple[Node, Node, Node]:
    return g.input("x", (2, 3, 8)), g.parameter("w", (8,)), g.parameter("b", (8,))


def rms(spell: Callable[[Node, Node], Node]) -> Make:
    return lambda g: spell(*leaves(g)[:2])


def normed(spell: Callable[[Node, Node, Node], Node]) -> Make:
    return lambda g: spell(*leaves(g))


def unary(spell: Callable[[Node], Node]) -> Make:
    return lambda g: spell(leaves(g)[0])


def variance(x: Node) -> Node:
    centred = x - ops.sum_(x, -1, keepdims=True) / 8.0
    return ops.sum_(centred**2.0, -1, keepdims=True) * 0.125


def mean_of_squares(x: Node) -> Node:
    return ops.mean(x**2.0, -1, keepdims=True)


ROOT = float(np.sqrt(2 / np.pi))
SPELLINGS: dict[str, tuple[Make, list[str]]] = {
    "rms: pow": (
        rms(lambda x, w: x * (mean_of_squares(x) + 1e-6) ** -0.5 * w),
        ["rms_norm"],
    ),
    "rms: weight first": (
        rms(lambda x, w: w * (x * ops.rsqrt(1e-5 + ops.sum_(x * x, -1, keepdims=True) / 8.0))),
        ["rms_norm"],
    ),
    "rms: divided by a root": (
        rms(lambda x, w: x / ops.sqrt(mean_of_squares(x) + 1e-6) * w),
        ["rms_norm"],
    ),
    "rms: reciprocal": (
        rms(lambda x, w: x * ops.reciprocal(ops.sqrt(mean_of_squares(x) + 1e-6)) * (1.0 + w)),
        ["rms_norm"],
    ),
    "rms: mean without keepdims": (
        rms(lambda x, w: x * ops.rsqrt(ops.mean(x * x, -1)[..., None] + 1e-6) * w),
        ["rms_norm"],
    ),
    "rms: of a scaled input": (
        rms(lambda x, w: (x * 8.0) / ops.sqrt(mean_of_squares(x * 8.0) + 1e-6) * w),
        ["mul", "rms_norm"],
    ),
    "rms: without weight": (
        unary(lambda x: x * ops.rsqrt(mean_of_squares(x) + 1e-6)),
        ["rms_norm"],
    ),
    "rms: two weights": (
        normed(lambda x, w, b: x * ops.rsqrt(mean_of_squares(x) + 1e-6) * w * b * 2.0),
        ["rms_norm"],
    ),
    "layer norm: variance apart": (
        normed(lambda x, w, b: (x - ops.mean(x, -1, keepdims=True))
               / ops.sqrt(variance(x) + 1e-5) * w + b),
        ["layer_norm"],
    ),
    "layer norm: bias first": (
        normed(lambda x, w, b: b + w * ((x - ops.mean(x, -1, keepdims=True))
                                        * (variance(x) + 1e-5) ** -0.5)),
        ["layer_norm"],
    ),
    "layer norm: var": (
        normed(lambda x, w, b: (x - ops.mean(x, -1, keepdims=True)) * w
               * ops.rsqrt(ops.var(x, -1, keepdims=True, correction=0) + 1e-5) + b),
        ["layer_norm"],
    ),
    "layer norm: without bias": (
        normed(lambda x, w, b: (x - ops.mean(x, -1, keepdims=True))
               * ops.rsqrt(variance(x) + 1e-5) * w),
        ["layer_norm"],
    ),
    "layer norm: without weights": (
        unary(lambda x: (x - ops.mean(x, -1, keepdims=True)) * ops.rsqrt(variance(x) + 1e-5)),
        ["layer_norm"],
    ),
    "softmax: of a sum": (
        unary(lambda x: (lambda e: e / ops.sum_(e, 1, keepdims=True))(
            ops.exp(x + x - ops.max_(x + x, 1, keepdims=True)))),
        ["add", "softmax"],
    ),
    "softmax: reciprocal": (
        unary(lambda x: (lambda e: ops.reciprocal(ops.sum_(e, -1)[..., None]) * e)(
            ops.exp(x - ops.max_(x, -1)[..., None]))),
        ["softmax"],
    ),
    "silu: sigmoid first": (unary(lambda x: ops.sigmoid(x) * x), ["silu"]),
    "silu: exp": (unary(lambda x: x / (ops.exp(-x) + 1.0)), ["silu"]),
    "gelu: half first": (
        unary(lambda x: 0.5 * x * (1.0 + ops.tanh(ROOT * (x + 0.044715 * x**3.0)))),
        ["gelu"],
    ),
    "gelu: a sum of products": (
        unary(lambda x: x * (0.5 + 0.5 * ops.tanh(x * ROOT + 0.044715 * ROOT * (x * x * x)))),
        ["gelu"],
    ),
    "gelu: a factor taken out": (
        unary(lambda x: 0.5 * x * (1.0 + ops.tanh(x * ROOT * (1.0 + 0.044715 * x * x)))),
        ["gelu"],
    ),
    "gelu: erf": (
        unary(lambda x: x * (1.0 + ops.erf(x / float(np.sqrt(2.0)))) * 0.5),
        ["gelu"],
    ),
    "gelu: erf, halves apart": (
        unary(lambda x: (0.5 * x) * (ops.erf(x * float(np.sqrt(0.5))) + 1.0)),
        ["gelu"],
    ),
    "relu: zero first": (
        lambda g: g.apply("maximum", g.scalar(0.0, "float32"), leaves(g)[0]),
        ["relu"],
    ),
    "clamp: high first": (
        unary(lambda x: ops.maximum(ops.minimum(x, 3.0), -1.0)),
        ["clamp"],
    ),
    "leaky relu: less": (
        unary(lambda x: ops.where(x.builder.scalar(0.0, "float32") < x, x, 0.1 * x)),
        ["leaky_relu"],
    ),
    "hardswish: written out": (
        unary(lambda x: x * ops.minimum(ops.maximum(x + 3.0, 0.0), 6.0) * (1 / 6)),
        ["hardswish"],
    ),
    "mish: written out": (
        unary(lambda x: x * ops.tanh(ops.softplus(x))),
        ["mish"],
    ),
}  # fmt: skip


def product(spell: Callable[[Node, Node, Node], Node]) -> Make:
    return lambda g: spell(
        g.input("x", (2, 3, 8)), g.parameter("w", (5, 8)), g.parameter("b", (5,))
    )


def gated(spell: Callable[[Node, Node], Node]) -> Make:
    def make(g: GraphBuilder) -> Node:
        x = g.input("x", (2, 3, 8))
        gate, up = g.parameter("gate", (5, 8)), g.parameter("up", (5, 8))
        return spell(ops.linear(x, gate), x @ up.transpose())

    return make


def turned(spell: Callable[[Node, Node, Node], Node], width: int = 8) -> Make:
    return lambda g: spell(
        g.input("x", (2, 4, 3, 8)), g.parameter("cos", (3, width)), g.parameter("sin", (3, width))
    )


def half_turned(x: Node, cos: Node, sin: Node) -> Node:
    a, b = ops.split(x, (4, 4))
    return ops.concat([a * cos - b * sin, a * sin + b * cos])


SPELLINGS |= {
    "linear: addmm": (
        product(lambda x, w, b: (b + x.reshape(6, 8) @ w.transpose()).reshape(2, 3, 5)),
        ["linear"],
    ),
    "linear: and a residual": (
        product(lambda x, w, b: (x @ w.transpose() + b) + x[..., :5]),
        ["linear", "slice", "add"],
    ),
    "gated: silu": (gated(lambda gate, up: up * (gate * ops.sigmoid(gate))), ["gated_linear"]),
    "gated: gelu": (
        gated(lambda gate, up: 0.5 * gate * up * (1.0 + ops.erf(gate / 2**0.5))),
        ["gated_linear"],
    ),
    "gated: relu": (gated(lambda gate, up: ops.maximum(gate, 0.0) * up), ["gated_linear"]),
    "rope: added the other way": (
        turned(lambda x, cos, sin: sin * ops.concat([-x[..., 4:], x[..., :4]]) + cos * x),
        ["rope"],
    ),
    "rope: of a norm": (
        turned(lambda x, cos, sin: (lambda n: n * cos + ops.concat([n[..., 4:] * -1.0, n[..., :4]])
                                    * sin)(x * ops.rsqrt(mean_of_squares(x) + 1e-6) * cos[0])),
        ["rms_norm", "rope"],
    ),
    "rope: half tables": (turned(half_turned, 4), ["rope"]),
}  # fmt: skip


def attended(spell: Callable[[Node, Node, Node], Node], shared: int = 4, depth: int = 8) -> Make:
    def make(g: GraphBuilder) -> Node:
        q = g.input("q", (2, 4, 3, depth))
        k, v = (g.input(name, (2, shared, 3, depth)) for name in "kv")
        return spell(q, k, v)

    return make


def fanned(x: Node) -> Node:
    return ops.repeat_interleave(x, 2, 1)


def causal(g: GraphBuilder) -> Node:
    return g.constant(np.tri(3, dtype=bool))


def softly(scores: Node) -> Node:
    return ops.softmax(scores)


SPELLINGS |= {
    "attention: scaled queries": (
        attended(lambda q, k, v: softly((q * 0.25) @ k.transpose()) @ v),
        ["attention"],
    ),
    "attention: scaled keys": (
        attended(lambda q, k, v: softly(q @ (k * 0.25).transpose()) @ v),
        ["attention"],
    ),
    "attention: both scaled": (
        attended(lambda q, k, v: softly((q * 0.5) @ (k * 0.5).transpose()) @ v),
        ["attention"],
    ),
    "attention: divided": (
        attended(lambda q, k, v: softly(q @ k.transpose() / 8.0**0.5) @ v),
        ["attention"],
    ),
    "attention: not scaled": (
        attended(lambda q, k, v: softly(q @ k.transpose()) @ v),
        ["attention"],
    ),
    "attention: keys stored turned": (
        lambda g: softly(g.input("q", (2, 4, 3, 8)) @ g.input("k", (2, 4, 8, 5)))
        @ g.input("v", (2, 4, 5, 8)),
        ["attention"],
    ),
    "attention: masked fill": (
        attended(lambda q, k, v: softly(ops.where(
            ~causal(q.builder), -np.inf, q @ k.transpose() * 0.3)) @ v),
        ["attention"],
    ),
    "attention: closed by the least number": (
        attended(lambda q, k, v: softly(ops.where(
            causal(q.builder), q @ k.transpose() * 0.3, float(np.finfo(np.float32).min))) @ v),
        ["attention"],
    ),
    "attention: a mask that is added": (
        attended(lambda q, k, v: softly(
            ops.where(causal(q.builder), 0.0, -1e38)[None, None] + q @ k.transpose() * 0.3) @ v),
        ["attention"],
    ),
    "attention: a bias that is added": (
        attended(lambda q, k, v: softly(
            q @ k.transpose() * 0.3 + q.builder.parameter("bias", (4, 3, 3))) @ v),
        ["attention"],
    ),
    "attention: repeated heads": (
        attended(lambda q, k, v: softly(q @ fanned(k).transpose() * 0.3) @ fanned(v), 2),
        ["attention"],
    ),
    "attention: repeated for a fused op": (
        attended(lambda q, k, v: ops.attention(q, fanned(k), fanned(v), causal(q.builder)), 2),
        ["attention"],
    ),
    "attention: one head for all": (
        attended(lambda q, k, v: softly(q @ ops.repeat_interleave(k, 4, 1).transpose() * 0.3)
                 @ ops.repeat_interleave(v, 4, 1), 1),
        ["attention"],
    ),
    "attention: no heads": (
        lambda g: (lambda x: softly(x @ x.transpose()) @ x)(g.input("x", (2, 3, 8))),
        ["attention"],
    ),
    "attention: no heads, a mask for each": (
        lambda g: (lambda x: softly(x @ x.transpose() * 0.3 + g.input("mask", (2, 3, 3))) @ x)(
            g.input("x", (2, 3, 8))),
        ["attention"],
    ),
    "attention: a matrix alone": (
        lambda g: (lambda x: softly(ops.where(g.constant(np.tri(3, dtype=bool)),
            x @ x.transpose(), -np.inf)) @ x)(g.input("x", (3, 8))),
        ["attention"],
    ),
    "no attention: keys for a whole batch": (
        lambda g: (lambda x, y: softly(x @ y.transpose()) @ y)(
            g.input("x", (2, 3, 8)), g.input("y", (5, 8))),
        ["matmul", "softmax", "matmul"],
    ),
    "no attention: two dimensions of batches": (
        lambda g: (lambda x: softly(x @ x.transpose()) @ x)(g.input("x", (2, 3, 2, 3, 8))),
        ["matmul", "softmax", "matmul"],
    ),
    "group norm: flat groups": (
        lambda g: (lambda rows: ((rows - ops.mean(rows, -1, keepdims=True)) / ops.sqrt(
            ops.var(rows, -1, True, 0) + 1e-5)).reshape(2, 6, 4, 4)
            * g.parameter("w", (6,)).reshape(1, 6, 1, 1) + g.parameter("b", (1, 6, 1, 1)))(
            g.input("x", (2, 6, 4, 4)).reshape(2, 3, 32)),
        ["group_norm"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings(name: str) -> None:
    make, expected = SPELLINGS[name]
    graph = graph_of(make)
    found = recognise(graph)
    assert [node.op for node in computed(found)] == expected, f"{graph}\n\n{found}"
    assert_same_values(graph, found, 1e-5)


# --- terms: equal ones have equal values ----------------------------------------------------------


@st.composite
def expressions(draw: Any) -> Graph:
    """Arithmetic of a few leaves, negative ones too, with reductions and views in between."""
    g = GraphBuilder()
    values = [g.input("x", (2, 4), "float64"), g.input("y", (2, 1), "float64"),
              g.parameter("w", (4,), "float64")]  # fmt: skip
    unary = ["neg", "sqrt", "rsqrt", "reciprocal", "tanh", "abs", "exp"]
    binary = ["add", "sub", "mul", "div", "mul", "add", "maximum"]
    for _ in range(draw(st.integers(3, 9))):
        a, b = (draw(st.sampled_from(values)) for _ in range(2))
        kind = draw(st.sampled_from(["unary", "binary", "number", "power", "total", "view"]))
        if kind == "unary":
            name = draw(st.sampled_from(unary))
            made = g.apply(name, ops.tanh(a) if name == "exp" else a)
        elif kind == "binary":
            made = g.apply(draw(st.sampled_from(binary)), a, b)
        elif kind == "number":
            made = g.apply(draw(st.sampled_from(["add", "mul"])), a, g.scalar(
                draw(st.sampled_from([-2.0, 0.5, 1.0, 3.0])), "float64"))  # fmt: skip
        elif kind == "power":
            made = a ** draw(st.sampled_from([2.0, 3.0, -1.0, 0.5, -0.5]))
        elif kind == "total":
            made = draw(st.sampled_from([ops.mean, ops.sum_]))(a, -1, keepdims=True)
        else:
            made = a[None].expand(3, *a.shape)[1] if a.rank < 3 else a
        values.append(made)
    g.output("y", values[-1])
    return g.build()


def value_of(term: Term, leaves: dict[str, Array]) -> Array:
    """A term's value, computed the slow way."""
    args = [value_of(arg, leaves) for arg in term.args]
    if term.op in ("input", "parameter"):
        return leaves[dict(term.attrs)["name"]]
    if term.op == NUMBER:
        return np.asarray(term.numbers[0])
    if term.op == FULL:
        return np.full(term.type.shape, term.numbers[0])
    if term.op == SUM:
        total = term.numbers[0] + sum(f * a for f, a in zip(term.numbers[1:], args, strict=True))
        return np.broadcast_to(total, term.type.shape)
    if term.op == PRODUCT:
        factors = [
            a**e if kind in (1.0, -1.0) else (a**kind) ** (e / kind)
            for a, e, kind in zip(args, term.numbers, term.attrs, strict=True)
        ]
        return np.asarray(np.prod(np.broadcast_arrays(*factors), axis=0))
    if term.op == TOTAL:
        return np.asarray(args[0].sum(axis=term.attrs, keepdims=True))
    if term.op in ("reshape", "expand"):
        shaped = args[0].reshape if term.op == "reshape" else None
        return shaped(term.type.shape) if shaped else np.broadcast_to(args[0], term.type.shape)
    return OPS[term.op].reference(dict(term.attrs), *args)


def test_sums_of_integers_are_atoms_like_any_other() -> None:
    """An op called as a kind of term is called stays an op."""

    def pooled(g: GraphBuilder) -> Node:
        """The mean over the open positions."""
        x, mask = g.input("x", (3, 5), "float32"), g.input("mask", (3, 5), "int64")
        count = ops.sum_(mask, -1, keepdims=True)
        flags = ops.sum_((x > 0.0).cast("int64"), -1, keepdims=True)
        return ops.sum_(x * mask.cast("float32"), -1, keepdims=True) / (count + flags + 1).cast(
            "float32"
        )

    graph = graph_of(pooled)
    assert_same_values(graph, recognise(graph))


@settings(max_examples=150)
@given(expressions(), st.booleans())
def test_a_term_has_the_value_of_its_expression(graph: Graph, is_exact: bool) -> None:
    values = drawn(graph)
    cells, terms = Cells.written_out(graph), Terms(is_exact)
    found: dict[Any, Term] = {}
    for cell in cells.all:
        found[cell] = term_of(terms, cell, [found[parent] for parent in cell.inputs])
    end = graph.outputs["y"]
    with np.errstate(all="ignore"):
        expected = evaluate(graph, values)["y"]
        value = np.broadcast_to(value_of(found[cells.of[end]], values), end.shape)
    usual = np.isfinite(expected) & (np.abs(expected) < 1e6) & (np.abs(expected) > 1e-6)
    np.testing.assert_allclose(value[usual], expected[usual], rtol=1e-5)
    assert (np.isnan(value) == np.isnan(expected)).all()


# --- what must be left alone ----------------------------------------------------------------------


def both(g: GraphBuilder) -> Node:
    x, w, _ = leaves(g)
    scale = ops.rsqrt(mean_of_squares(x) + 1e-6)
    g.output("scale", scale)
    return x * scale * w


LEFT: dict[str, Make] = {
    "gelu by another number": unary(
        lambda x: 0.5 * x * (1.0 + ops.tanh(ROOT * (x + 0.05 * x**3.0)))
    ),
    "a norm of something else": normed(
        lambda x, w, b: x * ops.rsqrt(ops.mean(x * x * x, -1, keepdims=True) + 1e-6) * w
    ),
    "a norm over another dimension": unary(
        lambda x: x * ops.rsqrt(ops.mean(x * x, 1, keepdims=True) + 1e-6)
    ),
    "a variance with a correction": normed(
        lambda x, w, b: (x - ops.mean(x, -1, keepdims=True))
        * ops.rsqrt(ops.var(x, -1, keepdims=True) + 1e-5) * w + b
    ),
    "the root of a square": unary(lambda x: ops.sqrt(x * x) + x),
    "rope with its halves exchanged": turned(
        lambda x, cos, sin: x * cos + ops.concat([x[..., 4:], -x[..., :4]]) * sin
    ),
    "rope that turns the other way": turned(
        lambda x, cos, sin: x * cos + ops.concat([-x[..., :4], x[..., 4:]]) * sin
    ),
    "softmax of one thing by the sum of another": unary(
        lambda x: ops.exp(x - ops.max_(x, -1, keepdims=True))
        / ops.sum_(ops.exp(x - ops.max_(x, 1, keepdims=True)), -1, keepdims=True)
    ),
    "a product of two inputs": lambda g: g.input("a", (2, 3)) @ g.input("b", (3, 4)),
    "integers": lambda g: g.input("a", (2, 3), "int64") * 2 + 1,
    "a zero with a sign": lambda g: ops.maximum(leaves(g)[0], -0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_the_op_is_left_alone(name: str) -> None:
    graph = graph_of(LEFT[name])
    assert recognise(graph) is graph


def test_a_product_is_not_computed_twice() -> None:
    g = GraphBuilder()
    x, w, u = g.input("x", (2, 8)), g.parameter("w", (5, 8)), g.parameter("u", (5, 8))
    gate = ops.linear(x, w)
    g.output("gate", gate)
    g.output("y", ops.silu(gate) * ops.linear(x, u))
    graph = simplify(g.build())
    assert recognise(graph) is graph


def test_values_that_are_read_elsewhere() -> None:
    """A row's scale, which is little, is computed again; the norm is fused all the same."""
    found = recognise(graph_of(both))
    assert Counter(node.op for node in computed(found)) == {
        "rms_norm": 1, "pow": 1, "mean": 1, "add": 1, "rsqrt": 1,
    }  # fmt: skip


def test_a_soft_mask_without_an_open_key_stays() -> None:
    """Closed by a huge number, a row without an open key is a mean; by −∞ it would be NaN."""
    rows = np.tri(3, k=-1, dtype=bool)
    graph = graph_of(attended(lambda q, k, v: softly(
        ops.where(q.builder.constant(rows), q @ k.transpose(), -1e38)) @ v))  # fmt: skip
    assert "attention" not in {node.op for node in recognise(graph).nodes}


def test_names_outputs_and_updates_stay() -> None:
    g = GraphBuilder()
    x, s = g.input("x", (2, 3)), g.state("s", (2, 3))
    with g.scope("layer_3"):
        a = g.name(x * ops.sigmoid(x), "act")
        b = g.name(s + a, "sum")
    g.output("first", a)
    g.update(s, b)
    found = recognise(simplify(g.build()))
    assert repr(found.outputs["first"]) == "layer_3.act: float32[2, 3] = silu(x)"
    assert found.updates["s"].name == "layer_3.sum"


def test_fused_ops_of_users_are_found_by_their_decomposition() -> None:
    def cubed(attrs: Attrs, x: Node) -> Node:
        return ops.tanh(x * x * x)

    def reference(attrs: Attrs, x: Array) -> Array:
        return np.asarray(np.tanh(x**3))

    register(OpDef("cubed_tanh", same_dtype, reference, decompose=cubed))
    try:
        found = recognise(graph_of(unary(lambda x: ops.tanh(x**3.0) + 1.0)))
        assert [node.op for node in computed(found)] == ["cubed_tanh", "add"]
    finally:
        del OPS["cubed_tanh"]


# --- layers and margins ---------------------------------------------------------------------------

PRODUCTS_WITH_WEIGHTS: dict[str, Make] = {
    "weights [K, O], a bias": lambda g: (
        g.input("x", (2, 3, 8)) @ g.parameter("w", (8, 5)) + g.parameter("b", (5,))
    ),
    "what follows from weights": lambda g: g.input("x", (3, 8)) @ ops.exp(g.parameter("w", (8, 5))),
    "a weight that is read twice": lambda g: (
        (g.input("x", (3, 5)) @ (w := g.parameter("w", (5, 5)))) @ w
    ),
}
OTHER_PRODUCTS: dict[str, Make] = {
    "a constant, whose zeros save work": lambda g: (
        g.input("x", (3, 4)) @ g.constant(np.tri(4, dtype=np.float32))
    ),
    "a weight on the left": lambda g: g.parameter("w", (3, 4)) @ g.input("x", (4, 5)),
    "many weights": lambda g: g.input("x", (2, 3, 4)) @ g.parameter("w", (2, 4, 5)),
    "a state": lambda g: g.input("x", (3, 4)) @ g.state("w", (4, 5)),
}


@pytest.mark.parametrize("name", PRODUCTS_WITH_WEIGHTS)
def test_products_with_weights_are_layers(name: str) -> None:
    graph = graph_of(PRODUCTS_WITH_WEIGHTS[name])
    found = recognise(graph)
    assert {node.op for node in computed(found)} == {"linear"}
    assert_same_values(graph, found)
    assert recognise(found) is found


@pytest.mark.parametrize("name", OTHER_PRODUCTS)
def test_other_products_stay(name: str) -> None:
    graph = graph_of(OTHER_PRODUCTS[name])
    assert recognise(graph) is graph


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0])
@pytest.mark.parametrize("channels", [0, 1])
@pytest.mark.parametrize("is_read_elsewhere", [False, True])
def test_zeros_around_an_image_are_padding(
    value: float, channels: int, is_read_elsewhere: bool
) -> None:
    def make(g: GraphBuilder) -> Node:
        x = g.input("x", (1, 2, 5, 6))
        margin = ops.pad(x, (0, channels, 2, 0), (0, 0, 1, 3), value)
        if is_read_elsewhere:
            g.output("margin", margin * 2.0)
        weight = g.parameter("w", (4, 2 + channels, 3, 3))
        return ops.conv(margin, weight, stride=2, padding=1)

    graph = graph_of(make)
    found = recognise(graph)
    assert_same_values(graph, found)
    conv = next(node for node in found.nodes if node.op == "conv")
    is_taken = not channels and np.copysign(1.0, value) == 1.0 and value == 0.0
    assert conv.attrs["padding"] == (((3, 2), (1, 4)) if is_taken else ((1, 1), (1, 1)))
    stays = is_read_elsewhere or not is_taken
    assert ("pad" in {node.op for node in found.nodes}) is stays


# --- layout ---------------------------------------------------------------------------------------


def test_permutes_move_behind_what_works_on_rows() -> None:
    def make(g: GraphBuilder) -> Node:
        x, cos, sin = g.input("x", (1, 3, 4, 8)), g.parameter("c", (3, 8)), g.parameter("s", (3, 8))
        heads = x.permute(0, 2, 1, 3)
        normal = ops.rms_norm(heads, g.parameter("w", (8,)))
        return ops.rope(normal, cos[None, None], sin[None, None])

    graph = graph_of(make)
    found = recognise(graph)
    assert [node.op for node in computed(found)] == ["rms_norm", "rope"]
    assert found.outputs["y"].op == "permute"
    assert all(node.shape == (1, 3, 4, 8) for node in computed(found))
    assert_same_values(graph, found)


def test_a_permute_of_the_last_dimension_stays() -> None:
    graph = graph_of(lambda g: ops.rms_norm(
        g.input("x", (4, 6)).transpose(), g.parameter("w", (4,))))  # fmt: skip
    assert recognise(graph) is graph


# --- whole models ---------------------------------------------------------------------------------

MODELS = {
    "gemma3": lambda: gemma3(gemma3_reduced(), tokens=12),
    "bert": lambda: bert(bert_reduced(), tokens=12, batch=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_written_out_become_the_hand_built_graph(name: str) -> None:
    by_hand = simplify(MODELS[name]())
    assert recognise(by_hand) is by_hand
    atomic = written_out(by_hand)
    assert len(atomic.nodes) > 1.5 * len(by_hand.nodes)
    assert structure(recognise(atomic)) == structure(by_hand)


def test_imported_models_have_the_ops_of_hand_built_ones() -> None:
    """Exported from transformers, with both kinds of attention; decoding takes the same calls."""
    pytest.importorskip("transformers")
    import zoo

    from tgbench.session.session import GraphSession
    from tgbench.sources.torch import from_torch

    model = zoo.gemma3()
    by_hand = simplify(gemma3(model.module.config.to_dict(), tokens=16))  # type: ignore[union-attr, operator]
    calls = []
    for attention in ("sdpa", "eager"):
        imported = from_torch(zoo.gemma3(attention).module, model.args, kwargs=dict(model.kwargs))
        found = recognise(simplify(imported.graph))
        counts = [Counter(node.op for node in computed(g)) for g in (by_hand, found)]
        assert counts[0] == counts[1]
        calls.append(decoded(GraphSession(found, weights=imported.weights), "input_ids"))
    assert calls == [decoded(GraphSession(by_hand, weights=imported.weights), "ids")] * 2


def decoded(session: Any, name: str) -> int:
    """Instructions of a run that decodes one token."""
    ids = np.random.default_rng(0).integers(1, 60, (1, 16))
    session.run({name: ids}, want={"logits": np.s_[0, 7]})
    for at in (8, 9):
        ids[0, at] += 1
        session.run({name: ids}, want={"logits": np.s_[0, at]})
    return int(session.last.instructions)


LLAMAS = {"llama": 3, "llama eager": 3, "qwen3": 5}


@pytest.mark.parametrize("name", LLAMAS)
def test_other_language_models(name: str) -> None:
    pytest.importorskip("transformers")
    import zoo

    from tgbench.sources.torch import from_torch

    model = zoo.ZOO[name]()
    graph = simplify(from_torch(model.module, model.args, kwargs=dict(model.kwargs)).graph)
    found = recognise(graph)
    assert Counter(node.op for node in computed(found)) == {
        "gather": 1, "rms_norm": LLAMAS[name], "linear": 6, "rope": 2, "attention": 1,
        "gated_linear": 1, "add": 2,
    }  # fmt: skip
    assert_same_values(graph, found, 1e-5)


def test_dimensions_may_be_open() -> None:
    open_graph = simplify(gemma3(gemma3_reduced(), tokens=dim("T")))
    atomic = written_out(simplify(gemma3(gemma3_reduced(), tokens=dim("T"))))
    assert Counter(n.op for n in computed(recognise(atomic))) == Counter(
        n.op for n in computed(open_graph)
    )


@given(graphs(most_ops=14))
def test_random_graphs_keep_their_values(drawn_graph: tuple[Graph, Maker]) -> None:
    graph, make = drawn_graph
    simple = simplify(graph)
    found = recognise(simple)
    values = make(0)
    kept = {node.name for node in found.nodes}
    with np.errstate(all="ignore"):
        before = evaluate(graph, values)
        after = evaluate(found, {name: a for name, a in values.items() if name in kept})
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=1e-5)
    assert recognise(found) is found


def test_examples() -> None:
    assert doctest.testmod(module).failed == 0


# --- what is there already -----------------------------------------------------------------------

Beside = Callable[[Node, Node], tuple[Node, ...]]
BESIDE: dict[str, Beside] = {
    "a softmax, its sum": lambda x, w: (ops.softmax(x), ops.logsumexp(x, -1)),
    "a softmax, its exponentials": lambda x, w: (
        ops.softmax(x), ops.exp(x - ops.max_(x, -1, keepdims=True))
    ),
    "an activation, what it is made of": lambda x, w: (
        ops.gelu(x), ops.erf(x * 0.5**0.5) + 1.0
    ),
    "a weight there and back": lambda x, w: (
        ops.linear(ops.relu(ops.linear(x, w)), w.permute(1, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_there_already_is_recognised_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a fused op that stand beside it are no reason to put it in its own place, again."""
    g = GraphBuilder()
    x, w = g.input("x", (3, 8)), g.parameter("w", (4, 8))
    for i, node in enumerate(BESIDE[name](x, w)):
        g.output(f"y{i}", node)
    covers, really = list[Graph](), module.cover

    def cover(graph: Graph) -> Any:
        covers.append(graph)
        assert len(covers) < 9, "no end of it"
        return really(graph)

    monkeypatch.setattr(module, "cover", cover)
    graph = g.build()
    found = recognise(simplify(graph))
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(node.shape).astype(np.float32)
             for n, node in {**graph.inputs, **graph.parameters}.items()}  # fmt: skip
    expected, values = evaluate(graph, given), evaluate(found, given)
    for i in range(len(graph.outputs)):
        np.testing.assert_allclose(values[f"y{i}"], expected[f"y{i}"], 1e-5, 1e-5)


def test_equal_layers_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever values a form is compared on, the answer is the same: a U-Net asked 1,399 times."""
    compared, really = list[Any](), Checker._term_of_form

    def counted(*given: Any) -> Any:
        compared.append(given)
        return really(*given)

    monkeypatch.setattr(Checker, "_term_of_form", counted)

    def comparisons(layers: int) -> int:
        compared.clear()
        g = GraphBuilder()
        x = g.input("x", (3, 8))
        for i in range(layers):
            centred = x - ops.mean(x, -1, keepdims=True)
            variance = ops.mean(centred * centred, -1, keepdims=True)
            gamma, beta = g.parameter(f"gamma{i}", (8,)), g.parameter(f"beta{i}", (8,))
            x = x + ops.silu(centred * ops.rsqrt(variance + 1e-5) * gamma + beta)
        g.output("y", x)
        found = recognise(simplify(g.build()))
        assert [node.op for node in found.nodes].count("layer_norm") == layers
        return len(compared)

    assert comparisons(6) == comparisons(2) > 0
