"""Products that threads share: bits, tiles taken back, helpers that come late, memory let go."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kernels.test_kernels import Memory, evaluate, leaves_of, make_site, run

from tgbench.base.regions import Box
from tgbench.graph.graph import GraphBuilder
from tgbench.kernels.registry import by_team, kernel_named

pytest.importorskip("numba")

from kernels.test_numba_kernels import COLUMNS, NODES, linear, placed

from tgbench.kernels.numba import loops, rows, team, tiles

Array = np.ndarray
PRODUCTS = [name for name in NODES if name.startswith(("linear", "gated", "widening"))]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[team.Team]:
    """Torch may use two threads, and products of a kilobyte are cut."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = team._team(os.getpid())
    before = found.words[: tiles.LAST].copy()
    found.words[tiles.LEAST] = 1024
    yield found
    found.words[: tiles.LAST] = before


@pytest.mark.parametrize("name", PRODUCTS)
def test_several_threads_have_the_bits_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LEAST_BYTES", 0)
    node = NODES[name](GraphBuilder())
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    memory, shared = Memory(), None
    values = [evaluate(parent, leaves) for parent in node.inputs]
    for attempt in range(100):
        rng = np.random.default_rng(attempt)
        site = make_site(node, Box.full(node.shape), values, memory, rng)
        if shared := by_team(site):
            break
    assert shared is not None
    alone = run(kernel_named(node.op, f"{node.op}_numba"), site, memory)
    for _ in range(20):
        np.testing.assert_array_equal(run(shared, site, memory), alone)


