"""Loops that programs for edits need are compiled with the first answer, and none later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")
HISTORY = """
import numpy as np
from numba.core import event

import tgbench as tg
from tgbench.session.chooser import Own

class Always(Own):
    strict = False

recorded = event.RecordingListener()
event.register("numba:compile", recorded)
random, g, weights = np.random.default_rng(0), tg.GraphBuilder(), {}

def parameter(name, *shape):
    weights[name] = (random.standard_normal(shape) / 8).astype(np.float32)
    return g.parameter(name, shape)

x = tg.ops.embedding(parameter("table", 50, 128), g.input("ids", (256,), "int64"))
causal = g.constant(np.tri(256, dtype=bool))
for i in range(2):
    h = tg.ops.layer_norm(x, parameter(f"g{i}", 128), parameter(f"b{i}", 128))
    heads = [
        tg.ops.linear(h, parameter(f"{n}{i}", 128, 128)).reshape(1, 256, 4, 32).transpose(1, 2)
        for n in "qkv"
    ]
    mixed = tg.ops.attention(*heads, causal)
    x = x + mixed.transpose(1, 2).reshape(256, 128)
    x = x + tg.ops.gelu(x @ parameter(f"w{i}", 128, 128))
g.output("y", x)
session = tg.GraphSession(g.build(), weights, making="measured", calibrate=False)
ids = np.zeros(256, np.int64)
session.run({"ids": ids})
first = len(recorded.buffer)
session.keeper.chooser = session.runner.chooser = Always()
for at in (5, 20, 140, 252, 11):
    ids = ids.copy()
    ids[at] = at % 50
    session.run({"ids": ids}, want=np.s_[at])
    session.run({"ids": ids})
print(first, len(recorded.buffer) - first, session.counters.specialised)
"""


def test_no_run_but_the_first_compiles_a_loop(tmp_path: Path) -> None:
    """Where nothing was compiled before: as a user finds it."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HISTORY],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, later, made = map(int, found.stdout.split()[-3:])
    assert first > 0
    assert made > 3
    assert later == 0
