"""oneDNN's C interface, as far as kernels need it: how tensors lie, computations, and calls.

    TensorForm ─→ Computation ─→ described: does the library do it, with how much scratch memory?
                              ─→ code for it, compiled once; `compute(code, *tensors)` runs it

PyTorch has a oneDNN of its own, but hides it: its operators allocate what they return, and lay
operands out as they like. Called directly, the library reads and writes memory of ours, in layouts
of ours, adds what is element-wise before a number leaves its register, and takes its scratch memory
from us. Without the library (the extra `onednn`) `library` is None, and nothing here is called.

What the library makes lives as long as somebody has it: programs have computations, these the code
for the numbers of rows that were last computed, code has its description. Besides, a stated number
of each is remembered for whoever asks next.

A product of rows by weights is one of matrices, or what the library calls an inner product. It has
code for either on some processors, and for inner products alone on others (those without AVX-512,
in version 3.2), where it multiplies matrices as BLAS libraries do: see `has_gemm_alone`.

Names and numbers are those of oneDNN's header files, version 3 (dnnl.h, dnnl_types.h).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import metadata
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tgbench.base import once

PACKAGE, FILE, MAJOR = "onednn-cpu-gomp", "libdnnl.so.3", 3
MOST_DIMENSIONS = 12
Dimensions = ctypes.c_int64 * MOST_DIMENSIONS

CPU, IN_ORDER, INFERENCE, DIRECT, ANY_LAYOUT, OUR_SCRATCH = 1, 1, 96, 1, 1, 1
TELLS_NAME, OF_WEIGHTS, OF_SCRATCH = 8, 131, 136
SOURCE, TARGET, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80
ROWS = 2  # dimensions of rows
WEIGHT_OPERAND = 1  # behind the rows; laid out, they are bytes
DTYPES = {"bfloat16": 2, "float32": 3}
MOST_LAYOUTS, MOST_DESCRIPTIONS, MOST_CODES = 1 << 12, 1 << 10, 1 << 9  # remembered for others
MOST_ROWS = 1 << 8  # numbers of rows that a computation has code for
FEW_ROWS, MANY_ROWS = 16, 64  # pieces are of up to so many rows, or of multiples of these
OFTEN = 4  # runs in pieces: together they take what compiling does
REFERENCE, GEMM = "ref", "gemm"  # how ways are called that are there to be right, not fast
SQUARE = 64, 64


class _Argument(Structure):
    """One argument of a call: which, and its memory."""

    _fields_ = (("role", c_int), ("memory", c_void_p))


def _file() -> str:
    """Where the installed package has the library; else its name, for the system's own."""
    try:
        files = metadata.files(PACKAGE) or ()
    except metadata.PackageNotFoundError:
        files = ()
    return next((str(one.locate()) for one in files if one.name == FILE), FILE)


class _Version(Structure):
    _fields_ = (("major", c_int), ("minor", c_int), ("patch", c_int))


def _loaded() -> CDLL | None:
    """The library, if there is one, and of the version that is known here."""
    try:
        found = CDLL(_file())
        found.dnnl_version.restype = POINTER(_Version)
    except (OSError, AttributeError):
        return None
    if found.dnnl_version().contents.major != MAJOR:
        return None
    found.dnnl_primitive_desc_query_md.restype = c_void_p
    found.dnnl_memory_desc_get_size.restype = c_size_t
    found.dnnl_memory_set_data_handle.argtypes = (c_void_p, c_void_p)
    return found


library = _loaded()


class Refused(Exception):  # noqa: N818  (a signal that the library does not do that)
    """The library does not do a computation."""


def _ask(function: str, *arguments: Any) -> None:
    """Call a function of the library; raises Refused where that does not succeed."""
    if status := getattr(library, function)(*arguments):
        raise Refused(f"{function}: status {status}")


class _Handle:
    """Something that the library made, and takes back when nobody has it any more."""

    def __init__(self, kind: str, make: str, *arguments: Any) -> None:
        self._as_parameter_ = c_void_p()
        self._destroy = getattr(library, f"dnnl_{kind}_destroy")
        _ask(f"dnnl_{make}", byref(self._as_parameter_), *arguments)

    def __del__(self) -> None:
        if self._as_parameter_:
            self._destroy(self._as_parameter_)


@cache
def _engine() -> _Handle:
    return _Handle("engine", "engine_create", CPU, c_size_t(0))


