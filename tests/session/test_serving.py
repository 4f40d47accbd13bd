"""Runs served by programs of other runs: few programs for histories that do not repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupts.injecting import Injector, Point, in_turns, places

import tgbench as tg
from tgbench.base.coords import at as number_at
from tgbench.base.errors import PlanError
from tgbench.base.memo import bytes_of
from tgbench.base.regions import Box, Region
from tgbench.programs.held import Held
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING, ValidityPattern
from tgbench.runs.buckets import Bucket, BucketClass, Spot
from tgbench.session.chooser import Chooser, Larger, Own
from tgbench.session.library import Library
from tgbench.session.serving import AFRESH, ANEW, LARGER, ONWARDS, SIZED, WIDER, Offer, Rung

TOKENS, WORDS, WIDTH = 32, 50, 16


class Strictly(Own):
    """Makes the own program of every run that nothing there may serve."""

    strict = False


def _decoder(tokens: int = TOKENS, width: int = WIDTH) -> tuple[tg.Graph, dict[str, Any]]:
    """Four causal layers: a word changes what comes after it."""
    random = np.random.default_rng(0)
    g = tg.GraphBuilder()
    weights: dict[str, Any] = {}

    def parameter(name: str, *shape: int) -> Any:
        weights[name] = (random.standard_normal(shape) / width**0.5).astype(np.float32)
        return g.parameter(name, shape)

    x = tg.ops.embedding(parameter("table", WORDS, width), g.input("ids", (tokens,), "int64"))
    causal = g.constant(np.tri(tokens, dtype=bool))
    for i in range(4):
        heads = [
            tg.ops.linear(x, parameter(f"{n}{i}", width, width)).reshape(1, 1, tokens, width)
            for n in "qkv"
        ]
        x = x + tg.ops.attention(*heads, causal).reshape(tokens, width)
    g.output("y", x)
    return g.build(), weights


def _close(found: Any, right: Any) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def _session(chooser: Chooser) -> tuple[tg.GraphSession, dict[str, Any]]:
    graph, weights = _decoder()
    session = tg.GraphSession(graph, weights, calibrate=False)
    session.keeper.chooser = session.runner.chooser = chooser
    return session, weights


def _typing(seed: int) -> Iterator[tuple[Any, int]]:
    """A cursor that types, goes back, and jumps; the row under it is looked at."""
    random, at = np.random.default_rng(seed), 8
    ids = random.integers(WORDS, size=TOKENS)
    while True:
        ids = ids.copy()
        ids[at] = random.integers(WORDS)
        yield ids, at
        at = int(random.choice([at + 1, at + 1, at + 1, at - 1, random.integers(TOKENS)])) % TOKENS


def _whole(session: tg.GraphSession, weights: dict[str, Any], ids: Any) -> Any:
    return tg.evaluate(session.graph, {"ids": ids, **weights})["y"]


class Checked(Strictly):
    """The same, and sees whether what offers would count on is there."""

    def __init__(self) -> None:
        self.counting = 0

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        for offer in (own, *larger()):
            assert offer.finds(NOTHING, offer.spot.origin)
            if offer.state not in (None, NOTHING):
                self.counting += 1
                assert offer.finds(offer.state, offer.spot.origin), offer.rung.name
        return own


def test_what_an_offer_would_count_on_is_there() -> None:
    random, g, chooser = np.random.default_rng(0), tg.GraphBuilder(), Checked()
    x, w = g.input("x", (64, 32)), random.standard_normal((32, 32)).astype(np.float32)
    for _ in range(3):
        x = tg.ops.relu(tg.ops.linear(x, g.constant(w)))
    g.output("y", x)
    session = tg.GraphSession(g.build(), {}, calibrate=False)
    session.keeper.chooser = session.runner.chooser = chooser
    given = random.standard_normal((64, 32)).astype(np.float32)
    for _ in range(20):
        given = given.copy()
        given[random.integers(64, size=2)] += 1
        session.run({"x": given}, want=np.s_[: random.integers(32, 64)])
    assert chooser.counting > 20


@pytest.mark.parametrize("seed", range(3))
def test_a_program_serves_wherever_all_that_it_counts_on_is_there(seed: int) -> None:
    session, weights = _session(Strictly())
    strict, _ = _session(Own())
    history = _typing(seed)
    for ids, at in (next(history) for _ in range(60)):
        found = session.run({"ids": ids}, want=np.s_[at])["y"]
        _close(found, _whole(session, weights, ids)[at])
        strict.run({"ids": ids}, want=np.s_[at])
    assert session.counters.specialised < 0.7 * strict.counters.specialised


def test_one_program_serves_an_edited_word_wherever_it_is() -> None:
    session, weights = _session(Strictly())
    random, ids = np.random.default_rng(0), np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})
    ids = ids.copy()
    ids[20] = 1
    session.run({"ids": ids})
    made = session.counters.specialised
    for _ in range(30):
        ids = ids.copy()
        at = random.integers(1, TOKENS - 1)
        ids[at] = (ids[at] + 1) % WORDS
        found = session.run({"ids": ids})["y"]
        _close(found, _whole(session, weights, ids))
        assert session.report().recomputed < 1
    assert session.counters.specialised <= made + 2


class Onwards(Own):
    """Takes each run as one in which all from the first changed element on differs."""

    strict = False

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        return next((one for one in larger() if one.rung is ONWARDS), own)


class Rather(Own):
    """Takes each run on one rung, where a program is there, or may be made."""

    strict = False

    def __init__(self, rung: Rung) -> None:
        self.rung = rung

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        return next((one for one in larger() if one.rung is self.rung), own)


@pytest.mark.parametrize(("rung", "most"), [(WIDER, 3), (SIZED, 1)])
def test_blocks_of_any_length_are_served_by_one_program(rung: Rung, most: int) -> None:
    """One for longer ones, or one whose extents are arguments: it computes no row that is not
    asked for.
    """
    session, weights = _session(Strictly())
    random, ids = np.random.default_rng(0), np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})

    def block(at: int, count: int) -> None:
        nonlocal ids
        ids = ids.copy()
        ids[at : at + count] = random.integers(1, WORDS, size=count)
        found = session.run({"ids": ids}, want=np.s_[at : at + count])["y"]
        _close(found, _whole(session, weights, ids)[at : at + count])

    block(0, 8)
    block(8, 8)
    session.keeper.chooser = session.runner.chooser = Rather(rung)
    made = session.counters.specialised
    for at, count in ((16, 5), (19, 2), (3, 7), (10, 2), (12, 7), (19, 3), (22, 6)):
        block(at, count)
        assert session.report().served == rung.name
        if rung is SIZED and at in (10, 12, 22):  # where the last one ended
            assert _computed_rows(session) == {count}
    assert session.counters.specialised <= made + most
    assert session.counters.larger == 7


def test_blocks_of_any_size_are_ready_with_the_first_answer_where_a_block_was_asked_for() -> None:
    graph, weights = _decoder(tokens=256, width=384)
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    random, ids = np.random.default_rng(0), np.zeros(256, np.int64)
    session.run({"ids": ids}, want=np.s_[60:70])
    made = session.counters.specialised
    assert any(kind.sized for _, kind, _ in session.programs)
    for i in range(4):  # which program takes least is found out as runs go on
        for start, size in ((70, 3), (73, 31), (104, 1), (105, 60), (80, 2), (7, 1)):
            ids = ids.copy()
            ids[start : start + size] = random.integers(1, WORDS, size=size)
            found = session.run({"ids": ids}, want=np.s_[start : start + size])["y"]
            right = _whole(session, weights, ids)[start : start + size]
            np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
        assert i or session.counters.specialised == made
    assert any(program.use.ran for _, kind, program in session.programs if kind.sized)


@pytest.mark.parametrize("size", [1, 4])
def test_what_brings_little_at_the_beginning_of_a_text_is_ready_for_what_comes_later(
    size: int,
) -> None:
    """The first rows of a decoder take as long as all before them, which are none."""
    graph, weights = _decoder(tokens=256, width=128)
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    random, ids = np.random.default_rng(0), np.zeros(256, np.int64)
    for start in range(0, 5 * size, size):
        ids = ids.copy()
        ids[start : start + size] = random.integers(1, WORDS, size=size)
        found = session.run({"ids": ids}, want=np.s_[start : start + size])["y"]
        right = _whole(session, weights, ids)[start : start + size]
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
        if not start:
            there = [kind for _, kind, _ in session.programs]
            assert any(_goes_along(kind, size) for kind in there)


def _goes_along(kind: BucketClass, size: int) -> bool:
    """Whether so many words, or any number, change, and rows of the same places are asked for."""
    (changed,), (asked, _) = (boxes[0] for _, boxes in (*kind.changed, *kind.demand))
    return changed == asked and changed[0] is not None and changed[1] in (0, size)


@pytest.mark.parametrize("want", [None, np.s_[255:256]])
def test_changes_that_go_on_are_ready_with_the_first_answer(want: Any) -> None:
    """A word put in between others, and two edits: whatever lies behind the first one changes."""
    graph, weights = _decoder(tokens=256, width=128)
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    random, ids = np.random.default_rng(0), np.zeros(256, np.int64)
    session.run({"ids": ids}, want=want)
    made = session.counters.specialised
    for at in (100, 180, 60, 140):
        ids = np.insert(ids, at, random.integers(1, WORDS))[:-1]
        ids[at + 20] = random.integers(1, WORDS)
        found = session.run({"ids": ids}, want=want)["y"]
        right = _whole(session, weights, ids)[slice(None) if want is None else want]
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
    assert session.counters.specialised == made
    served = [kind for _, kind, program in session.programs if program.use.ran]
    assert any(kind.reaching is not None and not kind.sized for kind in served)


def test_who_asked_for_everything_may_look_at_one_row_from_then_on() -> None:
    """At the word that was typed, or at the one before it, where a word was taken back."""
    graph, weights = _decoder(tokens=256, width=128)
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    random, ids = np.random.default_rng(0), np.zeros(256, np.int64)
    session.run({"ids": ids})
    made = session.counters.specialised
    for at, look in ((100, 100), (101, 101), (101, 100), (101, 101), (40, 40), (40, 39)):
        ids = ids.copy()
        ids[at] = random.integers(1, WORDS)
        found = session.run({"ids": ids}, want=np.s_[look : look + 1])["y"]
        right = _whole(session, weights, ids)[look : look + 1]
        np.testing.assert_allclose(found, right, atol=1e-5 * np.abs(right).max())
        assert session.report().served == "exactly"
        assert session.report().recomputed < 1 / 32
    assert session.counters.specialised == made


def test_the_ends_of_a_short_batch_are_ready_as_well() -> None:
    """A program for a row in the middle is wrong where nothing is to the one side of it."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x, w = g.input("x", (8, 128, 256)), random.standard_normal((256, 256)).astype(np.float32) / 99
    for _ in range(4):
        x = tg.ops.softmax(tg.ops.linear(x, g.constant(w)) @ x.transpose(1, 2), -1) @ x
    g.output("y", x.reshape(1, 8 * 128, 256))
    session = tg.GraphSession(
        g.build(), {}, buckets={"x": ("exact", "full", "full")}, making="measured", calibrate=False
    )
    given = random.standard_normal((8, 128, 256)).astype(np.float32)
    session.run({"x": given})
    made = session.counters.specialised
    for row in (3, 0, 7, 5, 7, 0):
        given = given.copy()
        given[row] += 1
        _close(session.run({"x": given})["y"], tg.evaluate(session.graph, {"x": given})["y"])
        assert session.report().recomputed < 1 / 4
    assert session.counters.specialised == made


