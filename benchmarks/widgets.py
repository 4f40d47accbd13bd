"""The memory timeline in a real JupyterLab: from running a cell to the first paint, and a pan.

    python -m benchmarks.widgets [--rounds 5]

Maps of 5,000, 20,000 and 100,000 rectangles, a hundred of them live at each step. *Payload* is
Python's part: the widget is made and its bytes packed. *Shown* is the whole of it: from the command
that runs the cell until the canvas is painted. *Frame* is the time between two frames while the
picture is dragged; *raster* is what drawing all of it anew takes. Everything runs on the CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import browsers
from benchmarks.measure import Command
from tgbench.commands.progress import note, say, table
from tgbench.views.draw.columns import pack
from tgbench.views.values.timeline import Rectangle, Timeline

SIZES, QUICK = (5_000, 20_000, 100_000), (200,)
LIVE = 100  # rectangles at each step
SLICE_BYTES = 65_536
MOVES = 60  # of the pointer, in one drag

CELLS = """from benchmarks.widgets import many
from tgbench.views import explore
from tgbench.views.values.timeline import Timeline
shown = many({count})"""
# The payload is packed anew each time: nothing of an earlier round is remembered.
SHOW = "explore(Timeline(shown.rectangles, shown.steps, shown.size_bytes, 0))"

RUN = """(index) => new Promise((done) => {
  const book = window.jupyterapp.shell.currentWidget.content;
  book.activeCellIndex = index;
  const cell = book.widgets[index].node, began = performance.now();
  window.jupyterapp.commands.execute("notebook:run-cell");
  const look = () => {
    const painted = cell.querySelector("[data-painted]")?.dataset.painted;
    if (painted > began) requestAnimationFrame((now) => done([Math.max(now, painted) - began,
      Number(cell.querySelector("[data-raster]").dataset.raster)]));
    else requestAnimationFrame(look);
  };
  look();
})"""
RECORD = """() => {
  window.frames_seen = [];
  const tick = (now) => {
    window.frames_seen.push(now);
    window.ticking = requestAnimationFrame(tick);
  };
  window.ticking = requestAnimationFrame(tick);
}"""
SEEN = "() => { cancelAnimationFrame(window.ticking); return window.frames_seen; }"


def many(count: int) -> Timeline:
    """So many slices over one retained value, each live for two steps.

    >>> shown = many(1_000)
    >>> len(shown.rectangles), shown.steps
    (1000, 22)
    """
    steps, half = count // (LIVE // 2) + 2, LIVE // 2
    kept = Rectangle("kept", "retained", 0, 1 << 20, 0, steps, True, "kept")
    rows = [kept]
    for i in range(count - 1):
        name, at = f"layer_{i % 97}.node_{i}", (1 << 20) + (i % LIVE) * SLICE_BYTES
        start = i // half
        rows.append(
            Rectangle(
                name, "slice", at, SLICE_BYTES, start, start + 2, False, name, "float32[64, 256]"
            )
        )
    return Timeline(tuple(rows), steps, (1 << 20) + LIVE * SLICE_BYTES, 0)


def payload_ms(count: int) -> float:
    """CPU time of packing a map of so many rectangles."""
    shown = many(count)
    began = time.process_time()
    pack(shown.columns())
    return (time.process_time() - began) * 1e3


def measure(page: Any, address: str, folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """One notebook: the cell is run again and again, then its picture is dragged."""
    cells = [CELLS.format(count=count), SHOW]
    notebook = browsers.Notebook.open(page, address, folder, f"many{count}", cells)
    notebook.run()
    shown, rasters = [], []
    for _ in range(rounds + 1):  # the first loads the widget's front end
        note(f"{count:,} rectangles")
        taken, raster = page.evaluate(RUN, 1)
        shown.append(taken)
        rasters.append(raster)
    return {
        "rectangles": count,
        "first_shown_ms": round(shown[0], 1),
        "shown_ms": [round(value, 1) for value in shown[1:]],
        "raster_ms": [round(value, 1) for value in rasters[1:]],
        "payload_ms": [round(payload_ms(count), 1) for _ in range(rounds)],
        "frame_ms": [round(value, 1) for value in dragged(page)],
    }


def dragged(page: Any) -> list[float]:
    """Times between frames while the zoomed picture is dragged."""
    canvas = page.locator(".jp-Notebook canvas").last
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(300)
    page.mouse.down()
    page.evaluate(RECORD)
    page.mouse.move(x - 180, y + 60, steps=MOVES)
    seen = page.evaluate(SEEN)
    page.mouse.up()
    return [later - sooner for sooner, later in pairwise(seen)]


@contextmanager
def desk() -> Iterator[tuple[Any, str, Path]]:
    """A browser, the address of a JupyterLab, and its folder."""
    with (
        tempfile.TemporaryDirectory() as name,
        browsers.browser() as chromium,
        browsers.jupyterlab(Path(name)) as address,
    ):
        yield chromium, address, Path(name)


def run(rounds: int, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """All sizes, in one JupyterLab."""
    rows = []
    with desk() as (chromium, address, folder):
        for count in sizes:
            page = chromium.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(browsers.PATIENCE_MS)
            rows.append(measure(page, address, folder, count, rounds))
            page.close()
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    names = ("shown_ms", "payload_ms", "raster_ms", "frame_ms")
    lines = [
        [f"{row['rectangles']:,}", *(f"{median(row[name]):.1f}" for name in names)] for row in rows
    ]
    say(table(["rectangles", "shown ms", "payload ms", "raster ms", "frame ms"], lines))


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("widgets", "The memory timeline in a real JupyterLab.")
    command.add_argument("--rounds", type=int, default=5)
    options, record = command.begin(argv)
    if why := browsers.missing("playwright", "anywidget", "jupyterlab"):
        raise SystemExit(f"cannot measure: {why}")
    rows = run(1, QUICK) if options.quick else run(options.rounds)
    print_rows(rows)
    medians = {
        f"{row['rectangles']}": {
            name.removesuffix("_ms"): round(median(row[name]), 1)
            for name in ("shown_ms", "payload_ms", "raster_ms", "frame_ms")
        }
        for row in rows
    }
    record.write({"medians_ms": medians, "rows": rows}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