# --- how tensors lie -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorForm:
    """How a tensor lies: sizes and strides, in elements; no strides for as the library likes it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str = "float32"

    @property
    def turned(self) -> TensorForm:
        """The same with its dimensions in the other order."""
        return replace(self, shape=self.shape[::-1], strides=self.strides and self.strides[::-1])

    def of_rows(self, rows: int) -> TensorForm:
        """The same with another number of rows, or images."""
        return replace(self, shape=(rows, *self.shape[1:]))


@lru_cache(MOST_LAYOUTS)
def _layout(form: TensorForm) -> _Handle:
    count, shape, dtype = len(form.shape), Dimensions(*form.shape), DTYPES[form.dtype]
    if form.strides is None:
        how: tuple[str, Any] = "memory_desc_create_with_tag", ANY_LAYOUT
    else:
        how = "memory_desc_create_with_strides", Dimensions(*form.strides)
    return _Handle("memory_desc", how[0], count, shape, dtype, how[1])


# --- computations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Post:
    """What is done to each number of a result before it is written.

    Fields:
        kind: the number of a function of one number; of one with another tensor if there is `form`.
        alpha, beta: parameters of that function.
        form: how that tensor lies; None for none.
        is_there: that tensor, which is added, lies where the result goes.
    """

    kind: int
    alpha: float = 0.0
    beta: float = 0.0
    form: TensorForm | None = None
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class Computation:
    """Something to be computed, of operands that lie in a certain way.

    Fields:
        source, weights, bias, target: how operands lie; weights as `usual` wants them, if given.
        usual: the computation whose layout of weights serves for all like it.
        window: strides, dilations, and padding on both sides; none: a product.
        posts: what else is done to each number.
        threads: that compute it.
        codes: by number of rows, those last asked for the first time at the end.
        met: by number of rows, in how many runs they were computed in pieces, for lack of code for
            so many, and in which one last.
    """

    source: TensorForm
    weights: TensorForm
    bias: TensorForm | None
    target: TensorForm
    usual: Computation | None
    window: tuple[tuple[int, ...], ...] = ()
    posts: tuple[Post, ...] = ()
    threads: int = 1
    codes: dict[int, Code] = field(default_factory=dict, compare=False, repr=False)
    met: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def pieces(self, rows: int) -> Sequence[tuple[int, int]]:
        """Between which rows to compute one after the other, by code that serves other numbers of
        rows as well; one piece where there is code for so many, or they come often.

            77 rows   0:64, 64:77        91 rows   0:64, 64:80, 80:91

        Weights are read once a piece. Some runs of that take as long as compiling does, so a number
        of rows that was met in so many gets code of its own (ski rental, as with programs); and one
        that is met twice in a run, by equal layers, at once.
        """
        if rows in self.codes or rows <= FEW_ROWS or self.window or not _are_rows(self):
            return ()
        (runs, last), now = self.met.get(rows, (0, 0)), once.stretch()
        if runs >= OFTEN or last == now:
            return ()
        if len(self.met) >= MOST_ROWS:
            self.met.clear()
        self.met[rows] = runs + 1, now
        most = rows // MANY_ROWS * MANY_ROWS
        more = rows // FEW_ROWS * FEW_ROWS
        ends = sorted({0, most, more, rows})
        return list(pairwise(ends))

    def awaits(self, rows: int) -> bool:
        """Whether the first run with so many compiles code: no other code serves these."""
        is_alone = rows <= FEW_ROWS or bool(self.window) or not _are_rows(self)
        return is_alone and rows not in self.codes

    def lengths(self, most: int) -> Iterator[int]:
        """Numbers of rows of pieces, up to so many, that there is no code for; the usual first."""
        if not self.window and _are_rows(self):
            many, few = range(MANY_ROWS, most + 1, MANY_ROWS), range(FEW_ROWS, MANY_ROWS, FEW_ROWS)
            rows = (*many, *few, *range(1, FEW_ROWS))
            yield from (n for n in rows if n <= most and n not in self.codes)

    def code(self, rows: int) -> Code:
        """Compiled for that many rows or images: a program may serve runs of several sizes."""
        return self.codes.get(rows) or self._compiled_for(rows)

    def _compiled_for(self, rows: int) -> Code:
        with once.doing():
            found = _compiled(_of_rows(self, rows))
        with _lock:
            if len(self.codes) >= MOST_ROWS:
                del self.codes[next(iter(self.codes))]
            self.codes[rows] = found
        return found


def _are_rows(one: Computation) -> bool:
    """Whether it is a product of rows by weights: more rows are more of the same."""
    return len(one.source.shape) == ROWS


def _of_rows(one: Computation, rows: int) -> Computation:
    """The same for another number of rows; what has one row for all of them keeps it."""
    if rows == one.source.shape[0]:
        return one
    posts = tuple(
        post if post.form is None else replace(post, form=post.form.of_rows(rows))
        for post in one.posts
    )
    source, target = one.source.of_rows(rows), one.target.of_rows(rows)
    return replace(one, source=source, target=target, posts=posts, codes={}, met={})


_lock = threading.Lock()  # two sessions may compute the same at once


@lru_cache(MOST_CODES)
def _compiled(one: Computation) -> Code:
    """Code that is compiled once for all who compute the same."""
    return Description(one).code


@lru_cache(MOST_DESCRIPTIONS)
def described(one: Computation) -> Description | None:
    """How the library would do a computation; None where it would not, or slowly."""
    try:
        found = Description(one)
    except Refused:
        return None
    slow = (REFERENCE,) if has_gemm_alone() else (REFERENCE, GEMM)
    return None if found.name.startswith(slow) else found


@cache
def has_gemm_alone() -> bool:
    """Whether the library multiplies matrices here as a BLAS library does, for lack of better code.

    What it does by `gemm` is then no slower than what others do. Elsewhere it is, as it is left for
    operands that do not suit the code for this processor.
    """
    return Description(_square("float32"), is_inner=False).name.startswith(GEMM)


@cache
def multiplies(dtype: str) -> bool:
    """Whether it multiplies numbers of a dtype on this processor, and not slowly."""
    return described(_square(dtype)) is not None


def _square(dtype: str) -> Computation:
    """A product that all fast ways take."""
    rows, weights = TensorForm(SQUARE, (SQUARE[1], 1), dtype), TensorForm(SQUARE, None, dtype)
    return Computation(rows, weights, None, replace(rows, dtype="float32"), None)


def _is_inner(one: Computation) -> bool:
    """Whether it is rows by weights, and better computed as an inner product."""
    return not one.window and _are_rows(one) and has_gemm_alone()


class Description:
    """How the library does a computation.

    Fields:
        name: of its way to do that.
        weights: the layout of weights that it wants.
        weights_bytes, scratch_bytes: of these, and of memory that calls write into.
        is_inner: whether it is an inner product, whose weights are [columns, depth].
    """

    def __init__(self, one: Computation, *, is_inner: bool | None = None) -> None:
        self.computation = one
        self._usual = _usual_of(one)  # whose layout of weights is this one's
        self.is_inner = _is_inner(one) if is_inner is None else is_inner
        self._bias = _bias(one.bias, is_inner=self.is_inner)
        self._handle = _described(one, self._usual, self._bias, is_inner=self.is_inner)
        named = c_char_p()
        _ask("dnnl_primitive_desc_query", self._handle, TELLS_NAME, 0, byref(named))
        self.name = (named.value or b"").decode()
        self.weights, self.weights_bytes = self._layout_of(OF_WEIGHTS)
        self._scratch, self.scratch_bytes = self._layout_of(OF_SCRATCH)

    def _layout_of(self, what: int) -> tuple[c_void_p, int]:
        """One of its operands' layouts, which lasts as long as this, and its bytes."""
        assert library is not None
        found = c_void_p(library.dnnl_primitive_desc_query_md(self._handle, what, 0))
        return found, int(library.dnnl_memory_desc_get_size(found))

    @property
    def code(self) -> Code:
        """Compiled calls of source, weights, bias, target, the posts' others, and scratch."""
        one = self.computation
        parts: list[tuple[int, Any]] = [
            (SOURCE, _layout(one.source)),
            (WEIGHTS, self.weights),
            *([(BIAS, self._bias)] if self._bias else ()),
            (TARGET, _layout(one.target)),
        ]
        for i, post in enumerate(one.posts):
            if post.form is not None and not post.is_there:
                parts.append((_other_operand(i), _layout(post.form)))
        parts += [(SCRATCHPAD, self._scratch)] if self.scratch_bytes else []
        return Code(_Handle("primitive", "primitive_create", self._handle), parts, self)


