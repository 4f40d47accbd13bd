"""The garbage collector, and what is made to last: it need not look at that again and again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tgbench.base.machine import give_back_freed
from tgbench.base.surroundings import untraced

UNSEEN = 0.25  # of all objects, as the collector has it
MUCH_BYTES = 16 << 20  # that were freed: what is free is given back to the system
MOST_YOUNG = 300_000  # objects that nobody has looked at yet
FEW = 1_000  # objects: Python 3.12 freezes what is immortal itself, some hundreds


@contextmanager
def lasting() -> Iterator[None]:
    """Let what is made inside join the oldest generation of the garbage collector, unseen.

    A program, and what planning remembers, is thousands of small objects that last. The collector
    would look at each of them three times as they grow old, and after some dozens of programs at
    everything that the process holds, which takes longer than making all of them. What was young
    before is collected first, so that garbage of others waits no longer than it did. Where the
    process keeps objects frozen, they stay so. Much memory that was `freed` inside is given back.
    """
    if _Held.is_frozen:  # one before was stopped just where it would have said so
        gc.unfreeze()
        _Held.is_frozen = False
    if _Held.is_disabled:
        gc.enable()
        _Held.is_disabled = False
    if not gc.isenabled():
        yield
        return
    gc.collect(1)
    try:
        _Held.is_disabled = True
        gc.disable()
        yield
    finally:  # an interrupt comes behind calls, and where functions begin: here are none of these
        try:
            if gc.get_freeze_count() < FEW:
                _Unseen.made += gc.get_count()[0]
                _Held.is_frozen = True
                gc.freeze()
                _Unseen.all = _Unseen.all or gc.get_freeze_count()  # once: all are walked through
        finally:
            try:
                if _Held.is_frozen:
                    gc.unfreeze()
                    _Held.is_frozen = False
            finally:
                gc.enable()
                _Held.is_disabled = False
    _give_back_much()


@contextmanager
def unseen() -> Iterator[None]:
    """Let the collector look at what is made inside once, when `tend` is asked to, and at nothing
    else while the block runs.

    A search makes and drops hundreds of thousands of objects beside all that it remembers: looking
    at that again and again is a third of its time. Where the process keeps objects frozen, or the
    collector is off, all is as ever; what an interrupt leaves is mended by the next block.
    """
    if _Held.rests:
        gc.unfreeze()
        _Held.rests = False
    if _Held.is_off:
        gc.enable()
        _Held.is_off = False
    if not gc.isenabled() or gc.get_freeze_count() >= FEW:
        yield
        return
    try:
        _Held.is_off = True
        gc.disable()
        _Held.rests = True
        gc.freeze()
        yield
    finally:  # as above
        try:
            if _Held.rests:
                gc.unfreeze()
                _Held.rests = False
        finally:
            if _Held.is_off:
                gc.enable()
                _Held.is_off = False


def tend() -> None:
    """Inside `unseen`: look at what was made since the last time, if that is much."""
    if _Held.rests and gc.get_count()[0] > MOST_YOUNG:
        gc.collect()
        gc.freeze()


class _Held:
    """What the collector was told here, and not yet told otherwise."""

    is_disabled = is_frozen = is_off = rests = False


class _Owners:
    """Who holds memory, and how much was freed since what is free was given back."""

    there: ClassVar[list[tuple[weakref.ref[Any], int]]] = []
    freed_bytes = 0


def give_back_with(owner: Any, size_bytes: int) -> None:
    """Give memory back to the system once the collector let owners go that held much of it.

    Blocks of some megabytes lie beside others that stay, so that the C library keeps them when they
    are freed. They are when the collector is done, and not yet when a finaliser is called. All that
    is free is gone through for that, so little is left until there is more.
    """
    if _give_back not in gc.callbacks:
        gc.callbacks.append(_give_back)
    _Owners.there.append((weakref.ref(owner), size_bytes))


@untraced
def _give_back(phase: str, info: dict[str, int]) -> None:
    if phase != "stop" or not info["generation"]:
        return
    gone = [size for owner, size in _Owners.there if owner() is None]
    if gone:
        _Owners.there = [pair for pair in _Owners.there if pair[0]() is not None]
        freed(sum(gone))
    _give_back_much()


def freed(size_bytes: int) -> None:
    """So much was freed at least, of what was in use for a moment only."""
    _Owners.freed_bytes += size_bytes


def _give_back_much() -> None:
    if _Owners.freed_bytes >= MUCH_BYTES:
        _Owners.freed_bytes = 0
        give_back_freed()


class _Unseen:
    """Objects that `lasting` let join the oldest generation since all were looked at; and all then.

    Counting all takes as long as making a program does.
    """

    made = all = 0


def collect_dropped() -> None:
    """Let sessions go that nobody has any more: asked before another one is made.

    They hold themselves, as programs know the memory that knows them. The collector looks at
    everything once what is new is a quarter of it; it has not seen what was made to last, so that
    is counted here.
    """
    if gc.isenabled() and _Unseen.made > _Unseen.all * UNSEEN:
        _Unseen.made = _Unseen.all = 0
        gc.collect()
