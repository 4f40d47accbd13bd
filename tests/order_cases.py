"""Graphs for sessions that are used in any order, each with what it computes said once more.

Numbers are small and whole, so that float32 holds every sum: results are compared bit for bit with
PyTorch's eager ones, or with the NumPy references where the graph is a random one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import tgbench as tg
from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]
Right = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Told:
    """A graph and what it computes.

    Fields:
        model: what a session takes.
        weights: None where the model brings its own.
        right: outputs by name, and states as they are afterwards, of inputs, weights and states.
        below: the exclusive bound of integer inputs.
        module: whose tensors the weights are, where they are shared.
    """

    model: Any
    weights: Values | None
    right: Right
    below: int = 0
    module: torch.nn.Module | None = None

    @property
    def graph(self) -> Graph:
        found: Graph = getattr(self.model, "graph", self.model)
        return found

    def numbers(self, name: str, seed: int) -> Array:
        """A value of an input or a state."""
        node = {**self.graph.inputs, **self.graph.states}[name]
        low, high = (0, self.below) if node.dtype == "int64" else (-2, 3)
        drawn = np.random.default_rng(seed).integers(low, high, node.shape)
        return np.asarray(drawn).astype(node.dtype)

    def computed(self, inputs: Values, states: Values) -> dict[str, Array]:
        """Outputs and later states by name."""
        given = {**(self.weights or {}), **inputs, **states}
        with torch.no_grad():
            found = self.right({n: torch.from_numpy(np.array(a)) for n, a in given.items()})
        return {name: value.numpy() for name, value in found.items()}


def whole(seed: int, *shape: int, low: int = -1, high: int = 2) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype("float32")


# --- a decoder ------------------------------------------------------------------------------------

TOKENS, WIDTH, WORDS = 6, 4, 7


def decoder() -> Told:
    """Two layers of causal attention without its exp, and residuals that are cut off."""
    g = GraphBuilder()
    x = ops.embedding(g.parameter("words", (WORDS, WIDTH)), g.input("ids", (TOKENS,), "int64"))
    mask = ops.tril(ops.full(g, (TOKENS, TOKENS), True, "bool"))
    weights = {"words": whole(0, WORDS, WIDTH)}
    for layer in range(2):
        q, k, v = (x @ g.parameter(f"{name}{layer}", (WIDTH, WIDTH)) for name in ("q", "k", "v"))
        for i, name in enumerate(("q", "k", "v")):
            weights[f"{name}{layer}"] = whole(3 * layer + i + 1, WIDTH, WIDTH)
        there = ops.where(mask, q @ k.transpose(), 0.0) @ v
        x = ops.minimum(ops.maximum(x + there, -2.0), 2.0)
    g.output("logits", x @ g.parameter("head", (WIDTH, WORDS)))
    weights["head"] = whole(9, WIDTH, WORDS)

    def right(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = given["words"][given["ids"]]
        for layer in range(2):
            q, k, v = (x @ given[f"{name}{layer}"] for name in ("q", "k", "v"))
            x = (x + torch.tril(q @ k.T) @ v).clamp(-2, 2)
        return {"logits": x @ given["head"]}

    return Told(g.build(), weights, right, WORDS)


# --- modules --------------------------------------------------------------------------------------


def _whole_module(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for i, weight in enumerate(module.parameters()):
            weight.copy_(torch.from_numpy(whole(i, *weight.shape)))
    return module.eval()


def _of_module(module: torch.nn.Module, example: torch.Tensor, share: bool) -> Told:
    imported = tg.from_torch(module, (example,), share=share)
    right = lambda given: {"output": module(given["input"])}  # noqa: E731
    return Told(imported, None, right, module=module if share else None)


def convolutions() -> Told:
    layers = (
        torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3),
    )  # fmt: skip
    return _of_module(_whole_module(torch.nn.Sequential(*layers)), torch.zeros(1, 2, 8, 8), False)


def perceptron() -> Told:
    """Whose weights are the module's own."""
    layers = torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)
    return _of_module(_whole_module(torch.nn.Sequential(*layers)), torch.zeros(4, 5), True)


# --- branches, states, several inputs -------------------------------------------------------------


def branches() -> Told:
    g = GraphBuilder()
    x, w = g.input("x", (6, 4)), g.parameter("w", (4, 4))
    left, right_ = ops.relu(x[:3] @ w), abs(x[3:]) - x[2:5]
    both = ops.concat([left, right_, x[::2]], axis=0)
    g.output("both", both)
    g.output("sum", ops.sum_(both, (1,)))
    g.output("turned", both[::-1].transpose() @ both)

    def right(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = given["x"]
        both = torch.cat([(x[:3] @ given["w"]).relu(), x[3:].abs() - x[2:5], x[::2]])
        return {"both": both, "sum": both.sum(1), "turned": both.flip(0).T @ both}

    return Told(g.build(), {"w": whole(1, 4, 4)}, right)


ROWS = 4


def states() -> Told:
    """One state written whole, one in part, and both cut off so that they stay small."""
    g = GraphBuilder()
    x, at = g.input("x", (ROWS, 2)), g.input("at", (1,), "int64")
    total, ring = g.state("total", (ROWS, 2)), g.state("ring", (ROWS, 2))
    g.update(total, ops.minimum(ops.maximum(total + x, -9.0), 9.0))
    g.update(ring, ops.sum_(total, (0,), keepdims=True) + 1.0, at=at)
    g.output("y", abs(x) + total * 2.0 + ring)
    g.output("product", x @ g.parameter("w", (2, 2)))
    g.output("ring", ring)

    def right(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x, total, ring = given["x"], given["total"], given["ring"]
        later = ring.clone()
        later[given["at"]] = total.sum(0, keepdim=True) + 1
        after = {"=total": (total + x).clamp(-9, 9), "=ring": later}
        found = {"y": x.abs() + total * 2 + ring, "product": x @ given["w"], "ring": ring}
        return {**found, **after}

    return Told(g.build(), {"w": whole(2, 2, 2)}, right, ROWS)


def several() -> Told:
    """Inputs that meet in one output and not in another, and one that nothing reads."""
    g = GraphBuilder()
    a, b, c = g.input("a", (3, 4)), g.input("b", (4, 3)), g.input("c", (3,))
    g.input("unread", (2,))
    product = a @ b
    g.output("product", product + c)
    g.output("most", ops.max_(product, (1,)) * 2.0)
    g.output("b", ops.cumsum(b, 0))
    g.output("same", c)

    def right(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        a, b, c = given["a"], given["b"], given["c"]
        product = a @ b
        return {
            "product": product + c, "most": product.amax(1) * 2, "b": b.cumsum(0), "same": c
        }  # fmt: skip

    return Told(g.build(), {}, right)


TOLD: Mapping[str, Callable[[], Told]] = {
    made.__name__: made
    for made in (decoder, convolutions, perceptron, branches, states, several)
}  # fmt: skip


def of_random(graph: Graph, make: Callable[[int], dict[str, Array]]) -> Told:
    """A random graph of `strategies.graphs`, beside the NumPy references."""
    weights = {name: array for name, array in make(0).items() if name in graph.parameters}

    def right(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = tg.evaluate(graph, {name: value.numpy() for name, value in given.items()})
        return {name: torch.from_numpy(np.array(value)) for name, value in found.items()}

    return _Random(graph, weights, right, make=make)


@dataclass(frozen=True)
class _Random(Told):
    make: Callable[[int], dict[str, Array]] = field(default=lambda seed: {})

    def numbers(self, name: str, seed: int) -> Array:
        return self.make(seed)[name]
