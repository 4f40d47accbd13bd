"""Histories that do not repeat: each run beside PyTorch and beside our own full run, in turns.

    model × history ─→ 500 runs of   eager     the PyTorch module, all of it
                                     full      a session that forgets everything before each run
                                     ours      a session

Each is in a process of its own, which nothing ran in before, and follows one history. What counts
is the processor's time; by several threads the wall's, where nobody's threads spin any more. The
first answer of each is told apart; from then on the total of ours is compared with that of the
better of the two others *at every prefix* of more than ten runs, so that nothing is paid now for
what may come back later. Now and then all three results are compared. Of models that take a while
it is said what share of a full run has to be computed again: of the first half of the runs, each by
a program of its own; by multiply–adds, and by the time that its calls take, as few rows read all
weights that many do.

    python -m benchmarks.histories [--only NAME …] [--runs N] [--threads N] [--again]
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from benchmarks.measure import Command, measured_here, ms
from benchmarks.zoo_models import MODELS as ZOO
from tgbench.commands.progress import note, say, table
from tgbench.session.report import flops
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

Array: TypeAlias = np.ndarray[Any, Any]
Clock: TypeAlias = Callable[[], int]  # nanoseconds
Step: TypeAlias = "tuple[Array, Any]"  # the input, and which part of the output is wanted
RUNS, COMPARED, FIRST, LATE = 500, 25, 10, 50
FEWER = 120  # runs by several threads, which wait for each other
SHARED, LARGE_NS = 250, 5e6  # runs whose share is worked out, of models that take so long
LIMIT_S, TOLERANCE = 1200.0, 1e-4
QUIET_S = 0.012  # after which threads of a library sleep
WORDS = 3  # ids from here on are words


@dataclass(frozen=True)
class Subject:
    """A module of one input and one output.

    Fields:
        make: the module, and its first input.
        histories: names of `HISTORIES` to follow.
    """

    make: Callable[[], tuple[nn.Module, Array]]
    histories: tuple[str, ...]


# --- histories ------------------------------------------------------------------------------------


def _edits(count: int, x: Array, random: np.random.Generator) -> Iterator[Step]:
    """Words, or rows, at random places become others."""
    while True:
        x = x.copy()
        axis = 1 if x.dtype == np.int64 else 0
        at = random.integers(x.shape[axis], size=count)
        index = (slice(None), at) if axis else at
        x[index] = _fresh(x[index], random)
        yield x, None


def _single_last(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """One word anywhere; the last row is looked at."""
    return ((x, np.s_[:, -1]) for x, _ in _edits(1, x, random))


def _look(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """One word anywhere, one row anywhere."""
    for edited, _ in _edits(1, x, random):
        yield edited, np.s_[:, int(random.integers(x.shape[1]))]


def _typing(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A cursor that types, takes back one word of six, and sometimes goes elsewhere."""
    at = x.shape[1] // 4
    while True:
        x = x.copy()
        if random.random() < 1 / 6:
            x[0, at], at = 0, max(at - 1, 0)
        else:
            at = at + 1 if at + 1 < x.shape[1] and random.random() > 0.05 else x.shape[1] // 4
            x[0, at] = _fresh(x[0, at], random)
        yield x, np.s_[:, at]


