"""Sizes and times in the browser are the words that Python has for them."""

from __future__ import annotations

import random

import pytest

from benchmarks import browsers
from tgbench.base.words import format_bytes, format_time

SAID = """async ([name, values]) => {
  const found = await import("/widgets/common.js");
  return values.map((value) => found[name](value));
}"""


def sizes() -> list[int]:
    """Every step of 64 bytes up to a MiB, where halves lie; the ends of units; any others."""
    rng = random.Random(0)
    ends = [1024**n + k for n in (1, 2, 3, 4) for k in (-65, -1, 0, 1, 63)]
    far = [int(2 ** rng.uniform(0, 50)) for _ in range(20_000)]
    return [*range(1025), *range(0, 1 << 20, 64), *ends, *far, *(-size for size in far[:1000])]


def times() -> list[float]:
    rng = random.Random(0)
    ends = [
        unit * share for unit in (1e3, 1e6, 1e9, 1e13) for share in (0.9996, 0.99996, 1, 1.0005)
    ]
    near = [k / 8 for k in range(40_000)]
    return [*near, *ends, *(10 ** rng.uniform(-2, 13) for _ in range(20_000))]


CASES = [("bytes", format_bytes, sizes()), ("duration", format_time, times())]


@pytest.mark.parametrize(("name", "words", "values"), CASES)
def test_they_are_rounded_the_same_way(
    bare: browsers.Watched, files: str, name: str, words: object, values: list[float]
) -> None:
    assert callable(words)
    bare.page.route("**/bare.html", lambda route: route.fulfill(body=browsers.BARE))
    bare.page.goto(f"{files}/bare.html")
    told = bare.page.evaluate(SAID, [name, values])
    pairs = zip(values, map(words, values), told, strict=True)
    other = [(value, here, there) for value, here, there in pairs if here != there]
    assert not other, f"{len(other)}, as {other[:5]}"
