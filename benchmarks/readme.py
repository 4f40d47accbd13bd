"""The README's measurements, written from the files under docs/results.

    python -m benchmarks.readme          prints them
    python -m benchmarks.readme --write  puts them between the README's two marks

No number there is typed: each is read from the file that its line links to, and rounded here. After
a bench was run again, `--write` is all there is to do; a test compares the two.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ELSEWHERE, RESULTS, kind_of

README = Path("README.md")
BEGIN, END = "<!-- measured: python -m benchmarks.readme --write -->", "<!-- end -->"
LARGE, SMALL = "gemma3-270m", "gemma3-tiny"
SYSTEMS = {
    "read": "every weight byte once, as fast as it can be read",
    "tgbench": "**tgbench, the whole `run` call**",
    "without-numba": "tgbench where numba is not installed",
    "dynamic": "`transformers`, dynamic cache",
    "static": "`transformers`, static cache",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "jax": "JAX",
    "ctranslate2": "CTranslate2",
    "llama.cpp": "llama.cpp",
}
OURS = ("read", "tgbench", "without-numba")
PRECISIONS = {"fp32": 1.0, "bf16": 0.5, "int8": 0.25}  # share of the bytes in float32
FORWARD = {
    "encoder": "text encoder of MiniLM's sizes, 2 × 64 tokens",
    "resnet50": "ResNet-50, 224²",
    "vgg16": "VGG16, 224²",
}
RUNTIMES = {
    "tgbench": "tgbench",
    "eager": "PyTorch",
    "compiled": "`torch.compile`",
    "onnxruntime-fp32": "ONNX Runtime",
    "openvino-fp32": "OpenVINO",
    "weights-bf16": "tgbench, weights in bf16",
    "bf16": "tgbench, bf16",
    "openvino-bf16": "OpenVINO, bf16",
}
FULL = list(RUNTIMES)[:5]  # those in float32
MIB = 1 << 20
SMALLEST_NS = 5e6  # of a run of PyTorch: models below are told together


def measured(folder: Path = RESULTS) -> str:
    """The whole section, from the results in a folder."""
    parts = (
        _decode, _forward, _zoo, _strangers, _engine, _predicted, _histories, _by_threads,
        _budgets, _modules, _sweep, _timeline, _trust, _stays,
    )  # fmt: skip
    return "\n\n".join(part(Files(folder)) for part in parts)


class Files:
    """Results by name, with links to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    def elsewhere(self, name: str) -> list[Any]:
        """What the same bench wrote on machines of other kinds."""
        paths = sorted((self.folder / ELSEWHERE).glob(f"*/{name}.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    @classmethod
    def link_of(cls, other: Any, name: str) -> str:
        """To a file of `elsewhere`."""
        folder = f"{RESULTS.as_posix()}/{ELSEWHERE}/{kind_of(other['machine'])}"
        return f"[{name}.json]({folder}/{name}.json)"

    @staticmethod
    def link(name: str, with_folder: bool = False) -> str:
        path = f"{RESULTS.as_posix()}/{name}.json"
        return f"[{path if with_folder else f'{name}.json'}]({path})"


def _where(found: Any, with_load: bool = False) -> str:
    """The machine, and how busy it was."""
    machine = found["machine"]
    shown = f"{machine['cores']} cores ({machine['processor']}, {machine['instructions']})"
    if not with_load:
        return shown
    load = found["load_average"]
    return f"{shown}, load {load['before'][0]:.1f} to {load['after'][0]:.1f}"


def _undisturbed(found: Any, cases: Sequence[Any]) -> list[Any]:
    """Those with one thread; with more, those that others left most of the processors to.

    Threads that wait for each other while others have a processor say nothing of either.
    """
    most = found["machine"]["cores"] + 1
    return [case for case in cases if _is_single(case) or _load(case) <= most]


def _is_single(case: Any) -> bool:
    return case["summary"]["clock"] == "cpu"


def _load(case: Any) -> float:
    return statistics.median(case["loads"])


def _clocks(cases: Sequence[Any]) -> str:
    """What times are of."""
    if all(map(_is_single, cases)):
        return (
            "One thread, by the processor's clock; two are shown where other programs leave the "
            "processors alone:"
        )
    return "Two threads by the wall's clock, one by the processor's:"


def _clocked(summary: Any) -> Any:
    """Milliseconds of each system, by the clock that counts."""
    return summary["median_cpu_ms" if summary["clock"] == "cpu" else "median_ms"]


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _decode(files: Files) -> str:
    found = files["decode"]
    cases = {(c["model"]["name"], c["model"]["threads"]): c for c in found["cases"]}
    both, small = _large(found), cases[SMALL, 1]
    model, used, tiny = both[0]["model"], found["versions"], small["summary"]["median_cpu_ms"]
    summaries = [case["summary"] for case in both]
    return "\n\n".join(
        (
            f"Gemma 3 270M, {model['tokens']} positions, one token at a time after a "
            f"{model['prompt']}-token prompt, ms a token at equal precision of the weights; "
            f"{_where(found, True)}, torch {_release(used['torch'])}, `transformers` "
            f"{_release(used['transformers'])}, {_versions(both[0])}, these in processes of "
            f"their own, one interleaved run ({files.link('decode', True)}, `make bench-decode`). "
            f"{_clocks(both)}",
            _tokens(both),
            f"In float32 logits differ from PyTorch's by {_power(_worst(summaries, ['tgbench']))} "
            f"of the largest at most, and {_choices(summaries)}; with weights rounded to bf16 by "
            f"{_power(_worst(summaries, ['bf16']))}, to int8 by "
            f"{_power(_worst(summaries, ['int8']))}. {_slower(both)}. With 2 layers of "
            "width 64, where Python is all there is, a token takes "
            f"{_digits(tiny['tgbench'], 2)} ms against {_digits(tiny['dynamic'], 2)} ms of "
            "`transformers`.",
            _beside_others(files),
            "The same on other machines, with two threads and with one: tgbench, and the quickest "
            "of the others at that precision:",
            _tokens_elsewhere(files),
        )
    )


def _tokens_elsewhere(files: Files) -> str:
    """Milliseconds a token on every other machine."""
    ways = [(kind, threads) for kind in PRECISIONS for threads in (2, 1)]
    rows = []
    for other in files.elsewhere("decode"):
        cases = {case["model"]["threads"]: case for case in _large(other)}
        cells = (
            _beside_best(cases[threads], kind) if threads in cases else "–"
            for kind, threads in ways
        )
        rows.append([f"{_where(other, True)}, {files.link_of(other, 'decode')}", *cells])
    return table(["", *(f"{kind}, {threads}" for kind, threads in ways)], rows)


def _beside_best(case: Any, precision: str) -> str:
    """Milliseconds a token, and those of the quickest of the others."""
    systems = [name for name in SYSTEMS if name not in OURS]
    shown = {name: _token(case, name, precision) for name in systems}
    known = {name: float(text) for name, text in shown.items() if text != "–"}
    best = min(known, key=known.__getitem__)
    return f"{_token(case, 'tgbench', precision)}, {SYSTEMS[best]} {known[best]:.1f}"


def _large(found: Any) -> list[Any]:
    """The cases of the large model that others did not disturb."""
    cases = [case for case in found["cases"] if case["model"]["name"] == LARGE]
    return _undisturbed(found, cases)


def _tokens(cases: Sequence[Any]) -> str:
    """Milliseconds a token of every system, at every precision."""
    rows = [
        [label, *(_token(case, name, kind) for kind in PRECISIONS for case in cases)]
        for name, label in SYSTEMS.items()
    ]
    threads = [_threads(case["model"]["threads"]) for case in cases]
    return table(["", *(f"{kind}, {words}" for kind in PRECISIONS for words in threads)], rows)


def _beside_others(files: Files) -> str:
    """What is left where other programs compute."""
    return " ".join(_beside(files, name) for name in ("decode-busy-one", "decode-busy"))


def _beside(files: Files, name: str) -> str:
    found = files[name]
    (case,) = found["cases"]
    times = case["summary"]["median_ms"]
    mine = ", ".join(
        f"{times[name]:.0f} in {precision}"
        for name, precision in (("tgbench", "fp32"), ("bf16", "bf16"), ("int8", "int8"))
    )
    theirs = {
        f"{SYSTEMS.get(name.rpartition('-')[0] or name, name)}": times[name]
        for name in times
        if name == "dynamic" or (name.endswith("-fp32") and not name.startswith(OURS))
    }
    shown = _and([f"{label} {ms:,.0f}" for label, ms in theirs.items()])
    others = "another process computes" if found["busy"] == 1 else "2 other processes compute"
    return (
        f"While {others}, {_threads(case['model']['threads'])}, by the wall's clock: tgbench "
        f"{mine} ms; in fp32 {shown} ({files.link(name)})."
    )


def _token(case: Any, name: str, precision: str) -> str:
    """Milliseconds a token; a dash for what a system does not have."""
    summary = case["summary"]
    times = _clocked(summary)
    if name == "read":
        return f"{times['read'] * PRECISIONS[precision]:.1f}"
    if precision == "fp32" and name in times:
        return f"**{times[name]:.1f}**" if name == "tgbench" else f"{times[name]:.1f}"
    if name == "tgbench":
        return f"**{times[precision]:.1f}**"
    known = times.get(f"{name}-{precision}")
    return "–" if known is None else f"{known:.1f}"


def _versions(case: Any) -> str:
    """Of the packages of systems in processes of their own; those that are missing are named so."""
    shown = {}
    for name, peer in case["peers"].items():
        if name.startswith(OURS):
            continue
        package, version = next(iter(peer.get("versions", {name: ""}).items()))
        shown[package] = f"`{package}` {_release(version) or 'missing'}"
    return ", ".join(shown.values())


def _slower(cases: Sequence[Any]) -> str:
    """Who was faster at the same precision, in the middle of the repetitions. A machine that is
    quicker for a while may leave somebody else the lower median: that is told.
    """
    shown = []
    for case in cases:
        summary, times = case["summary"], _clocked(case["summary"])
        faster, lower = list[str](), list[str]()
        for name, ratio in summary["times_faster"].items():
            precision = summary["precision"][name]
            words = f"{SYSTEMS[name.rsplit('-', 1)[0]]} in {precision} ({ratio:.2f} ×)"
            if ratio < 1:
                faster.append(words)
            elif times[name] < times["tgbench" if precision == "fp32" else precision]:
                lower.append(words)
        words = f"with {_threads(case['model']['threads'])} {_and(faster) if faster else 'nobody'}"
        shown.append(words + (f", by medians {_and(lower)}" if lower else ""))
    return f"Faster than tgbench at equal precision, turn by turn: {'; '.join(shown)}"


def _forward(files: Files) -> str:
    found = files["forward"]
    cases = _undisturbed(found, found["cases"])
    worst = max(case["summary"]["largest_difference"]["tgbench"] for case in found["cases"])
    return "\n\n".join(
        (
            f"Everything computed, ms; {_where(found, True)}, one interleaved run a model and "
            f"number of threads, `torch.compile` with freezing ({files.link('forward', True)}, "
            f"`make bench-forward`). {_clocks(cases)}",
            _forwards(cases),
            f"Outputs differ from PyTorch's by {_power(worst)} of the largest at most.",
            "The same on other machines, tgbench ÷ the best of the others in float32:",
            _forwards_elsewhere(files),
        )
    )


def _forwards_elsewhere(files: Files) -> str:
    ways = [(model, threads) for model in FORWARD for threads in (2, 1)]
    rows = []
    for other in files.elsewhere("forward"):
        found = {
            (case["model"], case["threads"]): case["summary"]
            for case in _undisturbed(other, other["cases"])
        }
        cells = (f"{_over_best(found[way]):.2f} ×" if way in found else "–" for way in ways)
        rows.append([f"{_where(other, True)}, {files.link_of(other, 'forward')}", *cells])
    shown = (f"{FORWARD[model].split(' of ')[0]}, {_threads(threads)}" for model, threads in ways)
    return table(["", *shown], rows)


def _over_best(summary: Any) -> float:
    """Times what the quickest of the others takes in float32."""
    times = _clocked(summary)
    return float(times["tgbench"] / min(times[name] for name in FULL[1:] if name in times))


def _forwards(cases: Sequence[Any]) -> str:
    clocked = [_clocked(case["summary"]) for case in cases]
    less = list(RUNTIMES)[5:]
    names = FULL + [name for name in less if any(name in times for times in clocked)]
    rows = []
    for case, times in zip(cases, clocked, strict=True):
        cells = [f"{times[name]:.1f}" if name in times else "–" for name in names]
        words = f"{FORWARD[case['model']]}, {_threads(case['threads'])}"
        over = f"{_over_best(case['summary']):.2f} ×"
        rows.append([words, f"**{cells[0]}**", *cells[1:5], over, *cells[5:]])
    labels = [RUNTIMES[name] for name in names]
    return table(["", *labels[:5], "tgbench ÷ best", *labels[5:]], rows)


def _worst(summaries: Iterable[Any], systems: Sequence[str]) -> float:
    found = [one["largest_difference"] for one in summaries]
    return max(float(one[system]) for one in found for system in systems if system in one)


def _choices(summaries: Iterable[Any]) -> str:
    differ = sum(one["choices_that_differ"]["tgbench"] for one in summaries)
    return f"{differ} greedy choices differ" if differ else "every greedy choice is the same"


def _engine(files: Files) -> str:
    found = files["engine"]["models"][LARGE]
    made = [phases["whole"] for phases in found["specialising"]["median_ms"].values()]
    moving, calls = found["moving"], found["counts"]["token"]["instructions"]
    whole = _digits(found["hot_loop"]["over_loop"]["run"], 3)
    rows = [
        [f"whole `run` over a bare loop of the same {calls} calls", f"{whole} ×"],
        ["tensors allocated in a warm run", str(found["allocations"]["run"]["tensors"])],
        ["program for a run never seen before", f"{min(made):.0f}–{max(made):.0f} ms"],
        [
            "program seen at another position",
            f"{_digits(moving['auto']['median_ms'], 2)} ms; "
            f"{_digits(moving['all']['median_ms'], 2)} ms when every value is retained",
        ],
        [
            "smallest arena of those tried that decodes without computing earlier rows again",
            f"{_smallest(found['planning'])}, of {moving['all']['retained_bytes'] / MIB:.0f} MiB "
            "when every value is retained",
        ],
    ]
    header = f"270M graph ({files.link('engine', True)}, `make bench-engine`)"
    return table([header, ""], rows)


def _smallest(planned: dict[str, Any]) -> str:
    """The last of the budgets, in falling order, under which nothing was dropped."""
    fits = [
        (budget, found["outcome"].split(",")[0])
        for budget, found in planned.items()
        if "retained" in found["outcome"] and "dropped" not in found["outcome"]
    ]
    budget, size = fits[-1]
    return f"{size} planned for {budget.replace('MiB', ' MiB')}"


def _zoo(files: Files) -> str:
    found = files["zoo"]
    models = [one for one in found["models"].values() if "error" not in one]
    worst = max(one["worst_error"] for one in models)
    refused = [name for name, one in found["models"].items() if "error" in one]
    besides = (
        f" ({_and(refused)} {'is' if len(refused) == 1 else 'are'} refused)" if refused else ""
    )
    return (
        f"{found['totals']['models']} classes of `transformers` at reduced width, imported, edited "
        f"at random places in ample and in little memory: {found['totals']['equal']} give "
        f"PyTorch's outputs, by {worst:.0e} of the largest at most{besides}; {_where(found)} "
        f"({files.link('zoo')}, `make bench-zoo`)."
    )


def _strangers(files: Files) -> str:
    found = files["strangers"]
    totals = found["totals"]
    done = [one for one in found["models"].values() if "error" not in one]

    def middle(key: str, of: str) -> str:
        values = [one[key] for one in done]
        low, mid, high = min(values), statistics.median(values), max(values)
        return f"{mid:.2f} × {of} in the middle ({low:.2f} to {high:.2f})"

    first, again = ([one[key] for one in done] for key in ("first_s", "again_s"))
    return (
        f"{totals['models']} models of timm, torchvision, segmentation-models-pytorch, diffusers, "
        "x-transformers and PyTorch's own layers, with random weights and on images of 16² to "
        f"224², edited at random places beside PyTorch: {totals['equal']} give its outputs, as "
        "exactly as it gives float64's. Everything computed takes "
        f"{middle('full_over_pytorch', 'its time')}, runs after an edit "
        f"{middle('edited_over_better', 'the better of both')}: a part of an image reaches most of "
        f"what such nets compute. A first answer takes {statistics.median(first):.1f} s in the "
        f"middle, {max(first):.0f} s at most; where the machine was measured before "
        f"{statistics.median(again):.1f} and {max(again):.0f} s; {_where(found)} "
        f"({files.link('strangers')}, `make bench-strangers`)."
    )


def _histories(files: Files) -> str:
    """Large models one by one, those of the zoo together."""
    found = files["histories"]
    rows, small = [], []
    for name, histories in found["models"].items():
        for history, one in histories.items():
            times = one["median_ns"]
            if times["eager"] < SMALLEST_NS:
                small.append(one)
                continue
            cells = (_digits(times[system] / 1e6, 2) for system in ("eager", "full", "ours"))
            made, worst = one["counted"]["specialised"], one["worst_prefix"]
            shares = [f"{one[kind]:.2f}" for kind in ("share", "share_of_time") if kind in one]
            rows.append([
                f"{name}: {history}", *cells, ", ".join(shares), f"{one['total']:.2f} ×",
                f"{worst:.2f} ×", str(made),
            ])  # fmt: skip
    runs = max(one["runs"] for models in found["models"].values() for one in models.values())
    totals = found["totals"]
    slower = sum(one["worst_prefix"] > 1.10 for one in small)
    middle = statistics.median(one["total"] for one in small)
    header = [
        "", "PyTorch, ms", "everything, ms", "a run, ms", "to compute again", "total ÷ better",
        "worst so far", "made",
    ]  # fmt: skip
    return "\n\n".join(
        (
            f"Histories that do not repeat, {runs} runs each from the second on, one thread, each "
            "system in a process of its own, a run of each in turns, so that caches are cold where "
            f"a run begins; {_where(found, True)}: the "
            "total over that of PyTorch or of our own full runs, whichever is less; the worst "
            "that it was after any number of runs from ten on; what share of a full run has to be "
            "computed again, by programs for exactly that (of multiply–adds, and of the time that "
            "kernels are measured to take for them); and how many programs were made "
            f"({files.link('histories', True)}, `make bench-histories`):",
            table(header, rows),
            f"{len(small)} histories of reduced models, of less than "
            f"{SMALLEST_NS / 1e6:.0f} ms each run: median {middle:.2f} ×; {slower} of them "
            f"{'was' if slower == 1 else 'were'} above 1.10 × at some prefix. "
            f"Of all {totals['histories']}, {totals['never_slower']} never were; "
            f"{totals['near_their_share']} of {totals['large']} large ones end within 0.10 of the "
            f"larger of these shares. The first answer of {totals['first_in_time']} is there "
            "within twice the time that importing the model and one forward of PyTorch take.",
        )
    )


def _by_threads(files: Files) -> str:
    """The large ones by two threads."""
    found, rows = files["histories-2-threads"], []
    for name, histories in found["models"].items():
        for history, one in histories.items():
            cells = (_digits(one["median_ns"][of] / 1e6, 2) for of in ("eager", "full", "ours"))
            ratios = (f"{one[of]:.2f} ×" for of in ("total", "worst_prefix"))
            rows.append([f"{name}: {history}", *cells, *ratios])
    head = "", "PyTorch, ms", "everything, ms", "a run, ms"
    runs = max(one["runs"] for models in found["models"].values() for one in models.values())
    totals = found["totals"]
    return "\n\n".join(
        (
            f"The same by two threads of each system, {runs} runs, by the clock on the wall; one "
            "system after the other, with a pause before each run until no thread of another one "
            f"spins; {_where(found, True)}. Of {totals['histories']}, {totals['never_slower']} "
            "were never above 1.10 × after ten runs, "
            f"{totals['not_slower_at_the_end']} not at the end, and {totals['equal']} gave "
            "PyTorch's results "
            f"({files.link('histories-2-threads', True)}, `make bench-histories`):",
            table([*head, "total ÷ better", "worst so far"], rows),
        )
    )


def _budgets(files: Files) -> str:
    """Every case at each of its budgets."""
    found = files["budgets"]
    rows = []
    for name, budgets in found["cases"].items():
        sizes = [f"{one['budget_bytes'] / MIB:.3g}" for one in budgets]
        rows.append(
            [name, f"{sizes[0]} … {sizes[-1]}", *(f"{b['over_free']:.2f}" for b in budgets)]
        )
    count = max(len(budgets) for budgets in found["cases"].values())
    middle = [""] * (count - 2)
    return "\n\n".join(
        (
            "A change in little memory: what runs take over everything computed in ample memory, "
            "at budgets from the least there is, by equal factors; "
            f"{_where(found)} ({files.link('budgets', True)}, `make bench-budgets`). Over "
            "everything at the same budget it is "
            f"{found['totals']['worst_over_full']:.2f} × at most:",
            table(["", "budgets, MiB", "least", *middle, "ample"], rows),
        )
    )


def _predicted(files: Files) -> str:
    """What a session that knows nothing of the machine says its runs take."""
    found = files["predict"]
    close = [model["close"] for model in found["models"].values()]
    ratios = [b["planner"]["ratio"] for m in found["models"].values() for b in m["buckets"]]
    counts = ", ".join(f"{one['buckets']} of {one['of']}" for one in close)
    return (
        "What prompts, tokens and edits take, predicted by a session that knew nothing of the "
        f"machine, over what it was: {min(ratios):.2f} to {max(ratios):.2f}; within "
        f"{close[0]['within']:.0%} for {counts} buckets of Gemma 3 270M by one thread and "
        "by two, and of a toy of width 64 by one; "
        f"{_where(found)} ({files.link('predict')}, `make bench-predict`)."
    )


def _modules(files: Files) -> str:
    imported = files["imported"]["models"][LARGE]
    counts = {system["instructions"] for system in imported["systems"].values()}
    calls = " and ".join(map(str, sorted(counts)))
    stream = files["stream"]
    windows = stream["windows"]
    block = max(one["block_ns"] for one in windows.values())
    full = ", ".join(_digits(one["full_ns"] / 1e6, 2) for one in windows.values())
    bits = files["bitwise"]["models"].values()
    rows = [
        [
            "Gemma 3 270M from `transformers`, imported, beside the graph built by hand",
            f"{imported['ratio']:.2f} × its time a token, {calls} calls",
            files.link("imported"),
        ],
        [
            f"a causal audio net, one sample at a time, window {_listed_counts(windows)}",
            f"{_digits(block / 1e6, 2)} ms; a full forward takes {full} ms",
            files.link("stream"),
        ],
        [
            f'`exact="bitwise"`: runs of {_one({m["edits"] for m in bits})} edits that differ from '
            "a full run in any bit, MiniLM, Gemma 3, ResNet-18",
            f"{', '.join(str(m['differing_runs']['bitwise']) for m in bits)} (normal mode: "
            f"{', '.join(str(m['differing_runs']['normal']) for m in bits)}) at "
            f"{_and([format(m['median_ratio'], '.2f') for m in bits])} × the time",
            files.link("bitwise"),
        ],
    ]
    return table([f"PyTorch modules; {_where(files['imported'])}", "", ""], rows)


def _sweep(files: Files) -> str:
    found = files["occlusion"]
    networks = [found["networks"][name] for name in ("vgg16", "resnet18", "resnet50")]
    made = [(n["first_place_ns"] - n["place_ns"]) / 1e6 for n in networks]
    first = [n["anywhere_place_ns"][0] / n["anywhere_place_ns"][1] for n in networks]
    slower = [n["anywhere_place_ns"][0] / n["place_ns"] for n in networks]
    fewer = _times(one["multiply_add_ratio"] for one in networks)
    return (
        "A covered place of a 224² image beside a full forward, VGG16, ResNet18 and ResNet50: "
        f"{_times(one['time_ratio'] for one in networks)} faster "
        f"({_times(one['batch_time_ratio'] for one in networks)} than one of a batch of "
        f"{found['at_once']}), with {fewer} fewer multiply–adds; {_where(found)} "
        f"({files.link('occlusion')}). Weights are laid out once for the kernels that read them, "
        f"and {found['at_once']} places share a run. That is with a program for each run, which "
        f"the first sweep of many makes ({min(made):.0f} to {max(made):.0f} ms a place). By one "
        f"program for all places, the first sweep takes {_times(slower)} as long as those, and "
        f"{', '.join(f'{one:.2f} ×' for one in first)} as long as a second one like it."
    )


def _timeline(files: Files) -> str:
    found = files["widgets"]
    large, larger = (found["medians_ms"][count] for count in ("20000", "100000"))
    return (
        "The memory timeline in JupyterLab, of 20,000 and 100,000 rectangles, is painted after "
        f"{large['shown'] / 1e3:.1f} s and {larger['shown'] / 1e3:.1f} s, and dragged at "
        f"{1e3 / max(large['frame'], larger['frame']):.0f} frames a second; {_where(found)} "
        f"({files.link('widgets')})."
    )


def _trust(files: Files) -> str:
    """What was looked for, how often, and how often it was found."""
    found = files["trust"]
    counts = {name: found[name]["counts"] for name in PROMISES if name in found}
    rows = [PROMISES[name](one) for name, one in counts.items()]
    of = dict.fromkeys(revision for name in counts for revision in found[name]["revisions"])
    # Counted on machines of several kinds; any will do.
    where = f"{found['machine']['cores']} cores ({found['machine']['processor']})"
    return "\n\n".join(
        (
            f"What was looked for, and how often it was found; {where}, revision "
            f"{_and(list(of))} ({files.link('trust', True)}, `make trust`, which goes on from what "
            "was counted):",
            table(["looked for", "in", "found"], rows),
        )
    )


def _runs_row(one: Any) -> list[str]:
    return [
        "a wrong result, or an error that is none of ours, beside an evaluator that shares no code",
        f"{one['runs']:,} runs of {one['graphs']:,} random graphs, edits and options",
        f"{one['wrong'] + one['raised'] + one['refused']}",
    ]


def _files_row(one: Any) -> list[str]:
    return [
        "neither a typed error nor a right answer, or more than 1 GB or 5 s",
        f"{one['files']:,} damaged files of {sum(key.startswith('of ') for key in one)} kinds; "
        f"{one['most bytes'] / MIB:.0f} MiB and {_digits(one['most ms'] / 1e3, 2)} s at most",
        f"{one['wrong'] + one['untyped'] + one['memory'] + one['time']}",
    ]


def _bits_row(one: Any) -> list[str]:
    return [
        '`exact="bitwise"`: a bit that differs from those of a new session; zeros of both signs, '
        "ties, denormals, all magnitudes, overflow, NaN",
        f"{one['runs']:,} runs, {one['moved']:,} of them by a moved program; "
        f"{one['of the table']} histories of the op table, "
        f"{one['histories'] - one['of the table']} of others",
        f"{one['differing'] + one['raised']}",
    ]


def _interrupts_row(one: Any) -> list[str]:
    bytecodes = _and(
        [f"{one[f'most bytecodes of a {name} run']:,} of a {name}" for name in COURSES]
    )
    return [
        "a state that a run changed which an interrupt or a lack of memory stopped, or a wrong "
        "result after it",
        f"{one['visited']:,} of {one['most to visit']:,}: every bytecode, of the package and of "
        f"what it calls in Python, with an interrupt and with a lack of memory; {bytecodes} run",
        f"{one['harmed']}",
    ]


def _faults_row(one: Any) -> list[str]:
    return [
        "a torn file, a hang or a lost session after a kill, a full disk, a locked database, a "
        "lost worker",
        f"{one['faults']:,} faults",
        f"{one['harmed']}",
    ]


COURSES = ("warm", "first", "planning")
PROMISES: dict[str, Callable[[Any], list[str]]] = {
    "runs": _runs_row, "files": _files_row, "bits": _bits_row, "interrupts": _interrupts_row,
    "faults": _faults_row,
}  # fmt: skip


def _stays(files: Files) -> str:
    """What memory grows by."""
    courses = files["memory"]["courses"]
    words = {
        "edits": "random edits, a program each",
        "runs": "random edits",
        "sessions": "sessions made and dropped",
    }
    shown = [
        f"{courses[name]['times']:,} {told} {courses[name]['grown_bytes'] / MIB:.0f} MiB"
        for name, told in words.items()
    ]
    return (
        f"What resident memory grows by: {_and(shown)} ({files.link('memory')}, "
        "`make bench-memory`)."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[f" {cell} " if cell else " " for cell in line] for line in lines]
    return "\n".join(f"|{'|'.join(line)}|" for line in cells)


# --- numbers as words -----------------------------------------------------------------------------


def _digits(value: float, count: int) -> str:
    """A number with so many digits that count.

    >>> _digits(0.0727, 2), _digits(26.19, 2), _digits(1.0253, 3)
    ('0.073', '26', '1.03')
    """
    places = max(count - 1 - math.floor(math.log10(value)), 0) if value else 0
    return f"{value:.{places}f}"


def _power(value: float) -> str:
    """One digit and a power of ten.

    >>> _power(1.05e-6)
    '1e-6'
    """
    digit, power = f"{value:.0e}".split("e")
    return f"{digit}e{int(power)}"


def _times(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f} ×" for value in values)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _listed_counts(counts: Iterable[str]) -> str:
    *first, last = (f"{int(count):,}" for count in counts)
    return f"{', '.join(first)} or {last}"


def _release(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _one(values: set[Any]) -> Any:
    """The only one."""
    (found,) = values
    return found


def put(text: str, section: str) -> str:
    """A README with this section between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{rest.split(END, 1)[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The README's measurements.")
    parser.add_argument("--write", action="store_true", help="put them into README.md")
    section = measured()
    if not parser.parse_args(argv).write:
        print(section)
        return 0
    README.write_text(put(README.read_text(encoding="utf-8"), section), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
