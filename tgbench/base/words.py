"""Times, sizes, counts and lists for people: the same words in plans, reports, tables, pictures."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, TypeAlias

LONGEST_NAME = 1024  # of a node, an input, a dimension
MOST_NAMED = 6  # names or classes in one line; the rest are counted
Progress: TypeAlias = Callable[[int, int, str], None]  # done, of, what is going on
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def silent(done: int, of: int, what: str) -> None:
    """The progress of what nobody listens to."""


def format_time(time_ns: float) -> str:
    """Four digits, in the largest unit that leaves a 1 or more before the point.

    >>> format_time(7_216), format_time(410_000), format_time(1_234_000), format_time(0)
    ('7.216 µs', '410 µs', '1.234 ms', '0 ns')
    """
    rounded = float(f"{time_ns:.4g}")
    for size, unit in UNITS:
        if abs(rounded) >= size:
            return f"{_digits(rounded / size, 4)} {unit}"
    return f"{_digits(time_ns, 3)} ns"


def _digits(value: float, most: int) -> str:
    """So many digits, and zeros instead of an exponent; `widgets/common.js` rounds the same way.

    >>> _digits(70.625, 4), _digits(10_235.0, 4), _digits(999.7, 3)
    ('70.62', '10240', '1000')
    """
    text = f"{value:.{most}g}"
    return f"{float(text):.0f}" if "e+" in text else text


def counted(count: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "node"), counted(2, "class"), counted(12_000, "rectangle")
    ('1 node', '2 classes', '12,000 rectangles')
    """
    ending = "" if count == 1 else "es" if what.endswith(("s", "x")) else "s"
    return f"{count:,} {what}{ending}"


def format_bytes(size_bytes: int) -> str:
    """A byte count for a person: `640 B`, `1.5 KiB`, `11 MiB`."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(size_bytes) >= 1024**exponent:
            return f"{_digits(size_bytes / 1024**exponent, 4)} {unit}"
    return f"{size_bytes} B"


def format_share(share: float) -> str:
    """A part of a whole; only nothing is 0%, and only all of it 100%.

    >>> format_share(0.123), format_share(0.002), format_share(0.998), format_share(1)
    ('12%', '<1%', '>99%', '100%')
    """
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def listed(names: Sequence[str]) -> str:
    """At most a handful of names."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """A line a row, with columns as wide as their widest cell; `right`: those of numbers.

    >>> aligned([["q", "64", "f4"], ["scores", "1024", "f4"]], right=[1])
    ['q         64  f4', 'scores  1024  f4']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ruled(header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int] = ()) -> str:
    """A table with a line under its header."""
    rule = ["─" * max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(aligned([header, rule, *rows], right))


def kind_of_value(value: object) -> str:
    """The type of a value, with an article.

    >>> kind_of_value(3), kind_of_value("x")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_name(value: Any) -> bool:
    """Whether a text may name something: a terminal, a picture and a page show it as it is.

    No control or bidirectional character, no line end, nothing that no font has; not endless.

    >>> is_name("layers.0/µ"), is_name("a\\nb"), is_name("\\u202eab"), is_name("")
    (True, False, False, False)
    """
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def printable(text: str) -> str:
    """A text as a terminal may have it: what it would obey is written out, all but line ends.

    >>> printable("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """A text for a label that has room for so many characters.

    >>> cut("transposed", 6), cut("linear", 6)
    ('trans…', 'linear')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_or_more(names: str | Sequence[str]) -> Sequence[str]:
    """A list of names, where one may stand by itself.

    >>> one_or_more("mask"), one_or_more(["mask", "ids"])
    (['mask'], ['mask', 'ids'])
    """
    return [names] if isinstance(names, str) else names


def shorten(value: Any) -> str:
    """A value in ASCII, on one line, for a message.

    >>> class Matrix:
    ...     __repr__ = lambda self: "[[1, 0],\\n [0, 1]]"
    >>> shorten(Matrix())
    '[[1, 0], [0, 1]]'
    """
    text = " ".join(line.strip() for line in ascii(value).split("\n"))
    return text if len(text) <= 60 else f"{text[:57]}..."
