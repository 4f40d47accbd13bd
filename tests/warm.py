"""Kernels of notebooks that start at once: forks of one process that has loaded the package.

    jupyter ── python warm.py ask … ── files, folder, environment ──→ keeper ── fork ──→ kernel
                                    ←─ exit status ── signals ──→

Loading PyTorch and tgbench takes five seconds of each kernel; what notebooks do with them is what
is tested. A process that ends takes its kernel with it, and the tests' takes the keeper.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20  # of an environment
FORWARDED = (signal.SIGINT, signal.SIGTERM)


# --- for tests ------------------------------------------------------------------------------------


@contextlib.contextmanager
def warm_kernels(path: Path) -> Iterator[None]:
    """While this lasts, `python3` names a kernel that is warm, where `path` is a Jupyter path."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/door"
        command = [sys.executable, __file__, "keep", place]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == b"warm\n"
            _announce(place, path / "kernels" / "python3")
            yield
            keeper.terminate()


def _announce(place: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    argv = [sys.executable, "-S", "-E", __file__, "ask", place, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))


# --- the process that a kernel manager starts -----------------------------------------------------


def ask(place: str, *words: str) -> int:
    """Have a kernel started, pass signals on to it, and end with it."""
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.connect(place)
        wanted = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(keeper, [json.dumps(wanted).encode() + b"\n"], [0, 1, 2])
        for number in FORWARDED:
            signal.signal(number, lambda number, _: keeper.send(bytes([number])))
        status = keeper.recv(1)
    return status[0] if status else 1


# --- the process that has loaded everything -------------------------------------------------------


def keep(place: str) -> None:
    """Fork a kernel for each that asks; end with whoever started this process."""
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        print("warm", flush=True)
        while sys.stdin.fileno() not in select.select([door, sys.stdin], [], [])[0]:
            asking, _ = door.accept()
            if os.fork() == 0:
                door.close()
                return _watch(asking)
            asking.close()


def _load() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))

    import ipykernel.ipkernel
    import ipykernel.kernelapp
    import ipykernel.zmqshell  # noqa: F401

    import tgbench

    assert tgbench.GraphSession
    assert threading.active_count() == 1  # others would not be there after a fork


def _watch(asking: socket.socket) -> None:
    """Beside a kernel as long as it lives: signals go to it, its status comes back."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wanted, files = _received(asking)
    kernel = os.fork()
    if kernel == 0:
        asking.close()
        return _become(wanted, files)
    threading.Thread(target=_pass_on, args=(asking, kernel), daemon=True).start()
    _, status = os.waitpid(kernel, 0)
    with contextlib.suppress(OSError):
        asking.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def _received(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, files, *_ = socket.recv_fds(asking, MOST_BYTES, 3)
    while not text.endswith(b"\n"):
        text += asking.recv(MOST_BYTES)
    return json.loads(text), files


def _pass_on(asking: socket.socket, kernel: int) -> None:
    with contextlib.suppress(OSError):
        while number := asking.recv(1):
            os.kill(kernel, number[0])
        os.kill(kernel, signal.SIGKILL)  # nobody is there to end it any more


def _become(wanted: dict[str, Any], files: list[int]) -> None:
    """The kernel, as if it had been started afresh."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.path[:0] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["ipykernel_launcher", *wanted["words"]]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    {"ask": ask, "keep": keep}[sys.argv[1]](*sys.argv[2:])
