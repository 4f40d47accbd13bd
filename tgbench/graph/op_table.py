"""The op table: one entry per op, and everything the engine knows about it.

    atomic op   forward   regions of the inputs → region of the output that depends on them
                needed    box of the output     → regions of the inputs that it reads
                reference NumPy
    fused op    decompose into atomic ops; forward, needed and known follow from that

Shape inference is `forward` with every input full (there is no second definition of a shape).
`forward` and `needed` are sound, never too small, and tight: for one box they give the smallest
region the op's index map allows, less what `facts` show to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tgbench.base.errors import GraphError
from tgbench.base.known import Fact
from tgbench.base.memo import Memo, outlives
from tgbench.base.regions import Box, Region

T = TypeVar("T")
Array: TypeAlias = NDArray[Any]
Dim: TypeAlias = Any  # int, or a sympy expression until the graph is bound
Node: TypeAlias = Any  # `graph.Node`: nodes are made with this table, which cannot import them
Attrs: TypeAlias = Mapping[str, Any]
Facts: TypeAlias = "tuple[Fact | None, ...]"

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = ("float64", "float32", "float16", "bfloat16")
LINE_RANK = 3  # batch, channels, length: the least that convolutions read
IMAGE_RANK = 4  # batch, channels, height, width
HOME = ""  # the device of a session, whichever it is
MOST_FOUND = 256  # answers that a call keeps with it


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor value, and where it is.

    Fields:
        device: what `copy_to` brought it to; HOME for where a session's inputs are.
    """

    shape: tuple[Dim, ...]
    dtype: str
    device: str = field(default=HOME, repr=False)  # `str` has it

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def itemsize_at_home(self) -> int:
        """What an element takes of the session's own arena."""
        return 0 if self.device else self.itemsize

    @property
    def elements(self) -> Any:
        count: Any = 1
        for size in self.shape:
            count = count * size
        return count

    @property
    def size_bytes(self) -> Any:
        return self.elements * self.itemsize

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{where}"


def same_device(attrs: Attrs, devices: tuple[str, ...]) -> str:
    """The device rule of ops that compute where their inputs are."""
    if len(set(devices)) > 1:
        where = ", ".join(device or "the session's device" for device in dict.fromkeys(devices))
        raise GraphError(f"inputs are on {where}; bring them together (`ops.copy_to(x, device)`)")
    return devices[0] if devices else HOME


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype; bfloat16, which NumPy lacks, is computed in float32 by the references."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


@outlives
@dataclass(frozen=True, eq=False)
class Call:
    """An op applied to inputs of given types: what its rules need to know, and no more.

    Equal layers of a model share their calls (`Graph` interns them), so a rule's answer is
    remembered once for all of them. `facts` holds what is known of each input, `fact` of the
    output, `found` what follows from all of this (`once_each`).
    """

    op: OpDef
    attrs: Attrs
    inputs: tuple[TensorType, ...]
    out: TensorType
    facts: tuple[Fact | None, ...] = ()
    fact: Fact | None = None
    found: Memo = field(default_factory=partial(Memo, MOST_FOUND), init=False, repr=False)

    @cached_property
    def in_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        return tuple(type_.shape for type_ in self.inputs)


def matrices(call: Call) -> tuple[int, ...]:
    """Inputs of rank 2 that a fused op multiplies its first one by."""
    if not (call.op.is_fused and call.op.multiplies):
        return ()
    return tuple(i for i, t in enumerate(call.inputs) if i and t.rank == 2)


def known_value(call: Call, i: int) -> float:
    """What is known of an input where it is not computed; 0 where nothing is."""
    fact = call.facts[i] if call.facts else None
    return fact.value if fact is not None and fact.value is not None else 0.0