def _other_operand(i: int) -> int:
    """The role of the second operand of what is done as the i-th thing to a result."""
    return 32768 * (i + 1) | 2


def _bias(form: TensorForm | None, *, is_inner: bool) -> _Handle | None:
    if form is None:
        return None
    return _layout(TensorForm(form.shape[1:], (1,), form.dtype) if is_inner else form)


def _described(
    one: Computation, usual: Description | None, bias: _Handle | None, *, is_inner: bool
) -> _Handle:
    source, target, how = _layout(one.source), _layout(one.target), _attributes(one)
    windows = [Dimensions(*numbers) for numbers in one.window]
    form = one.weights.turned if is_inner else one.weights
    weights = _layout(form) if usual is None else usual.weights
    if is_inner:
        make = "inner_product_forward_primitive_desc_create"
        operands = (source, weights, bias, target)
        return _Handle("primitive_desc", make, _engine(), INFERENCE, *operands, how)
    if not windows:
        make = "matmul_primitive_desc_create"
        return _Handle("primitive_desc", make, _engine(), source, weights, bias, target, how)
    return _Handle(
        "primitive_desc", "convolution_forward_primitive_desc_create", _engine(), INFERENCE, DIRECT,
        source, weights, bias, target, *windows, how,
    )  # fmt: skip


