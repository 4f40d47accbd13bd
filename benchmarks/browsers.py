"""What tests and measurements of the views need: a page, a view in it, and a real JupyterLab.

Works in a checkout: `widgets/` and `tests/browser/` are served from there. Chromium is the
system's; nothing is downloaded. What is missing is named, so that tests can be skipped.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome")
                 if (found := shutil.which(name))), None)  # fmt: skip
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 90_000


def missing(*packages: str) -> str:
    """Why the tests cannot run here; "" if they can."""
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (pip install 'tgbench[lab]' playwright)"
    return "" if CHROMIUM else "needs Chromium on the PATH"


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield made
        made.close()


@dataclass
class Watched:
    """A page and whatever went wrong in it."""

    page: Any
    faults: list[str] = field(default_factory=list)

    def watch(self) -> Watched:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._heard)
        return self

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(message.text)


# --- without a kernel -----------------------------------------------------------------------------


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def guess_type(self, path: Any) -> str:
        return "text/javascript" if str(path).endswith(".js") else super().guess_type(path)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    """The address of the checkout's files."""
    handler = functools.partial(_Quiet, directory=str(ROOT))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


BARE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<link rel="stylesheet" href="/widgets/screen.css"><body style="margin:8px"><div id="view"></div>"""

SHOW = """async ([state, buffers]) => {
  const { FakeModel } = await import("/tests/browser/fake_model.js");
  const view = (await import("/widgets/screen.js")).default;
  for (const [name, text] of Object.entries(buffers)) {
    state[name] = new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  }
  window.model = new FakeModel(state);
  const el = document.getElementById("view");
  window.end?.();
  window.end = view.render({ model: window.model, el });
}"""


def show(page: Any, address: str, screen: Any) -> None:
    """A screen in a bare page, over a model without a kernel; the model is `window.model`."""
    page.route("**/bare.html", lambda route: route.fulfill(body=BARE, content_type="text/html"))
    page.goto(f"{address}/bare.html")
    page.evaluate(SHOW, [*state_of(screen)])


def state_of(screen: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What a screen sends to its script: small values, and buffers as text."""
    names = ("panels", "label", "table", "selected", "step", "bucket", "remark")
    buffers = {
        name: base64.b64encode(getattr(screen, name)).decode()
        for name in screen.traits(sync=True)
        if isinstance(getattr(screen, name), bytes)
    }
    return {name: getattr(screen, name) for name in names}, buffers


# --- JupyterLab -----------------------------------------------------------------------------------


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab over a folder, with settings of its own and no token."""
    port = _free_port()
    own = folder / ".jupyter"
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(own / "config"), "JUPYTER_DATA_DIR": str(own / "data"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"), "JUPYTERLAB_SETTINGS_DIR": str(own / "user"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "spaces"), "IPYTHONDIR": str(own / "ipython"),
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
        "--ServerApp.password=", "--expose-app-in-browser", f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    settings = own / "user" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    with (own / "log.txt").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            _await(f"http://127.0.0.1:{port}/api", process, own / "log.txt")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start: {log.read_text()[-2000:]}")


IS_IDLE = """() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status
  === 'idle'"""
SHOW_INSTEAD = """async (path) => {
  await window.jupyterapp.restored;
  for (const shown of [...window.jupyterapp.shell.widgets("main")]) {
    await shown.sessionContext?.shutdown();
    shown.dispose();
  }
  await window.jupyterapp.commands.execute("docmanager:open", { path });
}"""


@dataclass
class Notebook:
    """A notebook that is open in JupyterLab; cells run one after another."""

    page: Any
    done: int = 0

    @staticmethod
    def open(page: Any, address: str, folder: Path, name: str, cells: list[str]) -> Notebook:
        """Write a notebook of these cells and show it."""
        file = _written(folder, name, cells)
        page.goto(f"{address}/lab/workspaces/{name}/tree/{file}?reset")
        page.wait_for_function(IS_IDLE)
        return Notebook(page)

    @staticmethod
    def instead(page: Any, folder: Path, name: str, cells: list[str]) -> Notebook:
        """Show a notebook of these cells in a JupyterLab that is open, and no other any more."""
        page.evaluate(SHOW_INSTEAD, _written(folder, name, cells))
        page.wait_for_function(IS_IDLE)
        return Notebook(page)

    def run(self) -> Any:
        """Run the next cell to its end; returns its output area. Raises where the cell does."""
        self.page.evaluate(
            "(i) => { const all = window.jupyterapp.shell.currentWidget.content;"
            " all.activeCellIndex = i; }",
            self.done,
        )
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(self.done)
        self.done += 1
        fault = cell.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        if fault.count():
            text = fault.first.inner_text()
            if "Error" in text:
                raise AssertionError(text)
        return cell.locator(".jp-Cell-outputWrapper")

    def theme(self, name: str) -> None:
        """Another theme of the application: "JupyterLab Dark", "JupyterLab Light"."""
        self.page.evaluate(
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
            name,
        )
        is_light = str(name != "JupyterLab Dark").lower()
        self.page.wait_for_function(
            "(want) => document.body.dataset.jpThemeLight === want", arg=is_light
        )

    def restart(self) -> None:
        """Restart the kernel, as a user would, without the question."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )


def _written(folder: Path, name: str, cells: list[str]) -> str:
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps(notebook_of(cells)))
    return path.name


def notebook_of(cells: list[str]) -> dict[str, Any]:
    made: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"cell-{i}", "execution_count": None, "metadata": {},
         "outputs": [], "source": source}
        for i, source in enumerate(cells)
    ]  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