@dataclass(frozen=True)
class OpDef:
    """One entry of the op table.

    Fields:
        name: the key in `OPS`.
        dtype: (attrs, input dtypes) → output dtype.
        forward: (call, input regions) → output region. `call.out` is not known yet when this
            runs for shape inference.
        needed: (call, output box) → one region per input.
        reference: (attrs, *arrays) → array.
        check: raises GraphError for attributes or types that make no sense.
        known: (call, input facts) → fact about the output.
        relates: (inputs, their facts) → facts, with what one input says about another.
        tames: whether no output is huge, however huge the inputs are.
        flops: (call, output box) → floating-point operations.
        multiplies: whether those are two per multiply–add: products and convolutions.
        decompose: (attrs, *nodes) → node built of other ops. Fused ops give this and leave
            `forward` and `needed` out.
        view: (call) → how the output indexes its first input, for ops that move no bytes.
        whole: (call) → dimensions that kernels of this op always compute whole.
        aligned: inputs that a kernel reads at exactly the (broadcast) output box, so that what is
            not needed of that box must be readable all the same.
        inplace: inputs whose bytes a kernel may overwrite with the output, element by element.
        place: (call, output box) → what of the box's place kernels can tell, besides the shapes
            and strides of what they are given; asked where nothing of the inputs is known.
        on_images: whether kernels want the channels of an image side by side: the result lies so.
        streams: (call) → inputs, weights, that kernels read whole whatever box they compute; the
            matrices that a fused op multiplies by.
        index: the input that names slices of the first one along `attrs["axis"]`, counted from
            the front.
        picks: inputs of which no more is read than the output holds: what an index names.
        writes: the input that replaces a part of the first one: the slices that `index` names, or
            else the block at `attrs["start"]`.
        converts: whether the output is the first input in another dtype.
        absent: (call, input) → what elements of the input are that a site leaves out.
        cancels: (attrs, *absolute values) → what the rounding of this op is relative to, for sums
            whose parts may cancel.
        neutral: (input, value): with this value throughout, the result is the other input.
        same_as: (call, inputs) → the input that the output equals where it has its type, or None.
        merges: (inner call, call) → attributes of one such op that does what both do in turn, or
            None.
        moves: whether its elements are those of its inputs, moved: every kernel has the same bits.
        keeps_axes: whether those were moved along dimensions, which are the inputs' in order.
        undoes_itself: whether the op of the op of x is x.
        commutes: whether its two inputs may change places, bit for bit.
        continues: the input that its rows, along the first dimension, begin with: where rows before
            are there, the last of them takes its place. `needed` is what rows need beside that.
        rounds: whether kernels may round what it multiplies, where the attribute `arithmetic` names
            a dtype to round to.
        widens: (call) → inputs, weights, that may be in less than its dtype if `in_less` is built.
        device: (attrs, devices of the inputs) → where the output is: with the inputs, which have
            to be together.
        in_less: (attrs, scales, *nodes) → node of these, where some weights are in less; `scales`
            has the scale of every row of those, by input, that stand for what they are times that.
    """

    name: str
    dtype: Callable[[Attrs, tuple[str, ...]], str]
    reference: Callable[..., Array]
    forward: Callable[[Call, tuple[Region, ...]], Region] | None = None
    needed: Callable[[Call, Box], tuple[Region, ...]] | None = None
    check: Callable[[Attrs, tuple[TensorType, ...]], None] | None = None
    known: Callable[[Call, Facts], Fact | None] | None = None
    relates: Callable[[tuple[Node, ...], Facts], Facts] | None = None
    tames: bool = False
    flops: Callable[[Call, Box], int] = field(default=lambda call, box: box.elements)
    multiplies: bool = False
    decompose: Callable[..., Node] | None = None
    view: Callable[[Call], ViewMap | None] | None = None
    whole: Callable[[Call], tuple[int, ...]] = field(default=lambda call: ())
    aligned: tuple[int, ...] = ()
    inplace: tuple[int, ...] = ()
    place: Callable[[Call, Box], Hashable] = field(default=lambda call, box: box)
    on_images: bool = False
    streams: Callable[[Call], tuple[int, ...]] = field(default=matrices)
    index: int | None = None
    picks: tuple[int, ...] = ()
    writes: int | None = None
    converts: bool = False
    absent: Callable[[Call, int], float] = field(default=known_value)
    cancels: Callable[..., Array] | None = None
    neutral: tuple[tuple[int, float], ...] = ()
    same_as: Callable[[Call, tuple[Node, ...]], int | None] = field(default=lambda call, ins: None)
    merges: Callable[[Call, Call], Attrs | None] = field(default=lambda inner, call: None)
    moves: bool = False
    keeps_axes: bool = False
    undoes_itself: bool = False
    commutes: bool = False
    continues: int | None = None
    rounds: bool = False
    widens: Callable[[Call], tuple[int, ...]] = field(default=lambda call: ())
    device: Callable[[Attrs, tuple[str, ...]], str] = field(default=same_device)
    in_less: Callable[..., Node] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name: what is copied or sent elsewhere is the entry of the table there."""
        return _named, (self.name,)

    @property
    def brings(self) -> bool:
        """Whether its output may be on another device than its inputs."""
        return self.device is not same_device

    @property
    def is_fused(self) -> bool:
        return self.decompose is not None

    def alike(self, inputs: Sequence[T]) -> list[T]:
        """Those of its inputs that the output may lie like in memory."""
        if self.keeps_axes:
            return list(inputs)
        return [inputs[i] for i in {*self.aligned, *self.inplace}]


@dataclass(frozen=True, slots=True)
class ViewMap:
    """How a view's coordinates move through its base.

    Fields:
        dims: for each view dimension, (base dimension, elements of it per step), or None where
            the view repeats the base (expand, a new axis of size 1).
        start: for each base dimension, the index that the view's coordinate 0 stands at.
        dense: base dimensions that must be stored whole and contiguous, because the view
            runs over them and their outer neighbour in one dimension.
    """

    dims: tuple[tuple[int, int] | None, ...]
    start: tuple[int, ...]
    dense: frozenset[int] = frozenset()


LEAVES = ("input", "parameter", "constant", "state")
OPS: dict[str, OpDef] = {}


def _named(name: str) -> OpDef:
    return OPS[name]


def register(op: OpDef) -> OpDef:
    """Put an op into the table."""
    if op.name in OPS or op.name in LEAVES:
        raise GraphError(f"op {op.name!r} is already in the table; choose another name")
    if not op.is_fused and (op.forward is None or op.needed is None):
        raise GraphError(f"atomic op {op.name!r} needs both `forward` and `needed`")
    OPS[op.name] = op
    return op


def same_dtype(attrs: Attrs, dtypes: tuple[str, ...]) -> str:
    """The dtype rule of ops whose inputs must agree."""
    if len(set(dtypes)) > 1:
        raise GraphError(
            f"inputs have different dtypes {', '.join(dtypes)}; cast one of them (`x.cast(dtype)`)"
        )
    return dtypes[0]


def first_input(call: Call, inputs: tuple[Node, ...]) -> int:
    """The `same_as` of ops that leave their first input as it is wherever the type stays."""
    return 0


def last_decides(inner: Call, call: Call) -> Attrs:
    """The `merges` of ops that need not be done twice: the outer one alone does it."""
    return call.attrs
