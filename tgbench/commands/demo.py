"""The short tour: two models run again and again, each step beside transformers.

    Gemma 3   prefill ─→ prefill again ─→ decode … ─→ edit in the middle ─→ decode …
    MiniLM    embed 8 texts ─→ edit a word of one ─→ embed again …
              └─ every step here and in transformers, in turns, on the same cores

Every number that is shown is measured in that call. The plan, the trace and a report that opens
without network are written to a folder; the checkpoint of random weights stays in a cache folder
for the next call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import InputError, TgbenchError, WeightsError
from tgbench.base.machine import Machine, cache_folder
from tgbench.base.safetensors import read_header
from tgbench.base.words import format_bytes
from tgbench.kernels import beside
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import (
    GEMMA3_270M,
    Config,
    find_minilm,
    gemma3_checkpoint,
    gemma3_reduced,
)
from tgbench.sources.models.config import load_config
from tgbench.sources.models.text import Tokenizer
from tgbench.views.draw.tables import TextTable
from tgbench.views.pages.report import Run, Study, agreement, medians, ms, page, share, times
from tgbench.views.values.timeline import timeline

Floats = npt.NDArray[np.float32]
STOPPED = 130
WIDE = 110  # letters of a line where there is no terminal
EDITED = 5  # times that the token in the middle is changed: there and back
MAPPED = "mapped from the file, never copied"
CLOSE = 1e-4  # embeddings of length 1 that differ by less are equal

PROMPT = (
    "The harbour was quiet when the first boats came back. Men in heavy coats carried crates of "
    "herring up the stone steps, and the gulls followed every one of them. Nobody spoke of the "
    "storm. At the end of the pier the keeper wrote the names of the boats into his book, one "
    "line for each, with the hour and the weight of the catch. Two names were still missing when "
    "the lamps were lit. He looked at the horizon, closed the book, opened it again, and counted "
    "the lines once more. Then he put on his coat, took the lantern from its hook, and went down "
    "to the water to wait, because that was what his father had always done, and the father of "
    "his father before him."
)

TEXTS = (
    "She sat down on the grass of the bank, took off her shoes, and watched the slow brown water "
    "carry leaves towards the bridge.",
    "The loan was approved within two days, and the money reached the account of the company "
    "before the end of the week.",
    "A grey heron stood without moving in the shallow river and waited for small fish to come "
    "near its long legs.",
    "Interest rates rose again this quarter, so families with a mortgage will pay more each month "
    "than they did last year.",
    "Beat two eggs with the sugar, fold in the flour, and bake the cake for forty minutes until "
    "the top is golden brown.",
    "The morning train to the coast leaves at half past seven and stops at every village along "
    "the old railway line.",
    "He took the engine of the car apart on the kitchen floor, cleaned each piece, and put it back "
    "together by evening.",
    "The match was decided in the last minute, when the youngest player on the field scored from "
    "the halfway line.",
)
# (row, text before, text after): the first is the one that the similarities are shown of.
EDITS = (
    (0, "sat down on the grass of the bank, took off her shoes, and watched the slow brown water "
     "carry leaves towards the bridge", "sat down in the office of the bank, took out her papers, "
     "and asked how much money she could borrow for the house"),
    (1, "two days", "three weeks"), (2, "heron", "crane"), (3, "rose", "fell"),
    (4, "cake", "bread"), (5, "coast", "mountains"), (6, "car", "boat"), (7, "youngest", "oldest"),
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much the tour does.

    Fields:
        config: of the random Gemma 3.
        tokens: positions of its graph.
        prompt: ids of the prompt; the edit is in its middle.
        before, after: decoded ids before and after the edit.
        memory: the arena's budget.
        texts, text_tokens: rows and positions of the encoder's graph.
        text_memory: the budget of its arena.
    """

    config: Config
    tokens: int
    prompt: int
    before: int
    after: int
    memory: str
    texts: int
    text_tokens: int
    text_memory: str


