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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS

README = Path("README.md")
BEGIN, END = "<!-- measured: python -m benchmarks.readme --write -->", "<!-- end -->"
LARGE, SMALL = "gemma3-270m", "gemma3-tiny"
WHOLE = ("tgbench", "dynamic", "static")  # in float32
MIB = 1 << 20
SMALLEST_NS = 5e6  # of a run of PyTorch: models below are told together


def measured(folder: Path = RESULTS) -> str:
    """The whole section, from the results in a folder."""
    parts = (_decode, _engine, _histories, _modules, _sweep)
    return "\n\n".join(part(Files(folder)) for part in parts)


class Files:
    """Results by name, with links to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    @staticmethod
    def link(name: str, with_folder: bool = False) -> str:
        path = f"{RESULTS.as_posix()}/{name}.json"
        return f"[{path if with_folder else f'{name}.json'}]({path})"


def _decode(files: Files) -> str:
    found = files["decode"]
    cases = {(c["model"]["name"], c["model"]["threads"]): c for c in found["cases"]}
    large, single, small = cases[LARGE, 2], cases[LARGE, 1], cases[SMALL, 2]
    machine, model, used = found["machine"], large["model"], found["versions"]
    transformers = f"Hugging Face `transformers` {_release(used['transformers'])}"
    names = {
        "mv": "every weight matrix once through `torch.mv`",
        "read": "every weight byte once, as fast as it can be read",
        "tgbench": f"**tgbench, the whole `run` call, arena {large['arena_bytes'] / MIB:.0f} MiB**",
        "bf16": 'the same, `weights_dtype="bf16"`',
        "int8": 'the same, `weights_dtype="int8"`',
        "dynamic": f"{transformers}, dynamic cache",
        "static": f"{transformers}, static cache",
    }
    rows = []
    for system, name in names.items():
        times = [f"{c['summary']['median_ms'][system]:.1f} ms" for c in (large, single)]
        rows.append([name, *(f"**{t}**" if system == "tgbench" else t for t in times)])
    agreement = [case["summary"] for case in cases.values()]
    tiny = small["summary"]
    return "\n\n".join(
        (
            f"Gemma 3 270M, fp32, {model['tokens']} positions, one token at a time after a "
            f"{model['prompt']}-token prompt; {machine['cores']} cores ({machine['processor']}), "
            f"torch {_release(used['torch'])}, one interleaved run "
            f"({files.link('decode', True)}, `make bench-decode`):",
            table(["", "2 threads", "1 thread"], rows),
            f"Logits differ from theirs by {_power(_worst(agreement))} of the largest at most, and "
            f"{_choices(agreement)}; with weights rounded to bf16 by "
            f"{_power(_worst(agreement, ['bf16']))}, to int8 by "
            f"{_power(_worst(agreement, ['int8']))}. Products of twenty microseconds and more are "
            "computed by the kernel that was fastest when it was timed on this machine; little "
            "Python is left above it. With 2 layers of width 64, where Python is all there is, a "
            "token takes "
            f"{_digits(tiny['median_ms']['tgbench'], 2)} ms against "
            f"{_digits(tiny['median_ms']['dynamic'], 2)} ms "
            f"({_digits(tiny['times_faster']['dynamic'], 2)} ×).",
        )
    )


def _worst(summaries: Iterable[Any], systems: Sequence[str] = WHOLE) -> float:
    found = [one["largest_difference"] for one in summaries]
    return max(float(one[system]) for one in found for system in systems if system in one)


def _choices(summaries: Iterable[Any]) -> str:
    found = [one["choices_that_differ"] for one in summaries]
    differ = sum(one[system] for one in found for system in WHOLE if system in one)
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
            rows.append([
                f"{name}: {history}", *cells, f"{one['total']:.2f} ×", f"{worst:.2f} ×", str(made)
            ])  # fmt: skip
    runs = max(one["runs"] for models in found["models"].values() for one in models.values())
    totals = found["totals"]
    slower = sum(one["worst_prefix"] > 1.10 for one in small)
    middle = statistics.median(one["total"] for one in small)
    header = [
        "", "PyTorch, ms", "everything, ms", "a run, ms", "total ÷ better", "worst so far", "made"
    ]  # fmt: skip
    return "\n\n".join(
        (
            f"Histories that do not repeat, {runs} runs each from the second on, one thread: the "
            "total over that of PyTorch or of our own full runs, whichever is less; the worst "
            "that it was after any number of runs from ten on; and how many programs were made "
            f"({files.link('histories', True)}, `make bench-histories`):",
            table(header, rows),
            f"{len(small)} histories of reduced models, of less than "
            f"{SMALLEST_NS / 1e6:.0f} ms each run: median {middle:.2f} ×; {slower} of them were "
            f"above 1.10 × at some prefix. Of all {totals['histories']}, "
            f"{totals['never_slower']} never were.",
        )
    )


def _modules(files: Files) -> str:
    imported = files["imported"]["models"][LARGE]
    counts = {system["instructions"] for system in imported["systems"].values()}
    calls = " and ".join(map(str, sorted(counts)))
    stream, widgets = files["stream"], files["widgets"]["medians_ms"]
    windows = stream["windows"]
    block = max(one["block_ns"] for one in windows.values())
    full = ", ".join(_digits(one["full_ns"] / 1e6, 2) for one in windows.values())
    sweep, packed = files["occlusion"], files["packed"]["models"]
    networks = [sweep["networks"][name] for name in ("vgg16", "resnet18", "resnet50")]
    bits = files["bitwise"]["models"].values()
    large, larger = widgets["20000"], widgets["100000"]
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
            "a covered place of a 224² image beside a full forward: VGG16, ResNet18, ResNet50",
            f"{_times(one['time_ratio'] for one in networks)} faster "
            f"({_times(one['batch_time_ratio'] for one in networks)} than one of a batch of "
            f"{sweep['at_once']}); "
            f"{_times(one['multiply_add_ratio'] for one in networks)} fewer multiply–adds",
            files.link("occlusion"),
        ],
        [
            "everything computed, beside PyTorch: a text encoder of MiniLM's sizes, ResNet-50, "
            "VGG16",
            _times(
                packed[name]["torch_ns"] / packed[name]["packed_full_ns"]
                for name in ("encoder", "resnet50", "vgg16")
            )
            + " faster",
            files.link("packed"),
        ],
        [
            f'`exact="bitwise"`: runs of {_one({m["edits"] for m in bits})} edits that differ from '
            "a full run in any bit, MiniLM, Gemma 3, ResNet-18",
            f"{', '.join(str(m['differing_runs']['bitwise']) for m in bits)} (normal mode: "
            f"{', '.join(str(m['differing_runs']['normal']) for m in bits)}) at "
            f"{_and([format(m['median_ratio'], '.2f') for m in bits])} × the time",
            files.link("bitwise"),
        ],
        [
            "the memory timeline in JupyterLab, 20,000 and 100,000 rectangles",
            f"painted after {large['shown'] / 1e3:.1f} s and {larger['shown'] / 1e3:.1f} s, "
            f"dragged at {1e3 / max(large['frame'], larger['frame']):.0f} frames a second",
            files.link("widgets"),
        ],
    ]
    return table(["PyTorch modules", "", ""], rows)


def _sweep(files: Files) -> str:
    found = files["occlusion"]
    made = [(n["first_place_ns"] - n["place_ns"]) / 1e6 for n in found["networks"].values()]
    return (
        "A covered place saves about as much time as arithmetic, because weights are laid out once "
        f"for the kernels that read them, and {found['at_once']} places share a run. The first "
        f"sweep of a model makes its programs, which takes {min(made):.0f} to {max(made):.0f} ms a "
        "place more."
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
    return f"{', '.join(words[:-1])} and {words[-1]}"


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
