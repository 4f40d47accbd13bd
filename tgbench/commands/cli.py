"""The command line: one subcommand a line of `COMMANDS`, each in a module of its own.

    tgbench demo        the short tour: Gemma 3 and MiniLM, incrementally, beside transformers
    tgbench profile     measure the kernels that a model's runs use, into a record database
    tgbench sweep       measure the ways to compute a model, the cheapest first
    tgbench run         a model file on inputs, one set after the other
    tgbench check       a model file beside pairs of inputs and outputs from another framework
    tgbench optimize    the best plan for a model's trace under a budget
    tgbench plan        what a plan file decides, as text or JSON
    tgbench export      a plan, graph or trace for other programs: JSON, SVG, DOT, CSV; a plan as a
                        page that needs no server
    tgbench kernel      a task for who writes a kernel; what was written, checked and kept
    tgbench compile     the kernels of this processor, once
    tgbench pack        offsets for the buffers of a file
    tgbench occlusion, stream, edit, complete     applications of exact incremental runs

A subcommand's module is imported when it is asked for, so that `--help` needs no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import tgbench
from tgbench.base.errors import TgbenchError
from tgbench.base.words import printable

ABOUT = "tgbench: exact incremental programs of tensor graphs under a memory budget."
EPILOG = "`tgbench COMMAND --help` tells what a command takes; `tgbench demo --quick` is a start."
DEFAULTS = "In parentheses: what holds where an option is left out."
ARGUMENT = (
    r"(?<![\w-])(?P<name>[a-z_]+)=(?:(?P<quote>[\"'])(?P<quoted>[\w:.]+)(?P=quote)"
    r"|(?P<value>[-\w.…\"'{\[]?))"
)
STOPPED = 130  # what a shell expects of a command that Ctrl-C ended


@dataclass(frozen=True)
class Command:
    """A subcommand: `module` has `configure(parser)` and `run(arguments) -> exit status`.

    The module is imported only when its subcommand is asked for.
    """

    name: str
    module: str
    help: str


COMMANDS = (
    Command("demo", "demo", "the short tour: two models, run incrementally"),
    Command("profile", "profile", "measure the kernels that a model's runs use"),
    Command("sweep", "sweep", "measure the ways to compute a model, the cheapest first"),
    Command("run", "run", "run a model file, one set of inputs after another"),
    Command("check", "check", "compare a model with pairs of another framework"),
    Command("occlusion", "apps.occlusion_command", "what of an image a classifier looks at"),
    Command("stream", "apps.stream_command", "a causal audio network, block by block"),
    Command("edit", "apps.edit_command", "the embedding of a document under editing"),
    Command("complete", "apps.complete_command", "a language model under edited prompts"),
    Command("optimize", "optimize", "the best plan for a trace and a budget"),
    Command("plan", "plan", "check a plan file and show what it decides"),
    Command("export", "export", "a plan, graph or trace for other programs"),
    Command("kernel", "kernel", "a task for who writes a kernel; checks one, and keeps it"),
    Command("compile", "compile", "compile the kernels of this processor, once"),
    Command("pack", "pack", "give the buffers of a file their offsets"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status.

    0: done; 1: an error that tgbench foresees, said in one line; 2: wrong arguments; 130: Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without →, × or ≤ shows ?
    words = list(sys.argv[1:] if argv is None else argv)
    options: dict[str, str] = {}
    try:
        parser, asked = _parser(words)
        arguments = parser.parse_args(words)
        if arguments.command is None:
            parser.print_help()
            return 2
        own, module = asked[arguments.command]
        options |= {one.dest: one.option_strings[-1] for one in own._actions if one.option_strings}
        return int(module.run(arguments))
    except TgbenchError as error:
        said = _by_options(str(error), options)
        print(printable(f"error: {said}"), file=sys.stderr)  # it may quote a file's names
        return 1
    except BrokenPipeError:  # `tgbench … | head`
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"error: {error.strerror}: what was to be said is not whole", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return STOPPED


def _by_options(said: str, options: Mapping[str, str]) -> str:
    """An error of the library, by the options of a command instead of arguments in Python.

    >>> options = {"weights": "--weights", "memory": "--memory", "target": "--class"}
    >>> _by_options("pass weights= or memory='64MiB'; leave out `target`; f(steps=3)", options)
    'pass --weights or --memory 64MiB; leave out `--class`; f(steps=3)'
    """

    def option(found: re.Match[str]) -> str:
        value = found["quoted"] or found["value"] or ""
        name = options.get(found["name"])
        return found[0] if name is None else f"{name} {value}".rstrip()

    said = re.sub(ARGUMENT, option, said.replace("=session.graph", "="))
    said = re.sub(r"`([a-z_]+)`", lambda found: f"`{options.get(found[1], found[1])}`", said)
    return said.replace("session.graph", "the graph")


def _parser(
    words: Sequence[str],
) -> tuple[argparse.ArgumentParser, dict[str, tuple[argparse.ArgumentParser, Any]]]:
    """The parser; and by name the subcommand that is asked for, with its arguments."""
    parser = argparse.ArgumentParser(prog="tgbench", description=ABOUT, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"tgbench {tgbench.__version__}")
    below = parser.add_subparsers(dest="command", metavar="command")
    asked: dict[str, tuple[argparse.ArgumentParser, Any]] = {}
    for command in COMMANDS:
        own = below.add_parser(
            command.name, help=command.help, description=command.help, epilog=DEFAULTS
        )
        if command.name in words:
            module = import_module(f"tgbench.commands.{command.module}")
            module.configure(own)
            asked[command.name] = own, module
    return parser, asked
