"""Consecutive calls of loops as one: what is in a chain, and where its words lie.

    rms_norm │ rope │ attention │ copy │ linear       five calls from Python
    └──────────────── chain ─────────────────┘        one, and the same bits

A program's calls that are loops, one after another, are executed by compiled code from a table of
words (see `entries`); at another origin some words are others. Who asks for one call alone gets a
part of the chain.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base import once
from tgbench.base.coords import Moving, at
from tgbench.base.errors import KernelError
from tgbench.base.swept import FIRST, Lookup, Terms
from tgbench.graph.op_table import ITEMSIZE
from tgbench.kernels.registry import Host, Prepared
from tgbench.kernels.views import Bound

try:
    from tgbench.kernels.numba import entries, tiles
    from tgbench.kernels.numba.team import together
except ImportError:
    entries = None  # type: ignore[assignment]

Words = NDArray[np.int64]
Buffers = Mapping[tuple[Any, str], torch.Tensor]
MOST_BYTES = 64 << 20  # that a chain reads and writes: milliseconds, then signals are looked at
NOBODY = np.zeros(1, np.int64)  # the words of no team
LONG_BYTES = 1 << 20  # with more than this a chain lets other threads have Python meanwhile


@dataclass(frozen=True)
class Loop:
    """A compiled loop: called with arrays alone, or with words in a chain.

    Fields:
        function: numba's.
        kinds: of its arguments: dtypes of flat arrays, "int", "float".
        by_team: whether a team calls it, with its words and how many helpers there are before all
            other arguments, which are the `kinds`.
    """

    function: Any
    kinds: tuple[str, ...]
    by_team: bool = False

    def __call__(self, *arguments: Any) -> None:
        if self.by_team:
            together(self.function, *arguments)
        else:
            self.function(*arguments)

    @property
    def all_kinds(self) -> tuple[str, ...]:
        return (entries.TEAM, entries.HELPERS, *self.kinds) if self.by_team else self.kinds


@cache
def loop(function: Any, kinds: tuple[str, ...], by_team: bool = False) -> Loop:
    """A loop, compiled or loaded for arguments of these kinds."""
    made = Loop(function, kinds, by_team)
    with once.doing():
        function.compile(entries.types_of(made.all_kinds))
    return made


class LoopChain:
    """Calls of loops that are executed together.

    Fields:
        loops: those, in order.
        size_bytes: of what they read and write.
    """

    def __init__(self, origin: tuple[int, ...]) -> None:
        self._origin = origin
        self.loops: list[Loop] = []
        self.size_bytes = 0
        self._words: list[int] = []
        self._starts: list[int] = []
        self._moves: list[int] = []
        self._moving = 0
        self._tables: dict[int, int] = {}  # that numbers go with, behind the entries of the origin
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.loops)

    @property
    def is_full(self) -> bool:
        return self.size_bytes > MOST_BYTES

    @property
    def moves(self) -> int:
        """How many words depend on the origin."""
        return self._moving

    def add(
        self,
        one: Loop,
        arguments: Sequence[Any],
        buffers: Buffers,
        prepared: Callable[[Prepared], Any] | None = None,
    ) -> None:
        """A call behind the others; its arguments are numbers, arrays, `Host`s of buffers, and what
        is `prepared`: arrays.
        """
        self.loops.append(one)
        self._starts.append(len(self._words))
        self._words += entries.code(one.function, one.all_kinds)
        for argument in arguments:
            if prepared is not None and type(argument) is Prepared:
                argument = prepared(argument)
            self._add(argument, buffers)

    def _add(self, argument: Any, buffers: Buffers) -> None:
        if type(argument) is Host:
            view = argument.view
            buffer, itemsize = buffers[view.buffer, view.dtype], ITEMSIZE[view.dtype]
            self.size_bytes += at(view.shape[0], self._origin) * itemsize
            self._kept.append(buffer)
            self._word(view.offset, buffer.data_ptr(), itemsize)
            self._word(view.shape[0])
        elif isinstance(argument, np.ndarray):
            self.size_bytes += argument.nbytes
            self._kept.append(argument)
            self._words += [argument.ctypes.data, argument.size]
        elif isinstance(argument, float):
            self._words += struct.unpack("q", struct.pack("d", argument))
        else:
            self._word(argument)

    def _word(self, number: Any, lead: int = 0, scale: int = 1) -> None:
        """lead + scale · number, at any origin."""
        if type(number) is Moving:
            form = Moving(number.const, self._terms(number), number.per)
            self._moves += entries.moving(len(self._words), lead, scale, form)
            self._moving += 1
            number = 0
        self._words.append(lead + scale * int(number))

    def _terms(self, form: Moving) -> Terms:
        """Its terms, tables as entries behind the origin's."""
        count, tables = len(self._origin), self._tables
        return tuple([
            (i if i < FIRST else tables.setdefault(i, count + len(tables)), k)
            for i, k in form.terms
        ])  # fmt: skip

    def close(self) -> None:
        """Nothing more comes: the table is made."""
        self._table, self._begins = (
            np.array(self._words, np.int64),
            np.array(self._starts, np.int64),
        )
        self._forms = np.array(self._moves, np.int64)
        self._lookup = Lookup(self._tables)
        self.by_team = any(one.by_team for one in self.loops)
        self._go = entries.run_long if self.size_bytes > LONG_BYTES else entries.run
        _call_once(self._go)
        self.move_to(np.array(self._origin, np.int64))

    def move_to(self, origin: Words) -> None:
        if self._moves:
            both = np.concatenate([origin, self._lookup.at(origin)]) if self._tables else origin
            entries.move(self._table, self._forms, both)

    def execute(self, first: int, stop: int) -> None:
        """Some of the calls; raises what one of them raises."""
        if self.by_team:
            together(self.execute_by_team, first, stop)
            return
        failed = self._go(self._table, self._begins, first, stop, NOBODY, 0)
        if failed >= 0:
            self._fail(failed)

    def execute_by_team(self, words: Words, helpers: int, first: int, stop: int) -> int:
        """The same with a team; how many helpers are still at a call of it."""
        failed = entries.run_long(self._table, self._begins, first, stop, words, helpers)
        if failed >= 0:
            self._fail(failed)
        return int(tiles.are_busy(words))

    def _fail(self, number: int) -> None:
        """A loop raised: it says what when it is called alone."""
        one, word = self.loops[number], self._starts[number] + 2
        arguments = []
        for kind, width in zip(one.kinds, entries.widths(one.kinds), strict=True):
            arguments.append(_argument(kind, self._table[word : word + width].tolist()))
            word += width
        one(*arguments)
        raise KernelError(f"{one.function.__name__} failed in a chain, and does not alone")


