"""What comes into a session: inputs checked, wishes read, changes found."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.dense import dense
from tgbench.base.errors import DemandError, HintError, InputError, TgbenchError
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Region
from tgbench.base.words import kind_of_value
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import FLOATS, OPS, OpDef, numpy_dtype
from tgbench.runs.buckets import Bucket, BucketSpace, Spot, region_of_index
from tgbench.runs.difference import UNSIGNED, Rows, Scattered, compared, difference
from tgbench.session.results import Wish, Wishes

Array = NDArray[Any]
PLAIN = (list, tuple, int, float, np.generic)  # numbers, as opposed to arrays of a dtype
BFLOAT16_OVERFLOW = 2.0**127 * (2 - 2.0**-8)  # what lies here or beyond is rounded to infinity
NUMBERS = "biuf"  # NumPy's kinds
INDICES = frozenset([int, slice, tuple])  # types of parts, which have no names
THERE_IS_NONE = object()
MOST_SHOWN = 40  # characters of a value, in a message
WIDER = {("bfloat16", "float32"), ("bfloat16", "float64")} | {
    (small, "bfloat16") for small in ("bool", "int8", "uint8")
}


MOST_ROWS = 1_000  # of inputs that changed, that are found again
MOST_WANTED = 1_000  # of what was asked for, that is remembered as it was read


class ArgumentReader:
    """Reads the arguments of `run` against one graph.

    `unused` are inputs that no output depends on: they are checked and go no further.
    """

    def __init__(self, graph: Graph, space: BucketSpace, unused: Mapping[str, Node]) -> None:
        self.graph = graph
        self.space = space
        self.unused = unused
        self._limits = index_limits(graph)
        self._known = {**graph.inputs, **unused}
        leaves = {**self._known, **graph.states}
        space.check({name: node.shape for name, node in leaves.items()})
        self._everything = Wishes(
            {name: Wish.of(Region.full(n.shape), ..., n.shape) for name, n in graph.outputs.items()}
        )
        self._rows: Rows = Latest(MOST_ROWS)
        self._wanted = Latest[tuple[Any, ...], Wishes](MOST_WANTED)
        self._dtypes = {name: numpy_dtype(node.dtype) for name, node in leaves.items()}
        self._shapes = {name: node.shape for name, node in leaves.items()}
        self._floats = {n: node.dtype for n, node in graph.inputs.items() if node.dtype in FLOATS}
        self._plainly = {name: (self._dtypes[name], self._shapes[name]) for name in self._known}

    def named(self, inputs: Any) -> Mapping[str, Any]:
        """Inputs by name; a graph's only input may come without it."""
        kind = type(inputs)
        if kind is dict:
            return inputs  # type: ignore[no-any-return]
        if kind is np.ndarray and len(self._known) == 1:  # as it mostly is then
            return dict.fromkeys(self._known, inputs)
        return _by_name(inputs, self._known, "inputs", InputError)

    def arrays(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs that are given, as checked arrays."""
        found: dict[str, Array] = {}
        for name, value in inputs.items():
            if type(value) is np.ndarray and (value.dtype, value.shape) == self._plainly.get(name):
                array = value  # as most are
            else:
                array = self._checked(name, self._input(name), value)
            if name not in self.unused:
                found[name] = array
        return found

    def completed(
        self, given: Mapping[str, Array], held: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Every input; those left out keep the value they are `held` at."""
        if len(given) == len(self.graph.inputs):
            return given
        arrays: dict[str, Array] = {}
        for name, node in self.graph.inputs.items():
            if name in given:
                arrays[name] = given[name]
            elif name in held:
                arrays[name] = held[name]
            else:
                raise InputError(f"input {name!r} ({node.type}) has no value yet; pass it once")
        return arrays

    def _input(self, name: str) -> Node:
        node = self._known.get(name)
        if node is None:
            known = ", ".join(self._known)
            raise InputError(f"unknown input {name!r}; this graph takes {known}")
        return node

    def hints(self, changed: Any) -> dict[str, Region] | None:
        """`changed=` as regions by name; that of a graph's only input may come without it."""
        if changed is None:
            return None
        found = {}
        for name, index in _by_name(changed, self._known, "changed", HintError).items():
            try:
                found[name] = region_of_index(index, self._input(name).shape, f"changed {name}")
            except DemandError as error:
                raise HintError(str(error)) from None
        return found

    def rounded_states(self, changed: Mapping[str, Region]) -> dict[str, Region]:
        """What changed of the states, rounded so that few classes arise.

        Where no rounding is asked for, states that are written whole change in boxes of extents
        that are powers of two: which of their elements move is in the numbers, not in the graph.
        """
        found = {}
        for name, region in changed.items():
            shape = self.graph.states[name].shape
            writes = self.graph.writes.get(name, ())
            is_whole = any(write.value.shape == shape for write in writes)
            plain = is_whole and name not in self.space.rounding
            space = BucketSpace({name: "pow2"}) if plain else self.space
            found[name] = space.round(name, region, shape)
        return found

    def spot(self, changed: Any, want: Any) -> Spot:
        """The class and the place of a run with such arguments."""
        changes = Bucket.of(self.hints(changed) or {}, {})
        bucket = Bucket(changes.changed, self.wanted(want).boxes)
        return self.rounded(bucket).classify(self.graph)

    def state(self, name: str) -> Node:
        """A state by name; raises InputError for an unknown one."""
        if name not in self.graph.states:
            known = ", ".join(self.graph.states) or "none"
            raise InputError(f"unknown state {name!r}; this graph has {known}")
        return self.graph.states[name]

    def checked_state(self, node: Node, value: Any) -> Array:
        """A state's new value as an array; raises InputError like an input's does."""
        array = self._checked(node.name, node, value)
        if node.dtype in FLOATS and not _stays_finite(array, node.dtype):
            raise InputError(f"state {node.name!r} cannot hold NaN or infinity; mend the value")
        return array

    def _checked(self, name: str, node: Node, value: Any) -> Array:
        array = self._array(name, node, value)
        if array.shape != self._shapes[name]:
            raise InputError(
                f"{name} has shape {list(array.shape)}, the graph takes {node.type}; pad or cut "
                "it, or build the graph for these sizes"
            )
        return array

    def _array(self, name: str, node: Node, value: Any) -> Array:
        """A value as an array of the input's dtype, if that can hold what the value's can."""
        target = self._dtypes[name]
        if type(value) is np.ndarray and value.dtype == target:
            return value
        array, source = _read(name, value)
        if isinstance(value, PLAIN):
            converted = _of_numbers(array, target)
        else:
            goal = node.dtype if isinstance(value, torch.Tensor) else target.name
            holds = array.dtype.kind in NUMBERS and _is_lossless(source, goal)
            converted = array.astype(target, copy=False) if holds else None
        if converted is None:
            raise InputError(
                f"{name} is {source}, the graph takes {node.type}, which does not hold all such "
                f"values; convert it (`{_conversion(name, node, value)}`)"
            )
        return converted

    def rounded(self, bucket: Bucket) -> Bucket:
        """A bucket as runs with such changes will have it: an input that nothing reads is out."""
        shapes = {name: node.shape for name, node in self.graph.inputs.items()}
        changed = {
            name: self.space.round(name, region, shapes[name])
            for name, region in bucket.changed
            if name in shapes
        }
        return Bucket.of(changed, dict(bucket.demand))

    def check_values(self, name: str, array: Array, region: Region) -> None:
        """Raise InputError for values that no graph can take, in the part that is new."""
        limit, dtype = self._limits.get(name), self._floats.get(name)
        if limit is None and dtype is None:
            return
        for index in region.indices:
            part = array[index]
            if dtype is not None and not _stays_finite(part, dtype):
                found = np.argwhere(~_are_finite(array, dtype))[0]
                where = tuple(int(i) for i in found)
                raise InputError(
                    f"{name} is {array[where]} at {where}; inputs must be finite: "
                    f"{_finite(self.graph.inputs[name], float(array[where]))}"
                )
            if limit is None:
                continue
            if not _is_below(part, limit):
                raise InputError(
                    f"{name} holds {array.min()}..{array.max()}, but it picks rows of a table "
                    f"with {limit}; values must be in 0..{limit - 1}"
                )

    def wanted(self, want: Any) -> Wishes:
        """What is wanted of each output; runs mostly ask for what others asked for."""
        if want is None:
            return self._everything
        kind, outputs = type(want), self.graph.outputs
        if kind is dict:
            named = want
        elif kind in INDICES and len(outputs) == 1:
            named = dict.fromkeys(outputs, want)
        else:
            named = _by_name(want, outputs, "want", DemandError)
        key: list[Any] = []
        for name, index in named.items():
            plain = index if type(index) is int else _plain(index)
            if plain is None:
                return self._read(named)
            key += name, plain
        known = tuple(key)
        found = self._wanted.get(known)
        if found is None:
            found = self._wanted[known] = self._read(named)
        return found

    def _read(self, named: Mapping[str, Any]) -> Wishes:
        return Wishes({name: self._wish(name, index) for name, index in named.items()})

    def _wish(self, name: str, index: Any) -> Wish:
        outputs = self.graph.outputs
        if name not in outputs:
            raise DemandError(f"unknown output {name!r}; this graph gives {', '.join(outputs)}")
        shape = outputs[name].shape
        parts = index if isinstance(index, list) and index else ()
        for part in parts:
            if region_of_index(part, shape, name).is_empty:
                raise DemandError(
                    f"{name}{_written(part)} asks for nothing; leave it out of `want`"
                )
        region = region_of_index(index, shape, name)
        if region.is_empty:
            raise DemandError(f"{name}{_written(index)} asks for nothing; leave it out of `want`")
        return Wish.of(region, index, shape)

    def differences(
        self,
        arrays: Mapping[str, Array],
        held: Mapping[str, Array],
        changed: Mapping[str, Region] | None,
        check: bool,
    ) -> tuple[dict[str, Region], dict[str, Scattered]]:
        """The parts of the inputs that differ from what they were `held` at, rounded up; and those
        that are no one box, which are told here as slices around them.
        """
        found: dict[str, Region] = {}
        scattered: dict[str, Scattered] = {}
        rounding = self.space.rounding
        for name, array in arrays.items():
            if array is held[name]:
                continue
            if changed is None:
                differ = compared(held[name], array, self._rows)
                if isinstance(differ, Scattered):
                    scattered[name], region = differ, differ.around
                else:
                    region = differ
            else:
                region = changed.get(name, EMPTY)
                if check:
                    _check_hint(name, difference(held[name], array, region))
            if region.boxes:
                self.check_values(name, array, region)
                found[name] = self._rounded(name, region, array.shape) if rounding else region
        return found, scattered

    def in_boxes(self, scattered: Mapping[str, Scattered]) -> dict[str, Region]:
        """Parts that are no one box in a few, rounded up."""
        return {
            name: self._rounded(name, differ.boxes, differ.flags.shape)
            for name, differ in scattered.items()
        }

    def _rounded(self, name: str, region: Region, shape: tuple[int, ...]) -> Region:
        is_exact = name not in self.space.rounding
        return region if is_exact else self.space.round(name, region, shape)


def _by_name(
    value: Any, known: Mapping[str, Node], what: str, error: type[TgbenchError]
) -> Mapping[str, Any]:
    """Values by name; where there is one name only, a value may come without it."""
    if isinstance(value, Mapping):
        return value
    if len(known) == 1 and not isinstance(value, str):
        return dict.fromkeys(known, value)
    example = f"{{{next(iter(known))!r}: …}}" if known else "{}"
    raise error(
        f"{what} is {kind_of_value(value)}, and this graph has {', '.join(known) or 'none'}; "
        f"pass it by name: {example}"
    )


def _plain(index: Any) -> Hashable:
    """An index of integers and slices of integers, hashable; None for any other.

    A slice has no hash before Python 3.12, and True is 1 to a dictionary, but no index.
    """
    if type(index) is int or index is Ellipsis:
        return index
    if type(index) is slice:
        ends = index.start, index.stop, index.step
        return (slice, *ends) if _ENDS.issuperset(map(type, ends)) else None
    if type(index) is not tuple:
        return None
    if _INTEGERS.issuperset(map(type, index)):
        return index
    plain = tuple([_plain(part) for part in index])
    return None if None in plain else plain


_INTEGERS = {int}
_ENDS = {int, type(None)}


def _are_finite(array: Array, dtype: str) -> NDArray[np.bool_]:
    """Which are finite as a graph holds them: bfloat16 is given in float32, and ends before it."""
    return np.isfinite(array) if dtype != "bfloat16" else np.abs(array) < BFLOAT16_OVERFLOW


def _stays_finite(part: Array, dtype: str) -> bool:
    """Whether all are: the least of the flags is true. NumPy finds where that is the soonest."""
    flags = np.isfinite(part) if dtype != "bfloat16" else _are_finite(part, dtype)
    return bool(flags.item(flags.argmin()))


def _is_below(part: Array, limit: int) -> bool:
    """Whether all are in 0..limit - 1, rounded towards 0 as casts do; a negative integer is a large
    one without its sign.
    """
    if part.size == 1:
        return 0 <= int(part.item()) < limit
    if part.dtype.kind == "f":
        return bool(part.min() > -1 and part.max() < limit)
    unsigned = part.view(UNSIGNED[part.itemsize])
    return bool(unsigned.item(unsigned.argmax()) < limit)


def _finite(node: Node, found: float) -> str:
    """What to pass in place of a number that is not finite."""
    if found != -np.inf:
        return "mend the value"
    library = (
        "torch.finfo(torch.bfloat16)" if node.dtype == "bfloat16" else f"np.finfo('{node.dtype}')"
    )
    return f"where it closes a mask, {library}.min gives the same weights, exactly 0"


def _conversion(name: str, node: Node, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{name}.to(torch.{node.dtype})"
    array = name if hasattr(value, "astype") else f"np.asarray({name})"
    return f"{array}.astype('{numpy_dtype(node.dtype)}')"


def _read(name: str, value: Any) -> tuple[Array, str]:
    """A value as an array, and the name of its dtype."""
    try:
        array, dtype = dense(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} is a {type(value).__name__} that is no array ({error}); pass a dense array, a "
            "tensor or nested lists of numbers"
        ) from error
    others = (one for one in array.flat if not isinstance(one, Number))
    first = next(others, THERE_IS_NONE) if array.dtype.kind == "O" else THERE_IS_NONE
    if first is not THERE_IS_NONE:
        verb = "holds" if array.ndim else "is"
        raise InputError(
            f"{name} {verb} {_short(first)}, which is no number; pass an array, a tensor or nested "
            "lists of numbers"
        )
    return array, dtype


def _short(value: Any) -> str:
    """How a value is written, cut where that is long."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _of_numbers(array: Array, target: np.dtype[Any]) -> Array | None:
    """Numbers as they are written in Python: integers exactly, others rounded to the dtype."""
    if array.dtype.kind not in NUMBERS or not np.can_cast(array.dtype, target, "same_kind"):
        return None
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    return converted if array.dtype.kind == "f" or _is_same(converted, array) else None


def _is_same(converted: Array, integers: Array) -> bool:
    """Whether these are the integers: compared as integers, as floating-point numbers of 64 bits
    do not hold all of them.
    """
    if converted.dtype.kind != "f":
        return np.array_equal(converted, integers)
    limits = np.iinfo(integers.dtype)
    if np.any(converted >= float(limits.max) + 1) or np.any(converted < float(limits.min)):
        return False
    return np.array_equal(converted.astype(integers.dtype), integers)


def _is_lossless(source: str, target: str) -> bool:
    """Whether a dtype holds every value of another.

    >>> _is_lossless("int32", "int64"), _is_lossless("int64", "float32")
    (True, False)
    """
    if "bfloat16" in (source, target):
        return source == target or (source, target) in WIDER
    return np.can_cast(source, target)


def _check_hint(name: str, missed: Region) -> None:
    if missed.boxes:
        raise HintError(f"{name} changed at {missed}, which `changed` leaves out; widen it")


def _written(index: Any) -> str:
    """A basic index as somebody writes it.

    >>> _written((slice(2, None), ..., -1))
    '[2:, ..., -1]'
    """
    parts = index if isinstance(index, tuple) else (index,)
    return f"[{', '.join(map(_part, parts))}]"


def _part(part: Any) -> str:
    if part is Ellipsis:
        return "..."
    if not isinstance(part, slice):
        return str(part)
    bounds = [part.start, part.stop, *([] if part.step is None else [part.step])]
    return ":".join("" if bound is None else str(bound) for bound in bounds)


def index_limits(graph: Graph) -> dict[str, int]:
    """Inputs that pick rows of a table, with the smallest such table's length."""
    limits: dict[str, int] = {}
    for node in graph.nodes:
        place = None if node.is_leaf else OPS[node.op].index
        if place is None:
            continue
        index = node.inputs[place]
        while not index.is_leaf and _shows_its_input(OPS[index.op]):
            index = index.inputs[0]
        if index.op == "input":
            length = int(node.inputs[0].shape[node.attrs["axis"]])
            limits[index.name] = min(limits.get(index.name, length), length)
    return limits


def _shows_its_input(op: OpDef) -> bool:
    """Whether the values are those of the first input, elsewhere or in another dtype."""
    return op.view is not None or op.converts
