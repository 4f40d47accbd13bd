"""Answers that are remembered: which ones stay, what they take, and when they go."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from typing import Any

import numpy as np

from tgbench.base.known import ConstantData
from tgbench.base.memo import Allowance, Memo, bytes_of, once_each
from tgbench.base.regions import Box, Region


def deep_bytes(*values: Any) -> int:
    """What values take together, every object once: the slow and obvious count."""
    seen: set[int] = set()
    waiting, size = list(values), 0
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            size += sys.getsizeof(one) + 16 * gc.is_tracked(one)
            waiting += gc.get_referents(one)
    return size


def region(at: int) -> Region:
    return Region((Box(((1000 + at, 2000 + at), (3000 + at, 4000 + at))),))


def test_what_is_asked_for_stays_and_the_rest_goes() -> None:
    memo, made = Memo(most=10), []

    def asked(key: Any) -> Any:
        return memo.get(key, lambda: made.append(key) or key)

    for number in range(100):
        assert asked(number) == number
        assert asked("often") == "often"
        assert len(memo) <= 20
    assert made.count("often") == 1
    asked(0)
    assert made.count(0) == 2


def test_memos_of_one_allowance_share_its_bytes() -> None:
    allowance = Allowance(limit_bytes=200_000)
    busy, idle = allowance.memo(), allowance.memo()
    for number in range(20):
        idle.get(("idle", number), region, number)
    held = len(idle)
    for at in range(5_000):
        busy.get(("busy", at), region, at)
        assert allowance.size_bytes <= 210_000
    assert held == 20
    assert not len(idle), "what nobody asks for makes room for others"
    assert len(allowance) == len(busy) > 50


def test_memos_that_went_are_not_counted() -> None:
    allowance = Allowance()
    memo = allowance.memo()
    memo.get("a", region, 5)
    assert allowance.size_bytes > 300
    del memo
    assert (allowance.size_bytes, len(allowance)) == (0, 0)


def several(first: int, each: int) -> tuple[Region, ...]:
    return tuple(map(region, range(first, first + each)))


def test_bytes_are_those_of_a_slow_count() -> None:
    for each in (1, 4, 32):
        memo = Memo(allowance=Allowance(None))
        for number in range(400):
            memo.get(("key", number + 1000), several, number, each)
        ratio = memo.size_bytes / deep_bytes(memo.entries)
        assert 0.8 < ratio < 1.25, (each, ratio)


def test_what_others_hold_is_shared_between_them() -> None:
    parts = [region(number) for number in range(50)]
    alone = sum(bytes_of(one) for one in parts)
    holders = [tuple(parts) for _ in range(4)]
    together = sum(map(bytes_of, holders))
    assert together < 1.2 * alone + 4 * sys.getsizeof(holders[0])
    del holders, parts


def test_constants_and_types_are_nobodys() -> None:
    data = ConstantData(np.zeros(1 << 20))
    assert bytes_of((data, data)) < 1000
    assert bytes_of((Region, Box)) < 1000


def test_what_follows_from_an_object_goes_with_it() -> None:
    made = []

    @once_each
    def multiplied(data: ConstantData, times: int) -> Any:
        made.append(times)
        return data.array * times

    data = ConstantData(np.arange(3))
    found = weakref.ref(multiplied(data, 2))
    assert multiplied(data, 2) is found()
    assert made == [2]
    del data
    assert found() is None


def test_a_memo_is_empty_in_another_process() -> None:
    memo = Memo(7)
    memo.get("a", lambda: object())
    found = pickle.loads(pickle.dumps(memo))
    assert (len(found), found.most) == (0, 7)


def test_more_may_be_remembered_for_a_while() -> None:
    """What was remembered beyond the limit is gone afterwards; what fits it stays."""
    allowance = Allowance(100_000)
    memo = allowance.memo()

    def filled(count: int) -> int:
        for i in range(count):
            memo.get(i, region, i)
        return len(memo)

    with allowance.raised(10_000_000):
        assert filled(2_000) == 2_000
        assert allowance.size_bytes > 100_000
    assert allowance.limit_bytes == 100_000
    assert allowance.size_bytes <= 100_000
    before = filled(20)
    with allowance.raised(10_000_000):
        pass
    assert len(memo) == before == 20
    unlimited = Allowance(None)
    with unlimited.raised(1):
        assert unlimited.limit_bytes is None