def _read_first(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """The same, where all rows were looked at to begin with."""
    yield x, None
    yield from _typing(x, random)


def _decoding(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A word behind the other, each looked at; at the end of the text it begins anew."""
    at = x.shape[1] // 4
    while True:
        x, at = x.copy(), at + 1 if at + 1 < x.shape[1] else x.shape[1] // 4
        x[0, at] = _fresh(x[0, at], random)
        yield x, np.s_[:, at]


def _blocks(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A stream: blocks of one to eight words, one behind the other; each block is looked at."""
    at = x.shape[1] // 4
    while True:
        x, count = x.copy(), int(random.integers(1, 9))
        at = at if at + count <= x.shape[1] else x.shape[1] // 4
        x[0, at : at + count] = _fresh(x[0, at : at + count], random)
        yield x, np.s_[:, at : at + count]
        at += count


def _insertion(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A word is put in between others: all that follow move by one."""
    while True:
        x, at = x.copy(), int(random.integers(x.shape[1]))
        x[0, at + 1 :] = x[0, at:-1].copy()
        x[0, at] = _fresh(x[0, at], random)
        yield x, np.s_[:, -1]


def _chat(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A text that goes on word by word; now and then one before is changed, one is put in, or the
    last eight rows are looked at.
    """
    at = x.shape[1] // 4
    while True:
        for _ in range(int(random.integers(5, 20))):
            x, at = x.copy(), at + 1 if at + 1 < x.shape[1] else x.shape[1] // 4
            x[0, at] = _fresh(x[0, at], random)
            yield x, np.s_[:, at]
        x, what, edited = x.copy(), int(random.integers(3)), int(random.integers(1, at))
        if what == 0:
            yield x, np.s_[:, max(at - 8, 0) : at]
            continue
        if what == 1:
            x[0, edited + 1 : at + 1] = x[0, edited:at].copy()
        x[0, edited] = _fresh(x[0, edited], random)
        yield x, np.s_[:, at]


def _patches(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A patch of a fourteenth of the width and height becomes another one."""
    size = max(x.shape[2] // 14, 1)
    while True:
        x = x.copy()
        i, j = random.integers(x.shape[2] - size + 1, size=2)
        part = x[..., i : i + size, j : j + size]
        part[...] = _fresh(part, random)
        yield x, None


def _readings(x: Array, random: np.random.Generator) -> Iterator[Step]:
    """A row behind the last one, as a sensor gives them; its own result is looked at."""
    at = x.shape[0] // 4
    while True:
        x, at = x.copy(), at + 1 if at + 1 < x.shape[0] else x.shape[0] // 4
        x[at] = _fresh(x[at], random)
        yield x, np.s_[at]


def _fresh(old: Any, random: np.random.Generator) -> Any:
    shape = np.shape(old)
    if np.asarray(old).dtype == np.int64:
        return random.integers(WORDS, 60, shape)
    return random.standard_normal(shape).astype(np.float32)


READ_FIRST = "typing, all read first"
HISTORIES: Mapping[str, Callable[[Array, np.random.Generator], Iterator[Step]]] = {
    "one edit": partial(_edits, 1),
    "two edits": partial(_edits, 2),
    "20 edits": partial(_edits, 20),
    "one edit, last row": _single_last,
    "one edit, one row": _look,
    "typing": _typing,
    READ_FIRST: _read_first,
    "decoding": _decoding,
    "blocks": _blocks,
    "insertion": _insertion,
    "chat": _chat,
    "patch": _patches,
    "readings": _readings,
}
TEXT = ("one edit", "two edits", "20 edits", "insertion", "one edit, one row", "typing")


# --- models ---------------------------------------------------------------------------------------


class Module(nn.Module):
    """A model of `transformers` as a function of one tensor, giving its first output."""

    def __init__(self, model: nn.Module, name: str, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.name, self.given = model, name, dict(given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(**{self.name: x}, **self.given)[0]
        return found


def _of_zoo(name: str) -> tuple[nn.Module, Array]:
    model = ZOO[name]
    ((argument, example),) = model.example().items()
    return Module(model.module(), argument, model.given or {}).eval(), example.numpy()


def _of_words(
    kind: Callable[[Any], nn.Module], config: Any, tokens: int
) -> tuple[nn.Module, Array]:
    """A model with random weights, always the same ones, and a text."""
    torch.manual_seed(0)
    model = kind(config).eval()
    return Module(model, "input_ids", {"use_cache": False}).eval(), _ids(tokens)


def _gpt2(layers: int = 6, width: int = 256, tokens: int = 128) -> tuple[nn.Module, Array]:
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 32, vocab_size=1000, n_positions=tokens,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _of_words(transformers.GPT2LMHeadModel, config, tokens)


def _gemma() -> tuple[nn.Module, Array]:
    """With windows that a text of its length is several times as long as."""
    import transformers

    config = transformers.Gemma3TextConfig(
        num_hidden_layers=6, hidden_size=256, intermediate_size=1024, num_attention_heads=4,
        num_key_value_heads=1, head_dim=64, vocab_size=1000, sliding_window=32,
        max_position_embeddings=256,
    )  # fmt: skip
    return _of_words(transformers.Gemma3TextModel, config, 256)


def _mamba() -> tuple[nn.Module, Array]:
    """A state-space model, whose export writes out the loop over words."""
    import transformers

    config = transformers.MambaConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4)
    return _of_words(transformers.MambaModel, config, 128)


def _mixture() -> tuple[nn.Module, Array]:
    """A mixture of experts, two of which each word goes to."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=256,
    )  # fmt: skip
    return _of_words(transformers.Qwen3MoeModel, config, 128)


def _bert(width: int, layers: int, tokens: int) -> tuple[nn.Module, Array]:
    import transformers

    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=12,
        intermediate_size=4 * width, max_position_embeddings=tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    return Module(transformers.BertModel(config).eval(), "input_ids", {}).eval(), _ids(tokens)


def _resnet(layers: Sequence[int], kind: str) -> tuple[nn.Module, Array]:
    import transformers

    basic = kind == "basic"
    config = transformers.ResNetConfig(
        depths=list(layers), layer_type=kind,
        hidden_sizes=[64, 128, 256, 512] if basic else [256, 512, 1024, 2048],
    )  # fmt: skip
    return _of_images(transformers.ResNetModel, config)


def _mobilenet() -> tuple[nn.Module, Array]:
    import transformers

    return _of_images(transformers.MobileNetV2Model, transformers.MobileNetV2Config())


def _of_images(kind: Callable[[Any], nn.Module], config: Any) -> tuple[nn.Module, Array]:
    torch.manual_seed(0)
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    return Module(kind(config).eval(), "pixel_values", {}).eval(), image


def _rows() -> tuple[nn.Module, Array]:
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)]
    x = np.random.default_rng(1).standard_normal((512, 256)).astype(np.float32)
    return nn.Sequential(*layers).eval(), x


class Recurrent(nn.Module):
    """Two layers over rows, one step each, and a line of numbers for every row."""

    def __init__(self, kind: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.layers, self.head = kind(width, width, 2), nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(x)[0])
        return found


def _recurrent(kind: Callable[..., nn.Module], width: int, steps: int) -> tuple[nn.Module, Array]:
    torch.manual_seed(0)
    x = np.random.default_rng(1).standard_normal((steps, width)).astype(np.float32)
    return Recurrent(kind, width).eval(), x


def _ids(tokens: int) -> Array:
    return np.random.default_rng(1).integers(WORDS, 60, (1, tokens))


CAUSAL = ("GPT2Model", "GPTNeoModel", "LlamaModel", "MistralModel", "Qwen3Model", "Gemma3TextModel",
          "MambaModel", "OPTModel", "BloomModel", "Qwen2Model")  # fmt: skip
BOTH_WAYS = ("BertModel", "DebertaV2Model", "ModernBertModel", "FNetModel")
IMAGES = ("ViTModel", "SwinModel", "ConvNextModel", "ResNetModel", "MobileNetV2Model",
          "SegformerModel")  # fmt: skip
SUBJECTS: Mapping[str, Subject] = {
    "GPT-2, 6 × 256, 128 tokens": Subject(_gpt2, (*TEXT, READ_FIRST, "one edit, last row", "blocks",
                                                  "chat")),
    "GPT-2, 2 × 64, 384 tokens": Subject(partial(_gpt2, 2, 64, 384),
                                         ("decoding", "typing", "one edit")),
    "GPT-2, 4 × 128, 128 tokens": Subject(partial(_gpt2, 4, 128, 128), ("decoding", "typing")),
    "Gemma 3, 6 × 256, windows of 32, 256 tokens": Subject(_gemma, ("typing", READ_FIRST, "blocks",
                                                                   "chat")),
    "Mamba, 4 × 256, 128 tokens": Subject(_mamba, ("one edit", "one edit, one row", "typing",
                                                       READ_FIRST)),
    "Qwen3-MoE, 4 × 256, 8 experts, 128 tokens": Subject(_mixture, ("one edit", "typing",
                                                                    READ_FIRST)),
    "MiniLM's size, 6 × 384, 128 tokens": Subject(partial(_bert, 384, 6, 128), TEXT[:4]),
    "ResNet-18, 224²": Subject(partial(_resnet, (2, 2, 2, 2), "basic"), ("patch",)),
    "ResNet-50, 224²": Subject(partial(_resnet, (3, 4, 6, 3), "bottleneck"), ("patch",)),
    "MobileNetV2, 224²": Subject(_mobilenet, ("patch",)),
    "three layers, 512 rows": Subject(_rows, TEXT[:3]),
    "LSTM, 2 × 256, 256 steps": Subject(partial(_recurrent, nn.LSTM, 256, 256),
                                        ("one edit", "readings")),
    "GRU, 2 × 128, 256 steps": Subject(partial(_recurrent, nn.GRU, 128, 256),
                                       ("one edit", "readings")),
    **{name: Subject(partial(_of_zoo, name), ("one edit", "one edit, one row", "typing", "blocks"))
       for name in CAUSAL},
    **{name: Subject(partial(_of_zoo, name), ("one edit", "insertion")) for name in BOTH_WAYS},
    **{name: Subject(partial(_of_zoo, name), ("patch",)) for name in IMAGES},
}  # fmt: skip
QUICK = "GPT2Model"
LARGE = [name for name in SUBJECTS if name.startswith(
    ("GPT-2, 6", "Gemma 3,", "Mamba,", "Qwen3-MoE,", "MiniLM", "ResNet-", "MobileNetV2,")
)]  # fmt: skip


# --- one of the three -----------------------------------------------------------------------------

SYSTEMS = "eager", "full", "ours"


class Following:
    """One system that follows a history by itself.

    Fields:
        first_ns: what its first answer took, and what comes before that.
    """

    def __init__(
        self, system: str, subject: Subject, history: str, clock: Clock = time.process_time_ns
    ) -> None:
        module, start = subject.make()
        self._clock = clock
        self._start, self._history = start, history
        self._steps, self.first_ns = self._anew(), dict[str, int]()
        self._session: GraphSession | None = None
        if system != "eager":
            self._imported, self.first_ns["import"] = self._timed(
                lambda: from_torch(module, (torch.from_numpy(start),))
            )
            making = "always" if system == "full" else None
            opened = partial(GraphSession, self._imported, making=making)
            self._session, self.first_ns["load"] = self._timed(opened)
        self._run = partial(_eager, module) if self._session is None else self._session.run
        self._forgets = system == "full"
        _, self.first_ns["answer"] = self.next()
        self._before = self._counted()

    def _anew(self) -> Iterator[Step]:
        return HISTORIES[self._history](self._start, np.random.default_rng(7))

    def next(self, is_compared: bool = True) -> tuple[Array | None, int]:
        """The next run: what it found, if that is to be compared, and what it took."""
        x, want = next(self._steps)
        found, took_ns = self._timed(partial(self._answer, x, want))
        return found if is_compared else None, took_ns

    def _answer(self, x: Array, want: Any) -> Array:
        if self._forgets and self._session is not None:
            self._session.forget()
        return _only(self._run(x, want=want))

    def counted(self) -> dict[str, int]:
        """What the session counted since the first answer."""
        return {name: value - self._before[name] for name, value in self._counted().items()}

    def _counted(self) -> dict[str, int]:
        return {} if self._session is None else vars(self._session.counters).copy()

    def share(self, runs: int) -> dict[str, float]:
        """What has to be computed again: of multiply–adds, or of what is to be done of other ops;
        and of the time that its calls take, which are called once more for that.
        """
        session, steps = GraphSession(self._imported, making="always"), self._anew()
        x, want = next(steps)
        session.run(x, want=want)
        again, whole = np.zeros(2), np.zeros(2)
        for _ in range(runs):
            x, want = next(steps)
            session.run(x, want=want)
            again += self._work(session)
            session.forget()
            session.run(x, want=want)
            whole += self._work(session)
        work, time_ns = again / whole
        return {"share": float(work), "share_of_time": float(time_ns)}

    def _work(self, session: GraphSession) -> tuple[float, float]:
        """Of the last run: operations, and nanoseconds, the less of twice."""
        assert session.last is not None
        program = session.last.program
        took = (self._timed(partial(_call, program.calls))[1] for _ in range(2))
        return flops(program.steps, program.origin or ()), min(took)

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        return _timed(call, self._clock)


def _only(results: Mapping[str, Array]) -> Array:
    (found,) = results.values()
    return found


def _eager(module: nn.Module, x: Array, want: Any) -> dict[str, Array]:
    with torch.inference_mode():
        found: Array = module(torch.from_numpy(x)).numpy()
    return {"output": found if want is None else found[want]}


def _timed(call: Callable[[], Any], clock: Clock = time.process_time_ns) -> tuple[Any, int]:
    began = clock()
    return call(), clock() - began


def _call(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
    for function, arguments in calls:
        function(*arguments)


class Apart:
    """The same in a process of its own, which nothing ran in before."""

    def __init__(self, system: str, subject: str, history: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        given = theirs, system, subject, history, threads
        self._process = context.Process(target=_serve, args=given)
        self._process.start()
        theirs.close()

    @cached_property
    def first_ns(self) -> dict[str, int]:
        return self._received()  # type: ignore[no-any-return]

    def next(self, is_compared: bool = True) -> tuple[Array | None, int]:
        return self._asked("next", is_compared)  # type: ignore[no-any-return]

    def counted(self) -> dict[str, int]:
        return self._asked("counted")  # type: ignore[no-any-return]

    def share(self, runs: int) -> dict[str, float]:
        return self._asked("share", runs)  # type: ignore[no-any-return]

    def _asked(self, *request: Any) -> Any:
        self._ours.send(request)
        return self._received()

    def _received(self) -> Any:
        if not self._ours.poll(LIMIT_S):
            raise TimeoutError(f"no answer in {LIMIT_S:.0f} s")
        return self._ours.recv()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Any, system: str, subject: str, history: str, threads: int) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    following = Following(system, SUBJECTS[subject], history, clock)
    pipe.send(following.first_ns)
    while True:
        method, *arguments = pipe.recv()
        pipe.send(getattr(following, method)(*arguments))


# --- measuring ------------------------------------------------------------------------------------


def outcome(subject: str, history: str, runs: int, threads: int) -> dict[str, Any]:
    """The numbers of a history; each system has a process of its own."""
    apart = dict[str, Apart]()
    try:
        for system in SYSTEMS:
            apart[system] = Apart(system, subject, history, threads)
            if threads > 1:
                _ = apart[system].first_ns  # while nobody else computes
        return followed(apart, runs, QUIET_S if threads > 1 else 0.0)
    finally:
        for one in apart.values():
            one.end()


def followed(
    systems: Mapping[str, Following | Apart], runs: int, quiet_s: float = 0.0
) -> dict[str, Any]:
    """The numbers of one history: a run of each, in turns, `quiet_s` after the one before."""
    first = {name: one.first_ns["answer"] for name, one in systems.items()}
    opened = systems["ours"].first_ns
    first["load"] = opened["import"] + opened["load"]
    took: dict[str, list[int]] = {name: [] for name in SYSTEMS}
    worst = 0.0
    for i in range(runs):
        found = {}
        for j in range(len(SYSTEMS)):
            name = SYSTEMS[(i + j) % len(SYSTEMS)]
            time.sleep(quiet_s)
            found[name], took_ns = systems[name].next(i % COMPARED == 0)
            took[name].append(took_ns)
        eager, others = found["eager"], (found["full"], found["ours"])
        if eager is not None:
            scale = float(np.abs(eager).max()) or 1.0
            worst = max(worst, *(float(np.abs(one - eager).max()) / scale for one in others))
    numbers = summary(took, first, systems["ours"].counted()) | {"worst_error": worst}
    if numbers["median_ns"]["eager"] >= LARGE_NS:
        numbers |= systems["full"].share(min(runs, SHARED))
    return numbers


def summary(
    took: Mapping[str, Sequence[int]], first: Mapping[str, int], counted: Mapping[str, int]
) -> dict[str, Any]:
    """Medians; tails beside the median of full runs, ours and full ones, as what is asked for may
    differ from run to run; the total at every prefix over the better of the two others.
    """
    totals = {name: np.cumsum(values) for name, values in took.items()}
    better = np.minimum(totals["eager"], totals["full"])
    ratios = (totals["ours"] / better)[min(FIRST, len(better) - 1) :]
    p99 = {name: float(np.quantile(values[LATE:] or values, 0.99)) for name, values in took.items()}
    median = {name: statistics.median(values) for name, values in took.items()}
    return {
        "runs": len(took["ours"]),
        "first_ns": dict(first),
        "median_ns": median, "p99_ns": p99,
        "tail": p99["ours"] / median["full"], "tail_of_full": p99["full"] / median["full"],
        "worst_prefix": float(ratios.max()), "worst_prefix_runs": int(ratios.argmax()) + FIRST + 1,
        "total": float(ratios[-1]),
        "counted": dict(counted),
    }  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------

HEADER = ["model", "history", "eager", "full", "ours, ms", "p99 ÷ full", "total ÷ better",
          "worst prefix", "made", "larger", "first, ms"]  # fmt: skip


def row(name: str, history: str, found: Mapping[str, Any]) -> list[str]:
    median, counted = found["median_ns"], found["counted"]
    return [
        name, history, ms(median["eager"]), ms(median["full"]), ms(median["ours"]),
        f"{found['tail']:.2f} ({found['tail_of_full']:.2f})", f"{found['total']:.2f}",
        f"{found['worst_prefix']:.2f} at {found['worst_prefix_runs']}",
        str(counted["specialised"]), f"{counted['larger'] / found['runs']:.0%}",
        ms(found["first_ns"]["ours"]),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all subjects; what is there already is not measured again."""
    command = Command("histories", __doc__)
    command.add_argument(
        "--only", nargs="+", choices=SUBJECTS, metavar="NAME",
        help="models, as the table names them; large ones by several threads, else all",
    )  # fmt: skip
    command.add_argument("--runs", type=int, help=f"of each history ({RUNS}; {FEWER})")
    command.add_argument("--threads", type=int, default=1, help="of each system")
    command.add_argument("--again", action="store_true", help="measure what is there already too")
    options, record = command.begin(argv)
    threads, runs = options.threads, options.runs or (RUNS if options.threads == 1 else FEWER)
    if threads > 1 and options.output == command.results:
        options.output = command.results.with_stem(f"histories-{threads}-threads")
    results = _known(options.output)
    names = options.only or ([QUICK] if options.quick else LARGE if threads > 1 else SUBJECTS)
    for name in names:
        if name in results and not options.again:
            continue
        note(name)
        subject, found = SUBJECTS[name], dict[str, Any]()
        if options.quick:  # in this process, which need not be cold
            history = subject.histories[0]
            found[history] = followed({one: Following(one, subject, history) for one in SYSTEMS}, 4)
        else:
            for history in subject.histories:
                found[history] = outcome(name, history, runs, threads)
        results[name] = found
        record.write({"totals": totals(results), "models": results}, options.output)
    rows = [row(name, h, f) for name, found in results.items() for h, f in found.items()]
    say(table(HEADER, rows))
    say(str(totals(results)))
    return 0


def totals(results: Mapping[str, Any]) -> dict[str, Any]:
    """How many histories there are, and how many stay below the bounds."""
    found = [one for histories in results.values() for one in histories.values()]
    return {
        "histories": len(found),
        "equal": sum(one["worst_error"] <= TOLERANCE for one in found),
        "never_slower": sum(one["worst_prefix"] <= 1.10 for one in found),
        "short_tails": sum(one["tail"] <= 1.5 * max(one["tail_of_full"], 1.0) for one in found),
        "not_slower_at_the_end": sum(one["total"] <= 1.10 for one in found),
        "median_total": statistics.median([one["total"] for one in found] or [0.0]),
        "large": sum("share" in one for one in found),
        "near_their_share": sum(one["total"] <= _share(one) + 0.10 for one in found),
        "first_in_time": sum(_first(one["first_ns"]) <= 2.0 for one in found),
    }


def _share(found: Mapping[str, Any]) -> float:
    """What no program could do without, by operations or by time, whichever is more."""
    return float(max(found.get("share", 0.0), found.get("share_of_time", 0.0)))


def _first(first_ns: Mapping[str, int]) -> float:
    """Until the first answer is there, over loading the model and computing it with PyTorch."""
    load_ns = first_ns["load"]
    return (load_ns + first_ns["ours"]) / (load_ns + first_ns["eager"])


@cache
def _known(path: Path | None) -> dict[str, Any]:
    """What is there already, less what was written before loading was timed."""
    models = measured_here(path).get("models", {})
    return {name: found for name, found in models.items()
            if all("load" in one["first_ns"] for one in found.values())}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
