"""Times and counts, as people read them."""

from __future__ import annotations

import numpy as np
import pytest

import tgbench as tg
from tgbench.base.words import counted, format_time, ruled
from tgbench.commands.progress import table
from tgbench.session.profile import Profile
from tgbench.views.draw.tables import TextTable


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1234, "1.234 µs"), (410_000, "410 µs"), (2.5e9, "2.5 s"),
     (999_960, "1 ms"), (999_999_999, "1 s"), (0.25, "0.25 ns"), (-1500, "-1.5 µs")],
)  # fmt: skip
def test_times_in_words(time_ns: float, text: str) -> None:
    assert format_time(time_ns) == text


@pytest.mark.parametrize(
    ("count", "what", "text"),
    [(0, "class", "0 classes"), (1, "class", "1 class"), (2, "box", "2 boxes"),
     (1, "node", "1 node"), (1234, "node", "1,234 nodes")],
)  # fmt: skip
def test_counts_in_words(count: int, what: str, text: str) -> None:
    assert counted(count, what) == text


def test_one_of_a_kind_is_one_everywhere() -> None:
    """A session of one node: nothing of it is called 1 nodes, 1 calls or 0.00 ms."""
    g = tg.GraphBuilder()
    g.output("y", g.input("x", (4,)) * 2.0)
    session = tg.GraphSession(g.build())
    session.run({"x": np.ones(4, np.float32)})
    shown = [session, session.plan, session.report(), session.trace, session.last.program]
    told = "\n".join(
        text
        for one in shown
        for text in (str(one), *one._repr_mimebundle_().values())  # type: ignore[attr-defined]
    )
    for wrong in ("1 nodes", "1 calls", "1 programs", "1 classes", "0.00 ms"):
        assert wrong not in told, wrong


def test_every_table_has_the_same_columns() -> None:
    header, rows = ("what", "ms"), [("a", "1.5"), ("long", "10")]
    lines = ["what   ms", "────  ───", "a     1.5", "long   10"]
    assert ruled(header, rows, [1]).splitlines() == lines
    assert table(header, rows).splitlines() == lines
    assert str(TextTable("times", header, rows)).splitlines() == ["times", lines[0], *lines[2:]]


def test_one_weight_too_many_is_one_weight() -> None:
    g = tg.GraphBuilder()
    g.output("y", g.input("x", (4,)) * 2.0)
    with pytest.raises(tg.WeightsError, match=r"^1 weight not used by the graph, 'w'"):
        tg.GraphSession(g.build(), {"w": np.ones(2, np.float32)})


def test_a_profile_says_what_it_did_in_a_line() -> None:
    made = Profile({("k", "s"): 200}, programs=1, took_s=5.94775)
    assert repr(made) == "1 measured in 1 program, 5.9 s"
