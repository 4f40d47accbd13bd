"""Create or update .venv, with the standard library only.

    python3 .ci/bootstrap.py --extras test,lab

Steps: .venv, torch, the other pinned packages, tgbench itself (editable). A stamp in .venv
says what was installed, so that a second call returns at once. pip's own output goes to
.venv/setup.log; its end is shown when a step fails. The file must parse on Pythons that are
too old for tgbench, so that they get a message and not a SyntaxError.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "tgbench-stamp.json")
LOG = os.path.join(VENV, "setup.log")
PYPROJECT = os.path.join(ROOT, "pyproject.toml")
CONSTRAINTS = os.path.join(ROOT, ".ci", "constraints", "cpu.txt")

OLDEST = (3, 11)
TESTED = ((3, 11), (3, 12), (3, 13))
BUILD_TOOLS = ["hatchling", "editables"]

# Exit status 0: this Python can build the environment.
PROBE = "import sys, venv, ensurepip; sys.exit(not (%r <= sys.version_info[:2] <= %r))"

MENDS = (
    (
        r"No space left on device",
        "free about 3 GB of disk (8 GB for a torch with CUDA), then run the same command again",
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|"
        r"Temporary failure in name resolution|Connection (refused|reset)",
        "the package index did not answer: check the network or the proxy, "
        "then run the same command again",
    ),
    (
        r"Could not find a version|No matching distribution|ResolutionImpossible",
        "the index has no build of a pinned version for this Python and system: try another "
        "Python (make setup PYTHON=python3.12); or, after a change of pyproject.toml, bring "
        ".ci/constraints/cpu.txt in line with it",
    ),
    (
        r"Permission denied|externally-managed",
        "the repository folder must be writable: check its owner, or run make clean",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="create or update .venv")
    parser.add_argument("--extras", default="test", help="extras to install, comma separated")
    args = parser.parse_args()
    extras = {name.strip() for name in args.extras.split(",") if name.strip()}

    other = better_python()
    if other:
        return subprocess.call([other, os.path.abspath(__file__), *sys.argv[1:]])
    if sys.version_info[:2] < OLDEST:
        return fail(
            "tgbench needs Python 3.11 or newer; this is %s (%s)" % (version(), sys.executable),
            "install Python 3.11, 3.12 or 3.13 and run: make setup PYTHON=/path/to/python3",
        )
    if not has_module("ensurepip"):
        return fail(
            "Python %s (%s) cannot create virtual environments" % (version(), sys.executable),
            "on Debian or Ubuntu: apt-get install python3-venv; then run the same command again",
        )

    if is_current(extras):
        return 0
    try:
        with only_one_here():
            if not is_current(extras):
                set_up(sorted(extras | installed_extras()))
    except StepError as error:
        return fail(str(error), error.mend)
    except KeyboardInterrupt:
        say("\nstopped; the same command goes on from here")
        return 130
    return 0


def set_up(extras: list) -> None:
    """Run the steps in order and write the stamp last."""
    started = time.monotonic()
    wanted = requirements(extras)
    say("setting up .venv with Python %s (about a minute on a fast network)" % version())
    create_venv()
    torch = [line for line in pins() if line.startswith("torch==")]
    where = os.environ.get("TORCH_INDEX")
    pip("2/4 " + torch[0], torch + (["--extra-index-url", where] if where else []))
    pip("3/4 packages", BUILD_TOOLS + wanted)
    pip("4/4 tgbench", ["--no-deps", "--no-build-isolation", "--editable", ROOT])
    write_stamp(extras)
    say("ready in %.0f s" % (time.monotonic() - started))


@contextlib.contextmanager
def only_one_here():
    """Wait until no other set-up works in this folder. The lock ends with its process."""
    import fcntl

    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running in this folder; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def create_venv() -> None:
    """Create .venv, or keep one that works and was made here for this Python version."""
    started = time.monotonic()
    if venv_is_usable():
        return say("  1/4 .venv: kept")
    command = [sys.executable, "-m", "venv", "--clear", VENV]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        say(done.stdout.decode(errors="replace"))
        raise StepError(
            "could not create .venv",
            "on Debian or Ubuntu: apt-get install python3-venv; or choose another Python: "
            "make setup PYTHON=python3.12",
        )
    # Says where and for whom the environment was made, before anything is installed.
    write_json(STAMP, {"place": place()})
    return say("  1/4 .venv: done in %.0f s" % (time.monotonic() - started))


def venv_is_usable() -> bool:
    if read_stamp().get("place") != place() or not os.path.exists(VENV_PYTHON):
        return False
    return quiet([VENV_PYTHON, "-m", "pip", "--version"]) == 0


def pip(label: str, arguments: list) -> None:
    """Run one `pip install` with its output in the log and a line of progress on the screen."""
    command = [VENV_PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--constraint", CONSTRAINTS, *arguments]
    environment = dict(os.environ, PIP_USER="0", PYTHONUNBUFFERED="1")
    progress = Progress(label)
    with open(LOG, "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while True:
                try:
                    process.wait(timeout=0.25)
                    break
                except subprocess.TimeoutExpired:
                    progress.show(read_log(begin))
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode:
        progress.end("failed")
        output = read_log(begin)
        say("\n".join(["", "the end of .venv/setup.log:", *output.splitlines()[-15:]]) + "\n")
        raise StepError("step %s failed" % label, mend(output))
    progress.end("done")


class Progress:
    """One line that is rewritten on a terminal; a new line every few seconds elsewhere."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.started = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.shown_at = self.started
        self.warned = False

    def show(self, log: str) -> None:
        if not self.warned and "nvidia-" in log and not os.environ.get("TORCH_INDEX"):
            self.warned = True
            say(
                "\n  This torch brings CUDA (several GB). For the small CPU build stop here and"
                "\n  run: make clean; TORCH_INDEX=https://download.pytorch.org/whl/cpu make setup"
            )
        now = time.monotonic()
        if now - self.shown_at < (0.5 if self.terminal else 10):
            return
        self.shown_at = now
        self.write("%.0f s, %s" % (now - self.started, activity(log)), done=False)

    def end(self, outcome: str) -> None:
        self.write("%s in %.0f s" % (outcome, time.monotonic() - self.started), done=True)

    def write(self, text: str, done: bool) -> None:
        line = "  %s: %s" % (self.label, text)
        if self.terminal:
            sys.stdout.write("\r%-79.79s" % line + ("\n" if done else ""))
            sys.stdout.flush()
        else:
            say(line)


