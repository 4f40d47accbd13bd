"""The machine: one description for plans, pages and records."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tgbench.base.machine import Machine, give_back_freed, processor_name
from tgbench.commands.demo import machine
from tgbench.graph.graph import GraphBuilder
from tgbench.session.session import GraphSession


def test_a_machine_arrives_as_text() -> None:
    here = Machine.here()
    assert Machine.from_json(here.to_json()) == here


def test_plans_and_the_demo_tell_the_same_facts() -> None:
    g = GraphBuilder()
    g.output("y", g.input("x", (2,)) * 3.0)
    session = GraphSession(g.build())
    session.run({"x": np.ones(2, np.float32)})
    assert dict(session.plan.machine) == Machine.here().facts
    assert machine().items() >= Machine.here().facts.items()
    assert processor_name() in Machine.here().facts["processor"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc keeps what was freed")
def test_what_was_freed_below_a_block_in_use_is_given_back() -> None:
    blocks = [np.ones(15_000) for _ in range(1000)]  # 117 KiB each: none is mapped by itself
    full = resident_bytes()
    del blocks[:-1]
    give_back_freed()
    assert full - resident_bytes() > 100 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