@pytest.mark.parametrize(("rows_", "columns", "bias"), [(1, 1101, True), (3, 600, False)])
def test_threads_share_the_rows_of_weights_whose_columns_lie_side_by_side(
    rows_: int, columns: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is cut in the same places whoever computes what."""
    monkeypatch.setattr(rows, "LEAST_BYTES", 0)
    node = linear(GraphBuilder(), rows_, columns, 70, bias)
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    memory = Memory()
    site, kernel = placed(node, leaves, Box.full(node.shape), memory, 0, COLUMNS)
    shared = by_team(site)
    assert shared is not None
    assert shared.name == "linear_columns_team_numba"
    alone, first = run(kernel, site, memory), run(shared, site, memory)
    np.testing.assert_allclose(first, alone, 1e-5, 1e-5 * np.abs(alone).max())
    for _ in range(20):
        np.testing.assert_array_equal(run(shared, site, memory), first)
    with team._team(os.getpid()).free:  # as if somebody else had the helpers
        np.testing.assert_array_equal(run(shared, site, memory), first)


@pytest.mark.parametrize(("rows_", "is_shared"), [(1, True), (2, False)])
def test_what_a_helper_has_no_room_for_is_not_shared(
    rows_: int, is_shared: bool, small_tiles: team.Team
) -> None:
    """Tiles of weights whose columns lie side by side are as wide as all of these."""
    columns, depth, parts = tiles.TILE_BYTES // 4, 12, 3
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32)
            for shape in ((rows_, depth), (depth, columns)))  # fmt: skip
    y, spare = (np.empty(rows_ * count, np.float32) for count in (columns, parts * columns))
    product = loops.compiled(
        tiles.shared_columns, "int64", "int", "int", *("float32", "int") * 2, "float32",
        "float32", "int", "float32", *("int",) * 4,
    )  # fmt: skip
    jobs = small_tiles.words[tiles.LAST]
    for _ in range(50):  # a helper that falls asleep has the words for an instant
        team._together(
            1, product, tiles.computing("float32", "float32", "columns"), x.ravel(), depth,
            w.ravel(), columns, loops.NO_BIAS["float32"], y, columns, spare, parts, rows_, columns,
            depth,
        )  # fmt: skip
    assert (small_tiles.words[tiles.LAST] > jobs) == is_shared
    np.testing.assert_allclose(y.reshape(rows_, columns), x @ w, 1e-5, 1e-5)


@pytest.mark.parametrize("alone", [COLUMNS, None])
def test_one_thread_computes_alone_what_a_team_would(
    alone: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a saved program of a team is right wherever it is loaded."""
    monkeypatch.setattr(rows, "LEAST_BYTES", 0)
    node = linear(GraphBuilder(), 2, 1101, 70, True)
    memory = Memory()
    leaves = leaves_of(node, np.random.default_rng(0), "normal")
    site, _ = placed(node, leaves, Box.full(node.shape), memory, 0, alone)
    shared = by_team(site)
    assert shared is not None
    expected = run(shared, site, memory)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    np.testing.assert_array_equal(run(shared, site, memory), expected)


def test_threads_gain_something_or_nothing() -> None:
    team.GAINS.clear()
    assert 1.0 <= team.gain(2) < 8.0


@pytest.mark.parametrize(
    ("told", "measured", "found"),
    [([1.9, 5.0], 1, 1.9), ([1.0, 1.9, 5.0], 2, 1.9), ([1.1, 1.0, 1.0, 5.0], 3, 1.1)],
)
def test_a_gain_that_is_little_is_measured_again(
    told: list[float], measured: int, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what is known then stands until runs look again."""
    asked, answers = list[int](), iter(told)

    def measure(threads: int) -> float:
        asked.append(threads)
        return next(answers)

    monkeypatch.setattr(team, "measure_gain", measure)
    monkeypatch.setattr(team, "GAINS", {})
    assert [team.gain(2), team.gain(2)] == [found] * 2
    assert asked == [2] * measured


def test_looking_is_timed_with_the_moment_that_is_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As helpers and callers look: without it they would wait twenty times as long as they are to,
    as they do where a processor takes so long for it.
    """
    paused = [0]
    monkeypatch.setattr(tiles, "_read", lambda words, index: words[index])
    monkeypatch.setattr(tiles, "_pause", lambda: paused.__setitem__(0, paused[0] + 1))
    words = tiles.words_of(1)
    for number in (0, 7):
        words[tiles.NUMBER], paused[0] = number, 0
        tiles.wait.py_func(words, 5)
        assert paused == [5]


def test_a_look_that_was_disturbed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = [0], iter([0, *[900_000] * (team.TIMES - 1), 40_000])

    def wait(words: Array, polls: int) -> None:
        now[0] += next(took)

    monkeypatch.setattr(tiles, "wait", wait)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    assert team._poll_ns(tiles.words_of(1)) == 40_000 / team.POLLS


# --- the protocol, with helpers that are told what to do -----------------------------------------


class Product:
    """A product of a row that is cut into tiles of 4 columns, and words of its own."""

    def __init__(self, helpers: int, rows: int = 3, columns: int = 203, depth: int = 96) -> None:
        rng = np.random.default_rng(columns)
        self.x = rng.standard_normal((rows, depth)).astype(np.float32)
        self.w = rng.standard_normal((columns, depth)).astype(np.float32)
        self.y = np.full((rows, columns), np.nan, np.float32)
        self.words = tiles.words_of(helpers)
        self.words[tiles.PATIENCE], self.words[tiles.IDLE] = 100, 1000
        self.words[tiles.LEAST] = 4 * 4 * depth
        self.count = -(-columns // 4)
        self.call(0)
        self.expected, self.y[:] = self.y.copy(), np.nan

    def call(self, helpers: int) -> int:
        flat = (self.x.reshape(-1), self.w.reshape(-1), np.zeros(0, np.float32))
        x, w, bias = flat
        (rows, depth), columns = self.x.shape, len(self.w)
        address = tiles.computing("float32", "float32")
        behind: int = tiles.shared_linear(
            self.words, helpers, address, x, depth, w, depth, bias, self.y.reshape(-1), columns,
            rows, columns, depth, 512,
        )  # fmt: skip
        return behind

    @property
    def next_job(self) -> int:
        return 4 * (int(self.words[tiles.NUMBER]) + 1)

    def check(self) -> None:
        np.testing.assert_array_equal(self.y, self.expected)


def test_a_tile_that_a_helper_does_not_finish_is_taken_back() -> None:
    product = Product(1)
    stuck = [0, 7, product.count - 1]
    for tile in stuck:
        product.words[tiles.TILES + tile] = product.next_job + tiles.THEIRS
    product.call(1)
    product.check()
    words = product.words[tiles.TILES : tiles.TILES + product.count]
    assert (words % 4 == tiles.READY).all()


def test_a_tile_that_is_being_copied_is_waited_for() -> None:
    product = Product(1)
    word, job, last = tiles.TILES + 5, product.next_job, slice(20, 24)
    product.words[word] = job + tiles.COPIED

    def copy() -> None:
        time.sleep(0.05)
        product.y[:, last] = product.expected[:, last]
        product.words[word] = job + tiles.READY

    helper = threading.Thread(target=copy)
    helper.start()
    product.call(1)
    assert not helper.is_alive() or product.words[word] == job + tiles.READY
    product.check()
    helper.join()


def test_a_helper_that_comes_late_changes_nothing() -> None:
    product = Product(1)
    assert product.call(1) == 0
    product.check()
    product.y[:] = -1
    before = product.words.copy()
    tiles.serve(product.words, 0, tiles.memory_of_helper())
    assert (product.y == -1).all()
    np.testing.assert_array_equal(product.words, before)


def test_no_more_help_than_is_allowed() -> None:
    product = Product(3)
    product.words[tiles.HELPERS + tiles.LINE] = 1  # the second is at an old job
    assert product.call(1) == 1
    assert product.words[tiles.TASK + tiles.ALLOWED] == 1
    job = product.next_job // 4
    product.words[tiles.NUMBER] = product.words[tiles.LAST] = job  # one that nobody began
    product.y[:] = -1
    tiles.serve(product.words, 2, tiles.memory_of_helper())
    assert (product.y == -1).all()
    tiles.serve(product.words, 0, tiles.memory_of_helper())
    product.check()


@pytest.mark.parametrize("helpers", [1, 2, 5])
def test_helpers_and_caller_share_the_tiles(helpers: int) -> None:
    product = Product(helpers, rows=8, columns=2003, depth=512)
    stop = threading.Event()

    def help_(number: int) -> None:
        own = tiles.memory_of_helper()
        while not stop.is_set():
            tiles.serve(product.words, number, own)

    threads = [threading.Thread(target=help_, args=(i,)) for i in range(helpers)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        product.y[:] = np.nan
        product.call(helpers)
        product.check()
    stop.set()
    for thread in threads:
        thread.join()
    assert not tiles.are_busy(product.words)


@pytest.mark.parametrize("least", [1, 1 << 10, 1 << 30])
@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (1, 1021), (3000, 40), (9000, 2000)])
def test_tiles_are_few_and_helpers_have_room_for_them(rows: int, columns: int, least: int) -> None:
    product = Product(1, rows, columns, depth=8)
    product.words[tiles.LEAST] = least
    product.words[tiles.TASK + tiles.WIDE] = 0
    product.call(1)
    product.check()
    wide = int(product.words[tiles.TASK + tiles.WIDE])
    assert wide * rows * 4 <= tiles.TILE_BYTES
    assert not wide or wide < columns <= wide * tiles.MOST_TILES


# --- the team of a process -----------------------------------------------------------------------


def call(n: int = 403, k: int = 200) -> tuple[Any, ...]:
    """A product for `together`, and its output and weights."""
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (k, n * k))
    y, bias = np.zeros(n, np.float32), np.zeros(0, np.float32)
    address = tiles.computing("float32", "float32")
    return (tiles.shared_linear, address, x, k, w, k, bias, y, n, 1, n, k, 0), y, x, w


def test_two_callers_at_once(small_tiles: team.Team) -> None:
    wrong = []

    def many(n: int) -> None:
        arguments, y, *_ = call(n)
        team.together(*arguments)
        expected = y.copy()
        for _ in range(300):
            y[:] = np.nan
            team.together(*arguments)
            if not np.array_equal(y, expected):
                wrong.append(n)

    threads = [threading.Thread(target=many, args=(n,)) for n in (403, 611, 97)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not small_tiles.free.locked()


def wait_until(holds: Callable[[], bool]) -> None:
    """What a helper runs may have to be compiled first."""
    until = time.monotonic() + 120
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)


def test_a_team_at_rest_holds_nothing(small_tiles: team.Team) -> None:
    arguments, _, _, w = call()
    team.together(*arguments)
    gone = weakref.ref(w)
    del arguments, w

    def rests() -> bool:
        gc.collect()
        return all(small_tiles.asleep)

    wait_until(lambda: rests() and gone() is None)
    assert gone() is None
    assert not small_tiles.held


def test_each_helper_that_is_wanted_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    served = [0, 0, 0]

    def serve(words: Array, helper: int, memory: Array) -> None:
        served[helper] += 1

    def rests(*times: int) -> bool:
        return served == list(times) and all(found.asleep)

    monkeypatch.setattr(tiles, "serve", serve)
    found = team.Team(3)
    for helpers, expected in ((2, (2, 2, 1)), (3, (3, 3, 2)), (1, (4, 3, 2)), (0, (4, 3, 2))):
        wait_until(lambda: all(found.asleep))
        found.wake(helpers)
        wait_until(lambda expected=expected: rests(*expected))
        assert rests(*expected)


def test_an_interrupt_leaves_the_team_free(
    small_tiles: team.Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    arguments, y, *_ = call()
    with pytest.raises(KeyboardInterrupt):
        team.together(interrupted, *arguments[1:])
    assert not small_tiles.free.locked()
    team.together(*arguments)
    assert y.any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_team_of_its_own() -> None:
    arguments, y, *_ = call()
    team.together(*arguments)
    expected = y.copy()
    child = os.fork()
    if child == 0:
        y[:] = np.nan
        for _ in range(20):
            team.together(*arguments)
        os._exit(int(not np.array_equal(y, expected)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_second_processor_results_are_the_same() -> None:
    """Three threads keep the processors busy meanwhile."""
    loops.load()
    arguments, y, *_ = call(2003, 640)
    team.together(*arguments)
    expected, stop = y.copy(), threading.Event()
    busy = np.zeros(1 << 20)

    def work() -> None:
        while not stop.is_set():
            busy.sum()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            y[:] = np.nan
            team.together(*arguments)
            np.testing.assert_array_equal(y, expected)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