@cache
def _call_once(go: Any) -> None:
    """The first call of a compiled function takes milliseconds, which are no run's: of no loops."""
    none = np.zeros(0, np.int64)
    with once.doing():
        go(none, none, 0, 0, NOBODY, 0)


def _argument(kind: str, words: list[int]) -> Any:
    """What a loop is called with, of its words."""
    if kind == "int":
        return words[0]
    if kind == "float":
        return struct.unpack("d", struct.pack("q", words[0]))[0]
    first, count = words
    dtype = np.dtype({"bfloat16": "uint16", "float16": "int16"}.get(kind, kind))
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(first)
    return np.ctypeslib.as_array(memory).view(dtype)


def apart(call: Bound) -> Bound:
    """A call that is executed as in a chain, by itself."""
    return in_a_row([call]) if isinstance(call[0], Loop) else call


def in_a_row(calls: Sequence[Bound]) -> Bound:
    """Calls one after another, as one: loops in a chain, as programs execute them."""
    loops = [(one, arguments) for one, arguments in calls if isinstance(one, Loop)]
    if len(loops) < len(calls):
        return _one_by_one, (calls,)
    chain = LoopChain(())
    for one, arguments in loops:
        chain.add(one, arguments, {})
    chain.close()
    return chain.execute, (0, len(calls))


def _one_by_one(calls: Sequence[Bound]) -> None:
    for function, arguments in calls:
        function(*arguments)


def is_part(call: Bound) -> bool:
    """Whether a call executes a part of a chain."""
    return getattr(call[0], "__func__", None) is LoopChain.execute
