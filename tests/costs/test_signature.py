"""Signatures: equal where times are, different where they are not; and hashes of sources."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tgbench.graph.ops as ops
from tgbench.base.coords import origin_symbol, record
from tgbench.base.regions import Box
from tgbench.costs.model import plain_site
from tgbench.costs.signature import Signature, source_hash, streams, without_layout
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels.registry import KERNELS, Kernel, Site
from tgbench.runs.rules import Rules

RULES = Rules()


def site(node: Node, box: Box | None = None) -> Site:
    box = box if box is not None else Box.full(node.shape)
    return plain_site(node.call, box, RULES.reads(node.call, box), "cpu")


def product(rows: int = 6, columns: int = 4, dtype: str = "float32") -> Node:
    g = GraphBuilder()
    return ops.linear(g.input("x", (rows, 8), dtype), g.parameter("w", (columns, 8), dtype))


def test_it_is_readable() -> None:
    found = Signature.of(site(product()))
    assert str(found) == ("linear() float32[6,4]c = float32[6,8]c, float32[4,8]c; streamed cpu")
    assert (found.flops, found.size_bytes) == (2 * 6 * 4 * 8, 4 * (24 + 48 + 32))


def test_positions_and_places_do_not_count() -> None:
    node = product()
    first, other = (site(node, Box(((a, a + 2), (0, 4)))) for a in (0, 3))
    moved = replace(other, out=replace(other.out, offset=99, buffer="elsewhere"))
    assert Signature.of(first) == Signature.of(other) == Signature.of(moved)


def test_moving_coordinates_are_numbers_and_leave_no_guard() -> None:
    node, u = product(), origin_symbol(0)
    moving = site(node, Box(((u, u + 2), (0, 4))))
    with record([3]) as guards:
        found = Signature.of(moving)
    assert found == Signature.of(site(node, Box(((3, 5), (0, 4)))))
    assert not guards


def _turned(given: Site) -> Site:
    out = replace(given.out, strides=tuple(reversed(given.out.strides)))
    return replace(given, out=out)


@pytest.mark.parametrize(
    "other",
    [
        site(product(7)),
        site(product(columns=5)),
        site(product(dtype="float64")),
        replace(site(product()), home="cuda:0"),
        _turned(site(product())),
        site(product(), Box(((0, 6), (0, 3)))),
    ],
)
def test_what_times_depend_on_counts(other: Site) -> None:
    assert Signature.of(other).text != Signature.of(site(product())).text


def test_streaming_and_attributes_count() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 8))
    a, b = (site(ops.rms_norm(x, g.parameter(f"w{eps}", (8,)), eps)) for eps in (1e-6, 1e-5))
    assert Signature.of(a).text != Signature.of(b).text
    assert Signature.of(a, streams=False).text != Signature.of(a).text
    assert streams(1 << 40)
    assert not streams(1 << 10)


def test_layouts_can_be_left_out() -> None:
    plain, turned = site(product()), _turned(site(product()))
    assert without_layout(Signature.of(plain).text) == without_layout(Signature.of(turned).text)


def test_a_look_up_reads_only_its_rows() -> None:
    g = GraphBuilder()
    node = ops.embedding(g.parameter("table", (1000, 8)), g.input("ids", (3,), "int64"))
    assert Signature.of(site(node)).size_bytes == 2 * 3 * 8 * 4 + 3 * 8


def test_an_open_mask_is_told_apart() -> None:
    g = GraphBuilder()
    x = g.input("x", (4, 4))
    mask = g.constant(np.tri(4, dtype=bool))
    node = ops.where(mask, x, -1.0)
    rows = [Signature.of(site(node, Box(((i, i + 1), (0, 4))))).text for i in (0, 3)]
    assert rows[0] != rows[1]


# --- sources --------------------------------------------------------------------------------------


def kernel(source: str, name: str = "bind") -> Kernel:
    names: dict[str, Any] = {"__name__": "tgbench.kernels.made"}
    exec(source, names)
    return Kernel("made", "add", lambda s: True, lambda s: 1.0, names[name])


BIND = """
SCALE = 2.0
def helper(x): return x * SCALE
def bind(site, scratch): return helper, (site, 1)
"""


def test_a_changed_kernel_has_another_hash() -> None:
    first = source_hash(kernel(BIND))
    assert source_hash(kernel(BIND)) == first
    assert source_hash(kernel(BIND.replace("bind(site", "bind( site # said\n"))) == first
    for old, new in (("x * SCALE", "x + SCALE"), ("2.0", "3.0"), ("(site, 1)", "(site, 2)")):
        assert source_hash(kernel(BIND.replace(old, new))) != first, new


def test_kernels_are_told_apart() -> None:
    found = {k.name: source_hash(k) for op in ("exp", "log", "linear") for k in KERNELS[op]}
    found = {name: text for name, text in found.items() if not name.endswith("completed")}
    assert len(set(found.values())) == len(found)


def test_hashes_are_the_same_in_another_process() -> None:
    """Of two fresh ones: here, other tests may have registered kernels that some work through."""
    code = (
        "from tgbench.kernels import KERNELS; from tgbench.costs.signature import source_hash\n"
        "print(*(source_hash(k) for op in ('linear', 'softmax', 'gather') for k in KERNELS[op]))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert found[0] == found[1]
    assert len(set(found[0])) > 10