def test_nothing_that_computes_nearly_everything_is_ready() -> None:
    """Where each row looks at all rows, a change that goes on computes nearly all of them."""
    g = tg.GraphBuilder()
    x, weights = g.input("x", (64, 32)), np.ones((32, 32), np.float32)
    for i in range(3):
        x = tg.ops.linear(tg.ops.softmax(x @ x.transpose(0, 1)) @ x, g.parameter(f"w{i}", (32, 32)))
    g.output("y", x)
    session = tg.GraphSession(g.build(), {f"w{i}": weights for i in range(3)}, calibrate=False)
    session.run({"x": np.zeros((64, 32), np.float32)})
    assert not [kind for _, kind, _ in session.programs if kind.reaching is not None]


@pytest.mark.parametrize("rung", [ONWARDS, SIZED])
def test_what_an_earlier_change_left_dirty_is_computed_with_the_next(rung: Rung) -> None:
    """Nobody asked for rows 6 to 19 since: a program that begins there is right, and is there."""
    session, weights = _session(Rather(rung))
    ids = np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})

    def edit(start: int, stop: int, want: int) -> set[int]:
        nonlocal ids
        ids = ids.copy()
        ids[start:stop] += 1
        found = session.run({"ids": ids}, want=np.s_[want])["y"]
        _close(found, _whole(session, weights, ids)[want])
        return _computed_rows(session)

    edit(9, 12, 15)
    assert session.report().served == rung.name
    session.run({"ids": ids})
    edit(2, 5, 5)
    made = session.counters.specialised
    assert edit(20, 23, 25) >= {26 - 6, 1}
    assert session.report().served == rung.name
    assert session.counters.specialised == made
    if rung is ONWARDS:  # what lies before the change: it begins where it is asked for
        session.run({"ids": ids})
        made = session.counters.specialised
        assert edit(20, 23, 10) <= {1, 2}
        assert session.report().served == rung.name
        assert session.counters.specialised == made


