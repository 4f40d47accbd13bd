"""What is promised names tests that are there."""

from __future__ import annotations

import re

import pytest
from places import ROOT

TEXT = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "| --- |" not in line]


@pytest.mark.parametrize(("file", "name"), NAMED.findall(TEXT))
def test_the_tests_of_a_promise_are_there(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_promise_has_a_test() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if row != "| promise | held by |" and not NAMED.search(row)] == []