def _usual_of(one: Computation) -> Description | None:
    if one.usual is None:
        return None
    usual = described(one.usual)
    if usual is None:
        raise Refused("weights cannot be laid out")
    return usual


def _attributes(one: Computation) -> _Handle:
    found = _Handle("primitive_attr", "primitive_attr_create")
    _ask("dnnl_primitive_attr_set_scratchpad_mode", found, OUR_SCRATCH)
    if one.posts:
        posts = _Handle("post_ops", "post_ops_create")
        for post in one.posts:
            _append(posts, post)
        _ask("dnnl_primitive_attr_set_post_ops", found, posts)
    return found


def _append(posts: _Handle, post: Post) -> None:
    if post.form is None:
        parameters = c_float(post.alpha), c_float(post.beta)
        _ask("dnnl_post_ops_append_eltwise", posts, post.kind, *parameters)
    elif post.is_there:
        _ask("dnnl_post_ops_append_sum", posts, c_float(1), 0, DTYPES[post.form.dtype])
    else:
        _ask("dnnl_post_ops_append_binary", posts, post.kind, _layout(post.form))


# --- calls ---------------------------------------------------------------------------------------


class Code:
    """A compiled computation, and what its calls are given."""

    def __init__(self, handle: _Handle, parts: Sequence[tuple[int, Any]], of: Description) -> None:
        self.handle, self.scratch_bytes = handle, of.scratch_bytes
        self._of = of  # whose layouts the parts may be
        self.arguments = _Arguments(parts)

    def __repr__(self) -> str:
        return "code"


class _Arguments(threading.local):
    """The arguments of a call. Each thread has its own: two sessions may run at once."""

    def __init__(self, parts: Sequence[tuple[int, Any]]) -> None:
        self.stream = _Handle("stream", "stream_create", _engine(), IN_ORDER)
        made = [
            _Handle("memory", "memory_create", layout, _engine(), c_void_p()) for _, layout in parts
        ]
        self.memories, self.count = made, len(made)
        given = [
            _Argument(role, memory._as_parameter_.value)
            for (role, _), memory in zip(parts, made, strict=True)
        ]
        self.given = (_Argument * self.count)(*given)


def compute(one: Computation, scratch: Tensor | None, *operands: Tensor) -> None:
    """Compute it over these tensors' memory, for as many rows as the first of them has.

    Where compiling is put off, numbers of rows that were met seldom are computed in pieces.
    """
    rows = operands[0].shape[0]
    pieces = one.pieces(rows) if once.is_put_off() else ()
    if len(pieces) < 2:
        _compute(one, rows, scratch, operands)
        return
    for start, stop in pieces:
        part = [
            given[start:stop] if i != WEIGHT_OPERAND and given.shape[0] == rows else given
            for i, given in enumerate(operands)
        ]
        _compute(one, stop - start, scratch, part)


def _compute(
    one: Computation, rows: int, scratch: Tensor | None, operands: Sequence[Tensor]
) -> None:
    """The library says of each number of rows what scratch memory it wants, mostly the same for
    all.
    """
    code = one.code(rows)
    if not code.scratch_bytes:
        call(code, *operands)
        return
    if scratch is None or scratch.nbytes < code.scratch_bytes:
        scratch = torch.empty(code.scratch_bytes, dtype=torch.uint8)
    call(code, *operands, scratch)


def call(code: Code, *operands: Tensor) -> None:
    """Run compiled code over these tensors' memory."""
    assert library is not None
    arguments, point = code.arguments, library.dnnl_memory_set_data_handle
    for memory, operand in zip(arguments.memories, operands, strict=True):
        point(memory, operand.data_ptr())
    _ask("dnnl_primitive_execute", code.handle, arguments.stream, arguments.count, arguments.given)


def laid_out(weight: Tensor, usual: Computation) -> Tensor:
    """Weights as the library wants them for computations like this one, rounded to its dtype if
    that is another one; opaque to all others.
    """
    wanted = described(usual)
    assert wanted is not None
    weight = weight.T if wanted.is_inner else weight
    dtype = str(weight.dtype).removeprefix("torch.")
    own = _layout(TensorForm(tuple(weight.shape), weight.stride(), dtype))
    how = _Handle(
        "primitive_desc", "reorder_primitive_desc_create", own, _engine(), wanted.weights,
        _engine(), None,
    )  # fmt: skip
    turned = torch.empty(wanted.weights_bytes, dtype=torch.uint8)
    parts = [(SOURCE, own), (TARGET, wanted.weights)]
    call(Code(_Handle("primitive", "primitive_create", how), parts, wanted), weight, turned)
    return turned