def activity(log: str) -> str:
    """What pip is doing now, from its log."""
    if "Installing collected packages" in log:
        return "unpacking"
    seen = re.findall(
        r"^\s*(?:Downloading|Using cached|Processing) (\S+)( \([\d.]+ .?B\))?", log, re.M
    )
    if not seen:
        return "resolving"
    name, size = seen[-1]
    return "%d files, now %s%s" % (len(seen), os.path.basename(name).split("-")[0], size)


class StepError(Exception):
    def __init__(self, message: str, mend: str) -> None:
        super().__init__(message)
        self.mend = mend


def mend(output: str) -> str:
    for pattern, advice in MENDS:
        if re.search(pattern, output):
            return advice
    return "read .venv/setup.log; then run the same command again, or start over with make clean"


# What is wanted and what is there


def better_python() -> str:
    """Another Python, when this one is outside the tested versions; '' if this one will do."""
    probe = PROBE % (TESTED[0], TESTED[-1])
    if TESTED[0] <= sys.version_info[:2] <= TESTED[-1] and has_module("ensurepip"):
        return ""
    for major, minor in reversed(TESTED):
        found = shutil.which("python%d.%d" % (major, minor))
        if found and quiet([found, "-c", probe]) == 0:
            say("using %s (%s is Python %s)" % (found, sys.executable, version()))
            return found
    return ""


def pins() -> list:
    with open(CONSTRAINTS, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def requirements(extras: list) -> list:
    """The core dependencies and those of the extras, from pyproject.toml."""
    import tomllib  # since 3.11

    with open(PYPROJECT, "rb") as file:
        project = tomllib.load(file)["project"]
    optional = project["optional-dependencies"]
    unknown = [name for name in extras if name not in optional]
    if unknown:
        raise StepError(
            "there is no extra called %s" % ", ".join(unknown),
            "choose from: %s" % ", ".join(sorted(optional)),
        )
    return project["dependencies"] + [line for name in extras for line in optional[name]]


def place() -> str:
    """A virtual environment holds for one folder and one Python version."""
    return "%s %d.%d" % (ROOT, sys.version_info[0], sys.version_info[1])


def key() -> str:
    digest = hashlib.sha256(place().encode())
    for path in (PYPROJECT, CONSTRAINTS):
        with open(path, "rb") as file:
            digest.update(b"\0" + file.read())
    return digest.hexdigest()


def is_current(extras: set) -> bool:
    same = read_stamp().get("key") == key() and os.path.exists(VENV_PYTHON)
    return same and extras <= installed_extras()


def installed_extras() -> set:
    return set(read_stamp().get("extras", []))


def read_stamp() -> dict:
    try:
        with open(STAMP, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        return {}


def write_stamp(extras: list) -> None:
    write_json(STAMP, {"place": place(), "key": key(), "extras": extras})


def write_json(path: str, value: dict) -> None:
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    os.replace(path + ".tmp", path)


def read_log(begin: int) -> str:
    with open(LOG, "rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


# Small things


def version() -> str:
    return "%d.%d.%d" % tuple(sys.version_info[:3])


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def quiet(command: list) -> int:
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def say(text: str) -> None:
    print(text, flush=True)


def fail(message: str, mend: str) -> int:
    print("error: %s\nmend:  %s" % (message, mend), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
