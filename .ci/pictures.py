"""The README's pictures, made anew by `make pictures`; `report` or `workbench` makes these alone.

report      of the whole demo, down to the first memory map
workbench   the decoder of a notebook in a real JupyterLab after a search, with a value chosen: in
            light, and in dark with a point of the frontier proposed
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
NOTEBOOK = ROOT / "notebooks" / "04_optimise_under_a_budget.ipynb"
MOST = '"170KiB"'  # a budget at which the frontier has points on both sides
SECONDS = 30
SIZE = {"width": 1400, "height": 900}
IS_TRIED = "() => document.querySelectorAll('.tg-point').length >= 4"


def cells() -> list[str]:
    """The notebook's decoder and its runs, within that budget; a screen of them."""
    codes = [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    runs = codes[1].partition("before =")[0].replace('"150KiB"', MOST)
    return [f"{codes[0]}\n{runs}", f"screen = session.explore(seconds={SECONDS})\nscreen"]


def shot(page: Any, screen: Any, name: str) -> None:
    screen.evaluate("(e) => e.scrollIntoView({ block: 'start' })")
    page.mouse.move(2, 2)
    page.wait_for_timeout(1500)
    page.screenshot(path=str(IMAGES / f"{name}.png"))
    print(f"docs/images/{name}.png")


def report(browsers: Any) -> None:
    """The demo runs with as many threads as it has for a user."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder, browsers.browser() as chromium:
        command = [sys.executable, "-m", "tgbench", "demo", "--output", folder]
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
        page = chromium.new_context(viewport={"width": 1200, "height": 900}).new_page()
        page.goto((Path(folder) / "report.html").as_uri())
        end = page.locator(".seen").first.bounding_box()
        name = "docs/images/report.png"
        clip = {"x": 0, "y": 0, "width": 1200, "height": end["y"] + end["height"]}
        page.screenshot(path=str(ROOT / name), full_page=True, clip=clip)
        print(name)


def workbench(browsers: Any) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        browsers.browser() as chromium,
        browsers.jupyterlab(Path(folder)) as address,
    ):
        page = browsers.Watched(chromium.new_context(viewport=SIZE).new_page()).watch().page
        notebook = browsers.Notebook.open(page, address, Path(folder), "decoder", cells())
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        notebook.run()
        notebook.run()
        page.locator("[data-painted]").first.wait_for()
        screen = page.locator(".tg-view").first
        page.wait_for_function(IS_TRIED)
        screen.get_by_role("button", name="search", exact=True).click()
        screen.get_by_role("button", name="resume").wait_for()
        screen.locator(".tg-class", has_text="edit 1 of 96").click()
        screen.locator(".tg-inspector button", has_text="layer_0.v").first.click()
        shot(page, screen, "workbench")
        notebook.theme("JupyterLab Dark")
        screen.locator(".tg-point").last.click()
        screen.get_by_role("button", name="dismiss").wait_for()
        shot(page, screen, "workbench-dark")


PICTURES = {"report": report, "workbench": workbench}


def main(names: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    from benchmarks import browsers

    if why := browsers.missing("playwright", "anywidget", "jupyterlab"):
        print(why, file=sys.stderr)
        return 1
    for name in names or PICTURES:
        PICTURES[name](browsers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
