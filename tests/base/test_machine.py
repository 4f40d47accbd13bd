"""The machine: one description for plans, pages and records."""

from __future__ import annotations

import numpy as np

from tgbench.base.machine import Machine, processor_name
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