FULL = Size(GEMMA3_270M, 512, 128, 24, 8, "32MiB", 8, 32, "16MiB")
QUICK = Size(gemma3_reduced(), 48, 16, 4, 3, "1MiB", 3, 32, "8MiB")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    output: Path
    cache: Path
    size: Size
    gemma: Path | None = None
    memory: str | None = None
    has_reference: bool = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tgbench demo`."""
    parser.add_argument(
        "--gemma",
        type=Path,
        default=os.environ.get("GEMMA") or None,
        help="folder of a Gemma 3 text checkpoint (also: GEMMA=folder); without one, random "
        "weights of the 270M size are made once and kept",
    )
    parser.add_argument("--memory", help=f"budget of Gemma's arena (default {FULL.memory})")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder to write")
    parser.add_argument(
        "--cache", type=Path, default=cache_folder(), help="keeps the random weights"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny models, which take a few seconds"
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="do not run transformers beside it"
    )


def run(arguments: argparse.Namespace) -> int:
    """`tgbench demo`; returns the exit status."""
    beside.insist()  # its times are of compiled kernels
    options = Options(
        arguments.output,
        arguments.cache,
        QUICK if arguments.quick else FULL,
        Path(arguments.gemma) if arguments.gemma else None,
        arguments.memory,
        not arguments.no_reference,
    )
    tour = Tour(options)
    try:
        tour.go()
    except KeyboardInterrupt:
        tour.screen.say("\nstopped; every file is either whole or not there.")
        tour.screen.say("The same command starts the tour again and reuses the checkpoint in")
        tour.screen.say(f"  {options.cache}")
        return STOPPED
    return 0 if tour.agreed else 1


def compared(time_ns: float, other_ns: float) -> str:
    """How a time compares with another one, in words.

    >>> compared(50.0, 95.0), compared(95_000.0, 50.0), compared(500.0, 501.0)
    ('1.90 × faster than', '1900 × slower than', 'as fast as')
    """
    ratio = times(max(time_ns, other_ns) / min(time_ns, other_ns))
    if ratio == "1.00":
        return "as fast as"
    return f"{ratio} × {'faster' if time_ns < other_ns else 'slower'} than"


def wrapped(line: str, width: int) -> str:
    """A line in as many as it takes; those after the first are indented.

    >>> wrapped("4 nodes retained in 24 KiB", 20).splitlines()
    ['4 nodes retained in', '    24 KiB']
    """
    return textwrap.fill(
        line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


# --- the screen ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    name: str
    width: int
    is_number: bool = True


COLUMNS = (
    Column("step", 22, False),
    Column("class of run", 43, False),
    Column("computed", 8),
    Column("time", 9),
    Column("arena", 9),
)
BESIDE = (Column("transformers", 12), Column("equal", 9))
FLEXIBLE = "class of run"


class Terminal:
    """Text on a terminal, with one line that is rewritten; plain lines elsewhere."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stdout
        self.live = bool(self.stream.isatty())
        self._pending = 0  # characters of the line that will be rewritten

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where there is none."""
        return get_terminal_size().columns if self.live else None

    def say(self, text: str = "") -> None:
        self._clear()
        print(text, file=self.stream, flush=True)

    def heading(self, text: str) -> None:
        self.say(f"\n{text}\n{'─' * len(text)}")

    def meanwhile(self, text: str) -> None:
        """What is going on, until the next line; shown on terminals only."""
        if self.live:
            self._clear()
            shown = text[: (self.width or 80) - 1]
            self.stream.write(shown)
            self.stream.flush()
            self._pending = len(shown)

    def _clear(self) -> None:
        if self._pending:
            self.stream.write("\r" + " " * self._pending + "\r")
            self._pending = 0

    def table(self, beside: bool) -> tuple[Column, ...]:
        """Begin a table of runs, as wide as the terminal."""
        columns = fitting(COLUMNS + BESIDE if beside else COLUMNS, self.width)
        self.say("  ".join(_cell(c.name, c) for c in columns))
        self.say("  ".join("─" * c.width for c in columns))
        return columns

    def row(self, run: Run, columns: Sequence[Column]) -> None:
        texts = {
            "step": run.step,
            "class of run": run.kind,
            "computed": share(run.recomputed),
            "time": ms(run.time_ns) + ("*" if run.is_first else " "),
            "arena": format_bytes(run.arena_bytes),
            "transformers": ms(run.other_ns),
            "equal": agreement(run),
        }
        self.say("  ".join(_cell(texts[column.name], column) for column in columns).rstrip())


def fitting(columns: Sequence[Column], width: int | None) -> tuple[Column, ...]:
    """The columns within a width: the class is cut first, and left out where that is not enough."""
    over = sum(column.width + 2 for column in columns) - 2 - width if width is not None else 0
    return tuple(
        replace(column, width=column.width - max(over, 0)) if column.name == FLEXIBLE else column
        for column in columns
        if column.name != FLEXIBLE or column.width - over >= len(FLEXIBLE)
    )


def _cell(text: str, column: Column) -> str:
    if len(text) > column.width:
        text = text[: column.width - 1] + "…"
    return text.rjust(column.width) if column.is_number else text.ljust(column.width)


# --- transformers, on the same cores ------------------------------------------------------------


class HfGemma:
    """Gemma 3 in transformers: a growing cache, cut back to the edited token."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self.cache: Any = None

    def logits(self, ids: Sequence[int], kept: int) -> Floats:
        """The last row's logits; the first `kept` ids are those of the last call."""
        from transformers import DynamicCache

        if kept == 0:
            self.cache = DynamicCache()
        elif self.cache.get_seq_length() > kept:
            self.cache.crop(kept - self.cache.get_seq_length())
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([list(ids[kept:])]),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        found: Floats = out.logits[0, -1].float().numpy()
        return found

    @property
    def cache_bytes(self) -> int:
        layers = self.cache.layers
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)


class HfBert:
    """A BERT encoder in transformers, with the mean over open tokens, scaled to length 1."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel

        self.model: Any = AutoModel.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()

    def embed(self, ids: Any, mask: Any) -> Floats:
        with torch.inference_mode():
            opened = torch.from_numpy(mask)
            hidden = self.model(input_ids=torch.from_numpy(ids), attention_mask=opened)[0]
            weights = opened[..., None].float()
            mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            found: Floats = torch.nn.functional.normalize(mean, dim=1).numpy()
            return found


def transformers_version() -> str:
    """The installed version, or "" if there is none; it is kept from the network and quiet."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        return ""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return str(transformers.__version__)


@dataclass
class Turns:
    """The same step here and there, in turns: which goes first alternates."""

    count: int = 0

    def both(
        self, here: Callable[[], Any], there: Callable[[], Any] | None
    ) -> tuple[Any, int, Any, int | None]:
        """(result here, ns, result there, ns)."""
        self.count += 1
        if there is None:
            return *_timed(here), None, None
        if self.count % 2:
            mine, other = _timed(here), _timed(there)
        else:
            other, mine = _timed(there), _timed(here)
        return *mine, *other


def _timed(step: Callable[[], Any]) -> tuple[Any, int]:
    began = time.perf_counter_ns()
    result = step()
    return result, time.perf_counter_ns() - began


def difference(here: Floats, there: Floats | None) -> float | None:
    """The largest difference, over the largest value."""
    if there is None:
        return None
    return float(np.abs(here - there).max() / max(float(np.abs(there).max()), 1e-30))


# --- the tour -----------------------------------------------------------------------------------


@dataclass
class Tour:
    """Everything in order; keeps what the report shows."""

    options: Options
    screen: Terminal = field(default_factory=Terminal)
    studies: list[Study] = field(default_factory=list)
    agreed: bool = True
    version: str = ""  # of transformers, or ""
    facts: dict[str, str] = field(default_factory=dict)

    def go(self) -> None:
        began = time.perf_counter()
        self._welcome()
        try:
            self.options.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--output cannot be made ({error}); name another folder") from error
        self._gemma()
        self._minilm()
        self._finish(time.perf_counter() - began)

    def _welcome(self) -> None:
        say = self.screen.say
        say("tgbench runs a graph again and again; each run computes what changed and is needed.")
        say(", ".join(f"{name} {value}" for name, value in machine().items()))
        self.facts = machine()
        if busy():
            self.facts["load at the start"] = f"{os.getloadavg()[0]:.1f} (times are noisy)"
            say("other programs are using these cores: the times below are noisy")
        if self.options.has_reference:
            self.screen.meanwhile("importing transformers …")
            self.version = transformers_version()
            if not self.version:
                say("transformers is not installed: there is nothing to compare with (pip install "
                    "transformers to see its times and logits beside)")  # fmt: skip

    @property
    def _other(self) -> str:
        return f"transformers {self.version}" if self.version else ""

    def _session(self, graph: Any, folder: Path, memory: str, **more: Any) -> GraphSession:
        began = time.perf_counter()
        session = GraphSession(
            graph,
            weights=folder,
            memory=memory,
            progress=lambda message: self.screen.meanwhile(f"planning: {message}"),
            **more,
        )
        estimate = session.estimate_memory()["cpu"]
        took = time.perf_counter() - began
        self.screen.say(f"graph of {len(graph.nodes)} nodes, session open in {took:.1f} s; memory:")
        for line in str(estimate).splitlines():
            self.screen.say(f"  {line}")
        return session

    # Gemma

    def _gemma(self) -> None:
        size, given = self.options.size, self.options.gemma
        self.screen.heading("Gemma 3: decode, then edit in the middle")
        folder = given if given is not None else self._checkpoint(size.config)
        config = load_config(folder)
        tokenizer = _tokenizer(folder)
        graph = gemma3(config, tokens=size.tokens)
        session = self._session(graph, folder, self.options.memory or size.memory)
        other = self._reference(lambda: HfGemma(folder))
        ids = _prompt(config, tokenizer, size.prompt)
        if other is not None:  # one prefill and one token, so that nothing there is cold
            self.screen.meanwhile("warming transformers up …")
            other.logits(ids, 0)
            other.logits([*ids, ids[0]], len(ids))
        held = MAPPED if is_float32(folder) else "made float32 when they were loaded"
        decoding = Decoding(session, other, self.screen, ids, size.tokens, held)
        decoding.go(size, _replacement(config, tokenizer, ids))
        self.agreed &= decoding.agreed
        self._say_text(tokenizer, decoding)
        self._say_plan(session)
        self._summary(decoding.study(self._other, _what(given, folder), session))
        session.save_plan(self.options.output / "gemma.plan.json")

    def _checkpoint(self, config: Config) -> Path:
        name = "gemma3-270m-random" if config is GEMMA3_270M else "gemma3-tiny-random"
        folder = self.options.cache / name
        if is_checkpoint(folder, config):
            self.screen.say(f"random weights: {folder} (kept from before)")
            return folder
        self.screen.say(f"random weights: writing {folder} (once; about 1 GB for the 270M size)")
        began = time.perf_counter()
        with _watched(folder, self.screen):
            gemma3_checkpoint(folder, config, seed=0)
        written = (folder / "model.safetensors").stat().st_size
        took = time.perf_counter() - began
        self.screen.say(f"  {format_bytes(written)} in {took:.1f} s")
        return folder

    def _reference(self, load: Callable[[], Any]) -> Any:
        if not self.version:
            return None
        self.screen.meanwhile("loading the same file in transformers …")
        return load()

    def _say_text(self, tokenizer: Tokenizer | None, decoding: Decoding) -> None:
        if tokenizer is None:
            return
        for name, ids in decoding.written.items():
            self.screen.say(f"{name}: …{tokenizer.decode(ids)!r}")

    def _say_plan(self, session: GraphSession) -> None:
        self.screen.say("\n* first of its class: planning and making its program are in the time")
        for line in str(session.plan).splitlines():
            self.screen.say(wrapped(line, self.screen.width or WIDE))

    def _summary(self, study: Study) -> None:
        self.studies.append(study)
        self.screen.say()
        for middle in study.medians:
            beside = ""
            if middle.other_ns is not None:
                said = compared(middle.time_ns, middle.other_ns)
                beside = f"   {said} {study.other} ({ms(middle.other_ns)})"
            count = f"median of {middle.runs}" if middle.runs > 1 else "1 run"
            self.screen.say(f"{middle.group:<22}{ms(middle.time_ns):>9} ({count}){beside}")

    # MiniLM

    def _minilm(self) -> None:
        self.screen.heading("MiniLM: embed a batch, edit one text")
        try:
            folder = find_minilm()
        except WeightsError as error:
            self.screen.say(f"left out: {error}")
            return
        size = self.options.size
        tokenizer = Tokenizer.from_directory(folder)
        graph = bert(load_config(folder), tokens=size.text_tokens, batch=size.texts)
        session = self._session(
            graph,
            folder,
            size.text_memory,
            ignore_weights=("pooler.*", "embeddings.position_ids"),
            # A changed word reaches all of its text, so a text is one class whatever changed in it.
            buckets={"ids": ("exact", "full"), "mask": ("exact", "full")},
        )
        other = self._reference(lambda: HfBert(folder))
        texts = TEXTS[: size.texts]
        embedding = Embedding(session, other, self.screen, tokenizer, size)
        before, after = embedding.go(texts)
        self.agreed &= embedding.agreed
        table = similarities(texts, EDITS[0][0], before, after)
        self.screen.say()
        self.screen.say(f"{table.caption:<62}{'before':>8}{'after':>8}")
        for row in table.rows:
            shown = row[0] if len(row[0]) <= 58 else row[0][:57] + "…"
            self.screen.say(f"  {shown:<60}{row[1]:>8}{row[2]:>8}")
        self._say_plan(session)
        self._summary(embedding.study(self._other, session, table))
        session.save_plan(self.options.output / "minilm.plan.json")

    # the end

    def _finish(self, seconds: float) -> None:
        output = self.options.output
        report = output / "report.html"
        text = page("tgbench: the short tour", self.studies, self.facts, next_steps(output))
        for path, content in (
            (report, text),
            (output / "runs.json", runs_json(self.studies)),
            (output / ".gitignore", "*\n"),
        ):
            with atomic_path(path) as temporary:
                temporary.write_text(content, encoding="utf-8")
        self.screen.heading(f"Done in {seconds:.0f} s")
        self.screen.say(f"report  {report.resolve()}  (open it in a browser; no network needed)")
        plans = ", ".join(path.name for path in sorted(output.glob("*.plan.json")))
        self.screen.say(f"plans   {plans}, and every run in runs.json, in the same folder")
        if not self.agreed:
            self.screen.say("NOT EQUAL: a result above differs from transformers; please report it")
        self.screen.say("\nNext:")
        for number, step in enumerate(next_steps(output), 1):
            self.screen.say(f"  {number}. {step}")


def next_steps(output: Path) -> tuple[str, ...]:
    return (
        "real weights, with text: GEMMA=/path/to/gemma-3-270m make demo",
        "less memory, same answers: python -m tgbench demo --memory 22MiB",
        f"a session from the plan: GraphSession(graph, weights, plan='{output}/gemma.plan.json')",
    )


def busy() -> bool:
    """Whether other programs keep more than half of the cores at work."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5 * cores()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, str]:
    """What the times were measured on."""
    here = Machine.here()
    return {**here.facts, "cores": str(cores()), "system": here.system}


def runs_json(studies: Sequence[Study]) -> str:
    """Every measured run, for people who want the numbers."""
    data = {
        study.name: [
            {name: getattr(run, name) for name in Run.__dataclass_fields__} for run in study.runs
        ]
        for study in studies
    }
    return json.dumps({"machine": machine(), "runs": data}, indent=1) + "\n"


# --- Gemma, step by step ------------------------------------------------------------------------


@dataclass
class Decoding:
    """One sequence, one id after another, here and in transformers."""

    session: GraphSession
    other: HfGemma | None
    screen: Terminal
    ids: list[int]
    tokens: int
    weights: str  # how they are held, in words
    runs: list[Run] = field(default_factory=list)
    groups: dict[str, list[Run]] = field(default_factory=dict)
    written: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, list[str]] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    columns: tuple[Column, ...] = ()
    agreed: bool = True

    def go(self, size: Size, replacement: int) -> None:
        """Prefill twice, decode, edit, decode on."""
        self.columns = self.screen.table(self.other is not None)
        prompt = len(self.ids)
        self.step("prefill", f"prefill {prompt}", 0)
        self.session.forget()
        token = self.step("prefill", f"prefill {prompt}, again", 0)
        token = self.decode(size.before, token)
        self.written["before the edit"] = self.ids[prompt:]
        at = prompt // 2
        original = self.ids[at]
        start = len(self.ids)
        for turn in range(EDITED):  # the first is the one that was asked for, the last as well
            self.ids[at] = replacement if turn % 2 == 0 else original
            token = self.step("edit", f"edit token {at} of {start}", at)
        self.decode(size.after, token)
        self.written["after the edit"] = self.ids[start:]

    def decode(self, steps: int, token: int) -> int:
        for _ in range(steps):
            self.ids.append(token)
            token = self.step("decode", f"decode at {len(self.ids) - 1}", len(self.ids) - 1)
        return token

    def step(self, group: str, words: str, kept: int) -> int:
        """Run one step on both sides, show and keep it; returns the next id."""
        self.screen.meanwhile(f"{words} …")
        inputs = np.zeros((1, self.tokens), np.int64)
        inputs[0, : len(self.ids)] = self.ids
        want = {"logits": np.s_[0, len(self.ids) - 1]}
        ids, other = list(self.ids), self.other
        here, took, there, beside = self.turns.both(
            lambda: self.session.run({"ids": inputs}, want=want)["logits"],
            None if other is None else lambda: other.logits(ids, kept),
        )
        best = int(here.argmax())
        agrees = None if there is None else int(there.argmax()) == best
        run = _measured(self.session, words, took, beside, difference(here, there), agrees)
        self.agreed &= run.agrees is not False
        self.runs.append(run)
        self.groups.setdefault(group, []).append(run)
        self.computed[group] = _computed(self.session)
        self.screen.row(run, self.columns)
        return best

    def study(self, other: str, what: str, session: GraphSession) -> Study:
        estimate = session.estimate_memory()["cpu"]
        sizes = [
            ("weights", estimate.parameter_bytes, self.weights),
            ("every value", estimate.keep_all_bytes, "what keeping everything would take"),
            ("arena budget", estimate.budget_bytes or 0, "what was allowed"),
            ("arena", session.placement.size_bytes, "all that runs write to: fixed, never grows"),
            (
                "of it retained",
                session.placement.kept_bytes,
                f"kept between runs, with room for all {self.tokens} positions",
            ),
        ]
        if self.other is not None:
            cached = self.other.cache_bytes
            remark = f"of {len(self.ids)} positions; its temporaries are not counted"
            sizes.append((f"{other}: KV cache", cached, remark))
        return Study(
            "Gemma 3: decode, then edit in the middle",
            f"{what}, float32. A prompt of {len(self.ids) - self._decoded} ids, then one id after "
            "another; then an id in the middle of the prompt changes and decoding goes on.",
            other,
            tuple(self.runs),
            medians(self.groups),
            tuple(sizes),
            str(session.plan),
            timeline(session.scheduled, session.placement, session.budget_bytes, self.computed),
        )

    @property
    def _decoded(self) -> int:
        return sum(len(ids) for ids in self.written.values())


def _what(given: Path | None, folder: Path) -> str:
    return f"Weights from {folder}" if given else "Gemma 3 with random weights"


def _measured(
    session: GraphSession,
    words: str,
    took: int,
    beside: int | None,
    error: float | None,
    agrees: bool | None,
) -> Run:
    report = session.last
    assert report is not None
    return Run(
        words, str(report.kind), report.recomputed, took, session.placement.size_bytes,
        report.specialised, beside, error, agrees,
    )  # fmt: skip


def _computed(session: GraphSession) -> list[str]:
    assert session.last is not None
    return list(session.last.compute)


def _tokenizer(folder: Path) -> Tokenizer | None:
    return Tokenizer.from_directory(folder) if (folder / "tokenizer.json").exists() else None


def _prompt(config: Config, tokenizer: Tokenizer | None, length: int) -> list[int]:
    if tokenizer is None:
        drawn = np.random.default_rng(0).integers(3, int(config["vocab_size"]), length)
        return [int(i) for i in drawn]
    ids = tokenizer.encode(PROMPT)
    if len(ids) < length:
        raise InputError(f"the tokenizer makes {len(ids)} ids of the prompt, fewer than {length}")
    return ids[:length]


def _replacement(config: Config, tokenizer: Tokenizer | None, ids: Sequence[int]) -> int:
    """Another id for the middle of the prompt."""
    if tokenizer is not None:
        return tokenizer.encode(" never", special=False)[0]
    return (ids[len(ids) // 2] + 1) % int(config["vocab_size"])


def is_checkpoint(folder: Path, config: Config) -> bool:
    """Whether a folder holds a whole checkpoint of this configuration; reads headers alone."""
    try:
        found = load_config(folder)
        read_header(folder / "model.safetensors")  # checks the file's size too
    except TgbenchError:
        return False
    return all(found.get(name) == value for name, value in config.items())


def is_float32(folder: Path) -> bool:
    """Whether all weights are stored as they are used, so that the file can be mapped."""
    headers = (read_header(path) for path in folder.glob("*.safetensors"))
    return all(info.dtype == "float32" for head in headers for info in head.tensors.values())


@contextmanager
def _watched(folder: Path, screen: Terminal) -> Iterator[None]:
    """Show how much of a file is written while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            written = sum(path.stat().st_size for path in folder.glob(".tgbench-*.tmp"))
            screen.meanwhile(f"  {format_bytes(written)} written …")

    watcher = threading.Thread(target=watch, daemon=True)
    if screen.live:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if screen.live:
            watcher.join()


# --- MiniLM, step by step -----------------------------------------------------------------------


@dataclass
class Embedding:
    """A batch of texts, one of which changes."""

    session: GraphSession
    other: HfBert | None
    screen: Terminal
    tokenizer: Tokenizer
    size: Size
    runs: list[Run] = field(default_factory=list)
    groups: dict[str, list[Run]] = field(default_factory=dict)
    computed: dict[str, list[str]] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    columns: tuple[Column, ...] = ()
    agreed: bool = True

    def go(self, texts: Sequence[str]) -> tuple[Floats, Floats]:
        """Embed, edit text after text, undo it; returns the embeddings before and after."""
        texts = list(texts)
        every = range(len(texts))
        if self.other is not None:
            for rows in (every, (0,)) * 2:
                self.other.embed(*self._part(self._inputs(texts), rows))
        self.columns = self.screen.table(self.other is not None)
        self.step("embed", f"embed {len(texts)} texts", texts, every)
        self.session.forget()
        before = self.step("embed", f"embed {len(texts)} texts, again", texts, every)
        after = before.copy()
        for row, old, new in EDITS[: len(texts)]:
            texts[row] = texts[row].replace(old, new)
            after[row] = self.step("edit", f"edit text {row}", texts, (row,))[row]
        for row, old, new in EDITS[: len(texts)]:
            texts[row] = texts[row].replace(new, old)
            self.step("edit", f"edit text {row}, undone", texts, (row,))
        return before, after

    def _inputs(self, texts: Sequence[str]) -> dict[str, Any]:
        return dict(self.tokenizer.batch(texts, self.size.text_tokens))

    def _part(self, inputs: dict[str, Any], rows: Sequence[int]) -> tuple[Any, Any]:
        """What transformers gets: these rows alone, cut to the longest of them."""
        ids, mask = (inputs[name][rows[0] : rows[-1] + 1] for name in ("ids", "mask"))
        longest = int(mask.sum(axis=1).max())
        return ids[:, :longest].copy(), mask[:, :longest].copy()

    def step(self, group: str, words: str, texts: Sequence[str], rows: Sequence[int]) -> Floats:
        """Embed all texts here; transformers gets the rows that changed, and no others."""
        self.screen.meanwhile(f"{words} …")
        inputs, other = self._inputs(texts), self.other
        ids, mask = self._part(inputs, rows)
        here, took, there, beside = self.turns.both(
            lambda: self.session.run(inputs, want={"embedding": np.s_[:]})["embedding"],
            None if other is None else lambda: other.embed(ids, mask),
        )
        error = difference(here[rows[0] : rows[-1] + 1], there)
        agrees = None if error is None else error < CLOSE
        run = _measured(self.session, words, took, beside, error, agrees)
        self.agreed &= run.agrees is not False
        self.runs.append(run)
        self.groups.setdefault(group, []).append(run)
        self.computed[group] = _computed(self.session)
        self.screen.row(run, self.columns)
        found: Floats = here
        return found

    def study(self, other: str, session: GraphSession, table: TextTable) -> Study:
        estimate = session.estimate_memory()["cpu"]
        return Study(
            "MiniLM: embed a batch, edit one text",
            f"all-MiniLM-L6-v2 over {self.size.texts} texts of at most {self.size.text_tokens} "
            "tokens, float32. A word of one text changes; transformers gets that text alone, "
            "which its caller would have to keep track of.",
            other,
            tuple(self.runs),
            medians(self.groups),
            (
                ("weights", estimate.parameter_bytes, MAPPED),
                ("every value", estimate.keep_all_bytes, "what keeping everything would take"),
                ("arena budget", estimate.budget_bytes or 0, "what was allowed"),
                ("arena", session.placement.size_bytes, "all that runs write to: fixed"),
                ("of it retained", session.placement.kept_bytes, "kept between runs"),
            ),
            str(session.plan),
            timeline(session.scheduled, session.placement, session.budget_bytes, self.computed),
            (table,),
        )


def similarities(texts: Sequence[str], row: int, before: Floats, after: Floats) -> TextTable:
    """Cosine similarity of one text to the others as they were, before and after its edit."""
    rows = tuple(
        (text, f"{float(before[i] @ before[row]):.3f}", f"{float(before[i] @ after[row]):.3f}")
        for i, text in enumerate(texts)
        if i != row
    )
    return TextTable(f"cosine similarity to text {row} (a river bank, then a bank with money)",
                 ("text", "before the edit", "after"), rows)  # fmt: skip
