"""A random graph, op by op; every node is computed on sample values as it is drawn.

The sample says which shape and dtype a node has, whether its numbers are exact, and whether it is
of any use (finite, not too large): no op needs a rule of its own for any of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import torch

from fuzz import fills
from fuzz.bounded import FLOATS, INTEGERS, Bounded, exact
from fuzz.table import PATTERNS, TABLE, Unfit

Json = dict[str, Any]
MOST_RANK = 5


@dataclass(frozen=True)
class Sizes:
    """What dimensions are drawn from, and how many elements a node has at most."""

    of: tuple[int, ...]
    most: int


SMALL = Sizes((1, 1, 2, 2, 3, 3, 4, 5, 6, 8), 150)
LARGE = Sizes((1, 2, 5, 9, 12, 16, 20), 600)  # room for a change to come again elsewhere
_FLOATS = ("float32",) * 14 + ("float64",) * 2 + ("float16",) * 2 + ("bfloat16",) * 2


class Drawing:
    """Nodes as plain data, and what they are on sample values.

    Fields:
        dtype: of most floats in this graph.
        sizes: of its tensors.
        nodes: {"op", "args", "attrs"}, or leaves {"op", "name", "shape", "dtype", "fill", "seed"}.
        sample: a value of each.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dtype = random.choice(_FLOATS)
        self.sizes = LARGE if random.random() < 0.25 else SMALL
        self.nodes: list[Json] = []
        self.sample: list[Bounded] = []

    @property
    def used(self) -> set[int]:
        """Nodes that others read."""
        return {i for node in self.nodes for i in node.get("args", ())}

    # --- numbers ---------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def shape(self, low: int = 0, high: int = 4) -> list[int]:
        rank = self.pick(
            [r for r in (0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4) if low <= r <= high] or [low]
        )
        sizes = [self.pick(self.sizes.of) for _ in range(rank)]
        while prod(sizes) > self.sizes.most:
            sizes[self.integer(0, rank - 1)] = self.integer(1, 3)
        return sizes

    # --- leaves ----------------------------------------------------------------------------------

    def leaf(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        kind: str | None = None,
        fill: Json | None = None,
    ) -> int:
        """A new input, parameter, constant or state."""
        dtype = dtype or self.dtype
        fill = fill or self._fill(dtype)
        kind = kind or self._kind(dtype, fill)
        name = f"{kind[0]}{len(self.nodes)}"
        node = {
            "op": kind, "name": name, "shape": [*shape], "dtype": dtype, "fill": fill,
            "seed": self.integer(0, 10**6),
        }  # fmt: skip
        if prod(shape) > self.sizes.most:
            raise Unfit
        self.nodes.append(node)
        zeros = kind == "state"
        numbers = fills.values(fill, shape, dtype, node["seed"])
        self.sample.append(exact(torch.tensor(numbers * 0 if zeros else numbers), dtype))
        return len(self.nodes) - 1

    def _fill(self, dtype: str) -> Json:
        kinds = ["ints"] * 6
        if dtype in FLOATS:
            kinds += ["reals"] * 5 + ["positive"]
        if dtype in fills.SPECIAL:
            kinds += ["special"]
        return {"kind": self.pick(kinds)}

    def _kind(self, dtype: str, fill: Json) -> str:
        kinds = ["input"] * 6 + ["parameter"] * 3
        if dtype != "bfloat16":
            kinds += ["constant"]
        if fill["kind"] in ("ints", "reals"):
            kinds += ["state"]
        return self.pick(kinds) if self.nodes else "input"

    def indices(self, shape: Sequence[int], below: int) -> int:
        """Integers that pick one of so many."""
        kind = self.pick(["input", "input", "constant", "parameter"])
        dtype = self.pick(["int64", "int64", "int32"])
        return self.leaf(shape, dtype, kind, {"kind": "index", "below": below})

    def mask(self, shape: Sequence[int], dtype: str, closed: Any, opened: Any) -> int:
        """A constant band or bitmap that is open at least in its first column."""
        fill: Json = {"kind": "holes", "open": opened, "closed": closed}
        if len(shape) >= 2 and self.chance(0.6):
            low, high = self.pick([(-9, 0), (-2, 0), (-1, 1), (0, 1), (-9, 1)])
            fill |= {"kind": "band", "low": low, "high": high}
        if dtype == "bfloat16":  # of which there are no constants
            return self.apply("cast", self.leaf(shape, "float32", "constant", fill), dtype=dtype)
        return self.leaf(shape, dtype, "constant", fill)

    # --- nodes that are there already ------------------------------------------------------------

    def some(self, fits: Callable[[Bounded], bool]) -> int | None:
        """A node that fits, rather one that nothing uses yet: so graphs hang together."""
        found = [i for i, value in enumerate(self.sample) if fits(value)]
        loose = [i for i in found if i not in self.used]
        if loose and self.chance(0.7):
            return self.pick(loose)
        return self.pick(found) if found else None

    def floats(
        self, low: int = 0, high: int = 4, fits: Callable[[Bounded], bool] | None = None
    ) -> int:
        """A float node of such a rank; a new leaf where there is none, and now and then."""

        def usable(x: Bounded) -> bool:
            inside = low <= x.rank <= high and x.dtype == self.dtype
            return inside and (fits is None or fits(x))

        found = self.some(usable)
        if found is not None and not self.chance(0.12):
            return found
        made = self.leaf(self.shape(low, high))
        if fits is not None and not fits(self.sample[made]):
            raise Unfit
        return made

    def numbers(self, low: int = 0, high: int = 4) -> int:
        """A node of floats or integers."""
        if self.chance(0.8):
            return self.floats(low, high)
        found = self.some(lambda x: x.dtype in INTEGERS and low <= x.rank <= high)
        if found is not None:
            return found
        return self.leaf(self.shape(low, high), self.pick(INTEGERS))

    def anything(self, low: int = 0, high: int = 4) -> int:
        """A node of any dtype."""
        if self.chance(0.85):
            return self.numbers(low, high)
        found = self.some(lambda x: x.dtype == "bool" and low <= x.rank <= high)
        return self.leaf(self.shape(low, high), "bool") if found is None else found

    def booleans(self, shape: Sequence[int]) -> int:
        """A condition of this shape, or one that broadcasts to it."""
        found = self.some(lambda x: x.dtype == "bool" and fits_into(x.shape, shape))
        if found is not None and self.chance(0.7):
            return found
        smaller = self.smaller(shape)
        if self.chance(0.5):
            return self.mask(smaller, "bool", False, True)
        return self.leaf(smaller, "bool")

    def smaller(self, shape: Sequence[int]) -> list[int]:
        """A shape that broadcasts to this one."""
        cut = self.integer(0, len(shape)) if self.chance(0.3) else 0
        return [1 if self.chance(0.2) else size for size in shape[cut:]]

    def partner(self, x: int, fill: Json | None = None) -> int:
        """A node of the same dtype that broadcasts with x."""
        mine = self.sample[x]
        found = self.some(lambda y: y.dtype == mine.dtype and go_together(y.shape, mine.shape))
        if fill is None and found is not None and self.chance(0.6):
            return found
        return self.leaf(self.smaller(mine.shape), mine.dtype, fill=fill)

    def exactly(self, shape: Sequence[int], dtype: str | None = None) -> int:
        """A node of this shape."""
        dtype = dtype or self.dtype
        found = self.some(lambda x: x.dtype == dtype and x.shape == tuple(shape))
        return found if found is not None and self.chance(0.5) else self.leaf(shape, dtype)

    def axis(self, x: int) -> int:
        """An axis of a node, counted from the front or from the back."""
        rank = self.sample[x].rank
        if not rank:
            raise Unfit
        return self.integer(-rank, rank - 1)

    def axes(self, x: int) -> list[int]:
        """Some axes of a node, in order."""
        rank = self.sample[x].rank
        if not rank:
            raise Unfit
        return sorted(self.random.sample(range(rank), self.integer(1, rank)))

    # --- applications ----------------------------------------------------------------------------

    def apply(self, name: str, *args: int, **attrs: Any) -> int:
        """Add an application of an op; raises Unfit where its sample is of no use."""
        result = TABLE[name].compute(*(self.sample[i] for i in args), **attrs)
        self._require_useful(result)
        self.nodes.append({"op": name, "args": [*args], "attrs": attrs})
        self.sample.append(result)
        return len(self.nodes) - 1

    def _require_useful(self, result: Bounded) -> None:
        count = prod(result.shape)
        if not 1 <= count <= self.sizes.most or result.rank > MOST_RANK:
            raise Unfit
        sure = result.error < 1e-3 * (1 + result.value.to(torch.float64).abs())
        if sure.to(torch.float64).mean() < 0.5:
            raise Unfit
        if result.dtype in FLOATS:
            finite = result.value[result.value.isfinite() & (result.value > -1e29)]
            if finite.numel() and finite.abs().max() > 1e10:
                raise Unfit


def fits_into(small: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another one."""
    pairs = zip(reversed(small), reversed(shape), strict=False)
    return len(small) <= len(shape) and all(a in (1, b) for a, b in pairs)


def go_together(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes broadcast to one."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def random_graph(random: Random, most_ops: int = 11) -> Drawing:
    """A graph of a few ops, every one drawn from the table."""
    drawing = Drawing(random)
    draws = [(entry.draw, entry.weight) for entry in (*TABLE.values(), *PATTERNS.values())]
    functions, weights = zip(*draws, strict=True)
    drawing.leaf(drawing.shape(1, 4), kind="input")
    wanted = drawing.integer(2, most_ops)
    while wanted > 0:
        before = len(drawing.nodes)
        try:
            random.choices(functions, weights)[0](drawing)
            wanted -= sum(node["op"] in TABLE for node in drawing.nodes[before:])
        except Unfit:
            del drawing.nodes[before:], drawing.sample[before:]
    return drawing
