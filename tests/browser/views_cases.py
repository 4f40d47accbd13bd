"""Small memory maps for the browser tests, and places on the page.

12288 ┤      ┌── s ──┐
 8192 ┤ ┌─ q ┴──┐    │        q: steps 1 to 3; s: steps 3 and 4, above q
 4096 ┤ ═══ k ═════════
    0 ┤ ─── ids ───────
        0  1  2  3  4  5
"""

from __future__ import annotations

from typing import Any

from tgbench.views.values.timeline import Rectangle, Timeline

MARGIN = {"left": 66, "right": 8, "top": 42, "bottom": 34}  # of widgets/memory.js
BAND = 0.09  # of the height: what is kept, while it is folded


def tower(name: str = "q") -> Timeline:
    """The map of the module's first lines."""
    return Timeline(
        (
            Rectangle("ids", "input", 0, 4096, 0, 6, True, "ids", "input"),
            Rectangle("k", "retained", 4096, 4096, 0, 6, True, "k", "matmul", (2, 4)),
            Rectangle(name, "slice", 8192, 4096, 1, 4, False, name, "exp", (3,)),
            Rectangle("s", "slice", 12288, 4096, 3, 5, False, "s", "add"),
        ),
        steps=6, size_bytes=16384, bound_bytes=16384, schedule=("a", "b", "c", "d", "e"),
    )  # fmt: skip


def place(page: Any, shown: Timeline, name: str) -> tuple[float, float]:
    """The middle of a rectangle on the page: all of the map is shown, what is kept is folded."""
    r = next(r for r in shown.rectangles if r.label == name)
    box = page.locator("canvas").first.bounding_box()
    width = box["width"] - MARGIN["left"] - MARGIN["right"]
    height = box["height"] - MARGIN["top"] - MARGIN["bottom"]
    x = box["x"] + MARGIN["left"] + (r.start + r.stop) / 2 / shown.steps * width
    kept = max(r.offset_bytes + r.size_bytes for r in shown.rectangles if r.retained)
    scale = BAND * (shown.size_bytes - kept) / (1 - BAND) / kept

    def up(size: float) -> float:
        return size * scale if size < kept else size - kept + kept * scale

    share = up(r.offset_bytes + r.size_bytes / 2) / (up(shown.size_bytes) * 1.03)
    return x, box["y"] + MARGIN["top"] + (1 - share) * height


def painted_share(page: Any) -> float:
    """How much of the first canvas is not empty, once that is the same for a while."""
    before, found = -1.0, _painted(page)
    while found != before:
        page.wait_for_timeout(250)
        before, found = found, _painted(page)
    return found


def _painted(page: Any) -> float:
    found: float = page.evaluate(
        """() => { const c = document.querySelector("canvas");
        const found = c.getContext("2d").getImageData(0, 0, c.width, c.height);
        const pixels = new Uint32Array(found.data.buffer);
        return pixels.reduce((n, pixel) => n + (pixel !== 0), 0) / pixels.length; }"""
    )
    return found


def words_lightness(page: Any) -> float:
    """How light the words left of the plot are, from 0 to 255."""
    found: float = page.evaluate(
        """() => { const c = document.querySelector("canvas"), scale = c.width / c.clientWidth;
        const { data } = c.getContext("2d").getImageData(0, 0, Math.round(58 * scale), c.height);
        let sum = 0, count = 0;
        for (let i = 0; i < data.length; i += 4) {
          if (data[i + 3] > 100) { sum += data[i + 1]; count++; }
        }
        return sum / count; }"""
    )
    return found
