"""Results are what was asked for, as copies or as views that nobody writes through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base.coords import origin_symbol
from tgbench.base.regions import Box, Region
from tgbench.graph import ops
from tgbench.graph.graph import GraphBuilder
from tgbench.runs.buckets import region_of_index
from tgbench.session.results import MOST_SHOWN, Piece, Shown, Wish, gather
from tgbench.session.session import GraphSession

ROWS, WIDTH = 8, 4
WHOLE = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


def _session(making: Any = "always") -> GraphSession:
    g = GraphBuilder()
    g.output("y", ops.relu(g.input("x", (ROWS, WIDTH))) * 2.0)
    return GraphSession(g.build(), making=making)


sides = st.one_of(
    st.integers(0, ROWS - 1),
    st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS)).map(
        lambda ends: slice(min(ends[0], ends[1] - 1), max(ends[0] + 1, ends[1]))
    ),
)
columns = st.one_of(st.integers(0, WIDTH - 1), st.just(slice(None)), st.just(...))
indices = st.one_of(sides, st.tuples(sides), st.tuples(sides, columns), st.just(...))


@given(st.lists(indices, min_size=1, max_size=12), st.integers(0, ROWS), st.booleans())
def test_a_program_of_a_larger_run_hands_out_what_numpy_would(
    asked: list[Any], cut: int, as_torch: bool
) -> None:
    """Of all rows, in one part or two that meet somewhere; asked again, and from elsewhere."""
    tensor = torch.from_numpy(WHOLE.copy())
    spans = [(0, ROWS)] if cut in (0, ROWS) else [(0, cut), (cut, ROWS)]
    u = origin_symbol(0)  # at 0
    parts = [(Box(((u + a, u + b), (0, WIDTH))), tensor[a:b]) for a, b in spans]
    shown: Shown = {}
    shape = WHOLE.shape
    wishes = [Wish.of(region_of_index(index, shape, "y"), index, shape) for index in asked]
    for wish, index in zip([*wishes, *wishes], [*asked, *asked], strict=True):
        found = gather(parts, (0,), wish, False, shown, True, as_torch)
        assert isinstance(found, torch.Tensor) == as_torch
        assert np.array_equal(np.asarray(found), WHOLE[index])
        assert np.shape(found) == WHOLE[index].shape


def test_views_are_apart_and_cannot_be_written_through() -> None:
    session = _session()
    x = np.ones((ROWS, WIDTH), np.float32)
    session.run(x)
    x[2] = 5
    first = session.run(x, want=np.s_[2], copy=False)["y"]
    x[2] = 6
    second = session.run(x, want=np.s_[2], copy=False)["y"]
    assert first is not second
    assert (first == 12).all(), "right until the next run: then it shows what that left"
    for view in (first, second):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    mine = session.run(x, want=np.s_[2])["y"]
    mine[:] = -1  # a copy is the caller's
    assert (session.run(x, want=np.s_[2])["y"] == 12).all()


def test_what_was_shown_elsewhere_is_forgotten_where_a_program_moves() -> None:
    session = _session()
    x = np.ones((ROWS, WIDTH), np.float32)
    session.run(x)
    places: dict[int, set[int]] = {}
    for at in (1, 2, 3, 4, 5, 1, 2, 3):
        x[at] += at
        found = session.run(x, want=np.s_[at])["y"]
        assert np.array_equal(found, 2 * x[at])
        program = session.report().program
        places.setdefault(id(program), set()).add(at)
        assert {piece.box for piece in program.shown} == {Box(((at, at + 1), (0, WIDTH)))}
    assert max(map(len, places.values())) > 1, "one program, at one place after the other"


def test_only_so_many_pieces_are_remembered() -> None:
    shown: Shown = {}
    parts = [(Box(((0, ROWS), (0, WIDTH))), torch.from_numpy(WHOLE))]
    for _ in range(3 * MOST_SHOWN):
        wish = Wish(Region.full((1, WIDTH)), [Piece.of(Box(((0, 1), (0, WIDTH))), 0)])
        gather(parts, (), wish, False, shown, True, False)
        assert len(shown) <= MOST_SHOWN