@pytest.mark.parametrize("rung", [ONWARDS, SIZED])
def test_what_is_asked_for_where_a_change_begins_stays_where_it_is(rung: Rung) -> None:
    """A program that begins earlier would hand out an earlier row."""
    session, weights = _session(Rather(rung))
    ids = np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})
    for at in (3, 4, 9, 20, 6, 21, 22):
        ids = ids.copy()
        ids[at] += 1
        found = session.run({"ids": ids}, want=np.s_[at])["y"]
        _close(found, _whole(session, weights, ids)[at])


def _computed_rows(session: tg.GraphSession) -> set[int]:
    """How many rows were multiplied by weights in the last run."""
    program = session.last.program
    return {
        number_at(box[-2][1] - box[-2][0], program.origin)
        for step in program.steps
        for node, region in step.compute.items()
        if node.op == "linear" and node.shape == (TOKENS, WIDTH)
        for box in region
    }


@pytest.mark.parametrize("behind", [0, 1, 3, 4, 5, 9])
def test_how_far_the_last_run_came_does_not_bind_a_program_to_its_place(behind: int) -> None:
    """Rows behind a change are dirty, whoever left them there."""
    session, weights = _session(Strictly())
    ids = np.zeros(TOKENS, np.int64)
    session.run({"ids": ids}, want=np.s_[: 4 + behind])  # some of the rows that change, or all
    ids[4:8] = np.arange(1, 5)
    found = session.run({"ids": ids}, want=np.s_[4:8])["y"]
    _close(found, _whole(session, weights, ids)[4:8])
    domain = session.last.program.domain
    assert all(domain.holds((at,)) for at in range(1, TOKENS - 4))


