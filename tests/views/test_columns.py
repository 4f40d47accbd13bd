"""Bulk data for scripts: what is packed can be read again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgbench.views.draw.columns import SEPARATOR, pack, unpack

NUMBERS = st.sampled_from(["uint8", "int32", "float32", "float64"]).flatmap(
    lambda dtype: st.lists(st.integers(0, 255), max_size=7).map(
        lambda values: np.array(values, dtype)
    )
)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SEPARATOR)))


@given(st.dictionaries(st.text("abcé", max_size=3), NUMBERS | TEXTS, max_size=5))
def test_columns_come_back(columns: dict[str, object]) -> None:
    found = unpack(pack(columns))  # type: ignore[arg-type]
    assert list(found) == list(columns)
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            assert found[name].dtype == column.dtype
            assert found[name].tolist() == column.tolist()
        else:
            assert found[name] == column


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_columns_begin_at_multiples_of_eight(columns: list[np.ndarray]) -> None:
    data = pack({str(i): column for i, column in enumerate(columns)})
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    assert (4 + length) % 8 == 0
    assert all(at % 8 == 0 for _, at, _ in header.values())


def test_a_separator_in_a_name_is_shown_instead() -> None:
    assert unpack(pack({"name": ["a\0b", "c"]})) == {"name": ["a␀b", "c"]}


def test_other_types_are_refused() -> None:
    with pytest.raises(KeyError):
        pack({"name": np.zeros(3, np.int64)})