def test_a_run_that_nothing_is_chosen_for_is_not_classified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until it is known what everything takes, and as long as nothing else is there."""
    graph, weights = _decoder()
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    ids = np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})
    asked: list[Bucket] = []
    spot = session.runner.scout.server.classifier.spot
    monkeypatch.setattr(
        session.runner.scout.server.classifier, "spot",
        lambda bucket, onwards=False: asked.append(bucket) or spot(bucket, onwards),
    )  # fmt: skip
    ids = ids.copy()
    ids[7] = 1
    _close(session.run({"ids": ids})["y"], _whole(session, weights, ids))
    assert all("7:8" not in str(bucket) for bucket in asked)
    assert "ids[u0:+1]" in str(session.report().kind)
    assert "7:8" in str(session.report().bucket)


def _inserted(ids: Any, at: int, word: int) -> Any:
    return np.concatenate([ids[:at], [word], ids[at:-1]])


def test_one_program_serves_a_word_put_in_between_others_wherever_that_is() -> None:
    session, weights = _session(Onwards())
    random = np.random.default_rng(0)
    ids = random.integers(WORDS, size=TOKENS)
    session.run({"ids": ids})
    ids = _inserted(ids, 20, 1)
    session.run({"ids": ids})
    made = session.counters.specialised
    for _ in range(30):
        at = int(random.integers(1, TOKENS - 1))
        ids = _inserted(ids, at, int(random.integers(WORDS)))
        found = session.run({"ids": ids})["y"]
        _close(found, _whole(session, weights, ids))
        if session.report().served == ONWARDS.name:
            assert session.report().recomputed <= (TOKENS - at) / TOKENS + 0.05
    assert session.counters.specialised <= made + 2
    assert session.counters.larger > 25


def test_a_plan_may_be_for_changes_that_go_on_to_the_end(tmp_path: Path) -> None:
    graph, weights = _decoder()
    session = tg.GraphSession(graph, weights, calibrate=False, memory="64 KiB")
    session.keeper.chooser = session.runner.chooser = Onwards()
    ids = np.arange(TOKENS)
    session.run({"ids": ids})
    session.run({"ids": _inserted(ids, 20, 1)})
    spot = session.runner.finished.served.spot
    session.runner.plan_for([spot])
    assert "ids[u0:]" in str(session.plan)
    session.save_plan(tmp_path / "plan.json")
    assert tg.Plan.load(tmp_path / "plan.json") == session.plan
    text = (tmp_path / "plan.json").read_text()
    assert f"-{TOKENS}" in text
    for wrong in (f"-{TOKENS + 1}", "-1"):
        (tmp_path / "wrong.json").write_text(text.replace(f"-{TOKENS}", wrong))
        with pytest.raises(PlanError):
            tg.GraphSession(graph, weights, plan=tmp_path / "wrong.json")


def _pair() -> tuple[tg.GraphSession, Any]:
    """Two outputs of two inputs that have nothing to do with each other."""
    random, g, weights = np.random.default_rng(0), tg.GraphBuilder(), {}
    for name in "ab":
        weights[f"w{name}"] = random.standard_normal((8, 8)).astype(np.float32)
        product = g.input(name, (16, 8)) @ g.parameter(f"w{name}", (8, 8))
        g.output(f"of {name}", tg.ops.relu(product))
    session = tg.GraphSession(g.build(), weights, retain="all", calibrate=False)
    session.keeper.chooser = session.runner.chooser = Strictly()

    def edited(row: int) -> Any:
        a = random.standard_normal((16, 8)).astype(np.float32) if row < 0 else held["a"].copy()
        a[row] += 1
        held["a"] = a
        found = session.run({"a": a, "b": held["b"]}, want={"of a": ...})["of a"]
        _close(found, np.maximum(a @ weights["wa"], 0))
        return session.counters.specialised

    held = {name: random.standard_normal((16, 8)).astype(np.float32) for name in "ab"}
    session.run(held)
    return session, edited


@pytest.mark.parametrize("made_with_more", [True, False])
def test_a_program_counts_on_what_it_looks_at_and_leaves_what_was_there_besides(
    made_with_more: bool,
) -> None:
    session, edited = _pair()
    if not made_with_more:  # nothing is known of the other output
        session.forget()
        edited(-1)
    made = edited(3)
    if made_with_more:
        session.forget()
        edited(-1)
    else:
        session.run({}, want={"of b": ...})
    made = session.counters.specialised
    assert edited(9) == made
    standing = session.keeper.standing
    there = session.keeper.states.here(standing.valid, standing.last.origin).regions
    assert (session.graph.outputs["of b"] in there) != made_with_more


def test_what_a_run_leaves_is_worked_out_once_for_all_places() -> None:
    session, edited = _pair()
    edited(3)
    patterns = len(session.keeper.states)
    for row in range(16):
        edited(row)
    assert len(session.keeper.states) <= patterns + 2


def _pattern(session: tg.GraphSession, *parts: tuple[int, int]) -> ValidityPattern:
    node = session.graph.outputs["y"]
    region = Region(tuple(Box(((start, stop), (0, WIDTH))) for start, stop in parts))
    return ValidityPattern.of({node: Held(region, (0, 0))} if parts else {})


def test_more_holds_less_and_nothing_empty_is_counted_on() -> None:
    session, _ = _session(Own())
    some, more, other = (_pattern(session, part) for part in [(2, 5), (0, 8), (4, 9)])
    assert all(there.holds(some) for there in (some, more))
    assert some.holds(_pattern(session))
    assert not some.holds(more)
    assert not more.holds(other)
    assert not more.holds(_pattern(session, (3, 3)))  # it was made for places where it is not empty
    assert _pattern(session, (0, 4), (6, 9)).holds(_pattern(session, (6, 8)))
    assert not _pattern(session, (0, 4), (6, 9)).holds(_pattern(session, (3, 7)))


class Whole(Own):
    """Takes the largest run there is."""

    strict = False

    def choose(self, own: Offer, larger: Larger, planned: Any) -> Offer:
        return [own, *larger()][-1]


def test_the_run_that_serves_all_others_fits_from_the_first_plan_on() -> None:
    session, weights = _session(Whole())
    ids = np.zeros(TOKENS, np.int64)
    for at in (3, 17, 30, 9):
        ids = ids.copy()
        ids[at] = 1
        found = session.run({"ids": ids}, want=np.s_[at])["y"]
        _close(found, _whole(session, weights, ids)[at])
    assert session.counters.planned == 1
    assert session.counters.specialised <= 2


def _patches(rung: Rung) -> tuple[tg.GraphSession, Callable[[int, int], None]]:
    """A session that looked at an image, and what follows: a patch there becomes another."""
    random = np.random.default_rng(0)
    g = tg.GraphBuilder()
    x = x0 = g.input("x", (1, 8, 32, 32))
    weights: dict[str, Any] = {}
    for i in range(3):
        shape = (8, 8, 3, 3)
        weights[f"w{i}"] = (random.standard_normal(shape) / 8).astype(np.float32)
        x = tg.ops.relu(tg.ops.conv(x, g.parameter(f"w{i}", shape), padding=1))
    g.output("y", x + x0)
    session = tg.GraphSession(g.build(), weights, calibrate=False)
    session.keeper.chooser = session.runner.chooser = Strictly()
    image = random.standard_normal((1, 8, 32, 32)).astype(np.float32)
    session.run({"x": image})
    session.keeper.chooser = session.runner.chooser = Rather(rung)

    def patch(i: int, j: int) -> None:
        nonlocal image
        image = image.copy()
        image[..., i : i + 3, j : j + 3] = random.standard_normal((1, 8, 3, 3))
        found = session.run({"x": image})["y"]
        _close(found, tg.evaluate(session.graph, {"x": image, **weights})["y"])

    return session, patch


def test_few_bands_hold_a_patch_anywhere_and_the_first_plan_has_room_for_them() -> None:
    """What is computed in part needs memory to lay it out in; unlike a whole run, and a pixel."""
    session, patch = _patches(next(rung for rung in LARGER if rung.is_band))
    made, random = session.counters.specialised, np.random.default_rng(1)
    for _ in range(40):
        patch(*map(int, random.integers(30, size=2)))
        assert session.report().served == "in bands"
        assert session.report().recomputed < 0.9
    assert session.counters.specialised - made <= 7  # of a quarter of the rows, an eighth apart
    assert session.counters.planned == 1


def test_a_program_that_stands_serves_whatever_lies_within_it() -> None:
    session, patch = _patches(next(rung for rung in LARGER if rung.is_band))
    for row in (1, 13, 21):
        patch(row, 5)
    made, random = session.counters.specialised, np.random.default_rng(1)
    for _, _, program in session.keeper.programs:
        program.use.ran, program.use.time_ns = 2, 1e12 if program.renews else 1.0
    session.keeper.chooser = session.runner.chooser = Rather(WIDER)
    for row in (0, 5, 14, 17, 22, 25):
        patch(row, int(random.integers(30)))
        assert session.report().served == WIDER.name
        assert session.report().recomputed < 0.9
    assert session.counters.specialised == made


@pytest.mark.parametrize("seed", range(4))
def test_what_computes_everything_of_a_demand_does_so_whatever_changed(seed: int) -> None:
    """Beside programs for parts, which are quicker."""
    session, weights = _session(Strictly())
    random, ids = np.random.default_rng(seed), np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})
    everything = {"ids": Region.full((TOKENS,))}
    found: list[Offer] = []
    for _ in range(40):
        ids, at, row = ids.copy(), random.integers(TOKENS), int(random.choice([16, 31]))
        ids[at] = random.integers(WORDS)
        result = session.run({"ids": ids}, want=np.s_[row])["y"]
        _close(result, _whole(session, weights, ids)[row])
        for _, _, program in session.keeper.programs:
            program.use.ran, program.use.time_ns = 3, 1e9 if program.renews else 1.0
        edit = Region((Box(((at, at + 1),)),))
        demand = {"y": Region((Box(((row, row + 1), (0, WIDTH))),))}
        around = session.runner.scout.around(Bucket.of({"ids": edit}, demand))
        offer = session.runner.scout.server.offer(around, ANEW)
        if offer is not None:
            assert Bucket.of(everything, demand).is_within(offer.bucket)
            assert offer.program is not None
            assert offer.program.counts_on == NOTHING
            found.append(offer)
    assert found


def test_a_program_that_comes_later_is_taken_where_nothing_is_chosen() -> None:
    """What computes everything of a demand is remembered until programs come or go."""
    graph, weights = _decoder()
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    ids, random = np.zeros(TOKENS, np.int64), np.random.default_rng(0)
    session.run({"ids": ids})
    runner = session.runner

    def edit() -> str:
        nonlocal ids
        ids = random.integers(WORDS, size=TOKENS)
        _close(session.run({"ids": ids}, want=np.s_[3])["y"], _whole(session, weights, ids)[3])
        return str(session.report().program.summary)

    before = edit()
    wanted = Bucket.of({}, {"y": Region((Box(((3, 4), (0, WIDTH))),))})
    offer = runner.scout.server.offer(runner.scout.around(wanted), AFRESH)
    assert offer is not None
    program = runner.maker.make(offer)
    program.use.ran, program.use.time_ns = 2, 1.0
    assert edit() != before


def test_outputs_that_are_large_beside_the_weights_are_not_held_whole() -> None:
    assert _session(Own())[0].planning.whole_runs()
    g = tg.GraphBuilder()
    g.output("y", g.input("x", (1024, 1)) * g.constant(np.ones((1, 1024), np.float32)))
    assert not tg.GraphSession(g.build(), calibrate=False).planning.whole_runs()
    graph, weights = _decoder()
    assert not tg.GraphSession(graph, weights, memory="1MiB").planning.whole_runs()


@pytest.mark.parametrize("prepares", [False, True])
def test_who_asks_again_waits_for_nothing(prepares: bool) -> None:
    """Also where every change reaches everything, so that no edit reads what was answered."""
    random = np.random.default_rng(0)
    g = tg.GraphBuilder()
    x = g.input("x", (64, 256))
    for i in range(4):
        apart = x - tg.ops.mean(x, 0, keepdims=True)
        x = tg.ops.tanh(tg.ops.linear(apart, g.parameter(f"w{i}", (256, 256))))
    g.output("y", tg.ops.sum_(x, 0))
    weights = {f"w{i}": random.standard_normal((256, 256)).astype(np.float32) for i in range(4)}
    session = tg.GraphSession(g.build(), weights, making="measured", calibrate=False)
    if prepares:
        session.prepare()
    given = random.standard_normal((64, 256)).astype(np.float32)
    first = session.run({"x": given})["y"]
    again = session.run({"x": given.copy()})["y"]
    assert session.report().recomputed == 0.0
    np.testing.assert_array_equal(again, first)


def test_what_compiled_loops_need_is_loaded_with_the_first_answer() -> None:
    loops = pytest.importorskip("tgbench.kernels.numba.loops")
    loops.load.cache_clear()
    session, _ = _session(Strictly())
    session.run({"ids": np.zeros(TOKENS, np.int64)})
    assert loops.load.cache_info().currsize == 1


def test_offers_that_are_alike_are_made_once() -> None:
    session, _ = _session(Own())
    ids = np.zeros(TOKENS, np.int64)
    session.run({"ids": ids})
    runner, bucket = session.runner, Bucket.of({}, {})
    spot: Spot = bucket.classify(session.graph)
    own = runner.scout.own(bucket, spot, session.keeper.standing)
    larger = runner.scout.server.larger(own, runner.scout.around(bucket))
    assert len({(offer.state, offer.bucket) for offer in (own, *larger)}) == len(larger) + 1


def test_whether_programs_count_on_anything_is_known_whatever_comes_and_goes() -> None:
    random, library = np.random.default_rng(0), Library(limit_bytes=20_000)
    kinds = [BucketClass((("x", (((None, n),),)),), (), ()) for n in range(1, 6)]
    for _ in range(500):
        program = Program((), frozenset(), 0, {}, ())
        library.add(int(random.integers(2)), kinds[random.integers(5)], program)
        right = all(state == NOTHING for state, _, _ in library)
        assert (not library.continuing) == right
        if random.random() < 0.05:
            library.clear()
            assert not library.continuing
    assert library.evicted > 100
    *_, (_, last, _) = library
    assert next(iter(library.kinds(1))) is last


def test_the_program_that_was_found_last_is_the_last_to_go() -> None:
    """Whoever is found again and again stays where it is: nothing is moved for it."""
    random, library = np.random.default_rng(0), Library(limit_bytes=1 << 30)
    kinds = [BucketClass((("x", (((None, n),),)),), (), ()) for n in range(1, 8)]
    for kind in kinds:
        library.add(NOTHING, kind, Program((), frozenset(), 0, {}, ()))
    order = list(kinds)
    for _ in range(300):
        kind = kinds[int(random.integers(len(kinds)))] if random.random() < 0.6 else order[-1]
        assert library.find(NOTHING, kind, ()) is not None
        order.remove(kind)
        order.append(kind)
        assert list(library.kinds(len(kinds))) == order[::-1]


def test_whatever_stops_a_program_from_coming_the_others_are_found() -> None:
    kind = BucketClass((("x", (((None, 1),),)),), (), ())

    def full() -> Library:
        library = Library(limit_bytes=1)
        library.add(0, kind, Program((), frozenset(), 0, {}, ()))
        return library

    def add(library: Library) -> None:
        library.add(1, kind, Program((), frozenset(), 0, {}, ()))

    library = full()
    own = {Library.add.__code__, Library._drop_oldest.__code__}
    points = [Point(place, 0) for place in places(lambda: add(library)) if place.code in own]
    assert len(points) > 50
    for point in points:
        library, injector = full(), Injector(point, KeyboardInterrupt)
        with suppress(KeyboardInterrupt):
            injector.call(lambda library=library: add(library))
        assert injector.has_raised
        assert list(library.origins(kind, (), ())) == [()]


def test_an_interrupt_anywhere_is_one_and_leaves_a_library_whole() -> None:
    """Also where a class is hashed, by whatever asks for that."""
    kinds = [BucketClass((("x", (((None, n),),)),), (), ()) for n in range(1, 9)]

    def full() -> Library:
        library = Library(limit_bytes=20_000)
        for i, kind in enumerate(kinds):
            library.add(i % 2, kind, Program((), frozenset(), 0, {}, ()))
        return library

    def use(library: Library) -> None:
        for kind in (kinds[-1], BucketClass((("x", (((None, 9),),)),), (), ())):
            library.add(1, kind, Program((), frozenset(), 0, {}, ()))
            library.find(1, kind, ())
        list(library.kinds(2))

    library = full()
    points = list(in_turns(places(lambda: use(library))))
    assert any(point.place.code is BucketClass.__hash__.__code__ for point in points)
    for point in points:
        library = full()
        with suppress(KeyboardInterrupt):
            Injector(point, KeyboardInterrupt).call(lambda library=library: use(library))
        assert len(list(library)) == len(library) > 0, point
        right = all(state == NOTHING for state, _, _ in library)
        assert (not library.continuing) == right, point
        for _ in range(2 * len(kinds)):
            use(library)
        there = {(state, kind) for kind in kinds for state in library.states(kind)}
        assert there >= {(state, kind) for state, kind, _ in library if kind in kinds}, point


def test_what_programs_take_is_measured_of_some() -> None:
    session, random = tg.GraphSession(*_decoder(), making="always"), np.random.default_rng(0)
    ids = random.integers(WORDS, size=TOKENS)
    session.run({"ids": ids})
    for _ in range(30):
        ids[random.integers(TOKENS, size=3)] += 1
        ids %= WORDS
        session.run({"ids": ids}, want={"y": np.s_[int(random.integers(TOKENS))]})
    library = session.keeper.programs
    right = sum(bytes_of(program) for *_, program in library)
    assert len(library) > 16
    assert 0.5 * right < library.size_bytes < 2 * right
    library.clear()
    assert library.size_bytes == 0
