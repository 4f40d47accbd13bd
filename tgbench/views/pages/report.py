"""The report: measured runs and their memory map as one HTML file that needs no network.

    page(title, studies, …) → text      plain values in; style, script and data are inside

Everything that the script draws is also there as text, so that the page reads without one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import median
from typing import Any

from tgbench.base.words import counted, format_bytes
from tgbench.views.draw.svg import THEME, log_ticks
from tgbench.views.draw.tables import TextTable
from tgbench.views.values.timeline import KINDS, MEANINGS, Timeline, describe, to_svg

MOST_LISTED = 400  # rectangles in the text alternative; the smallest are left out


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run, and the same step elsewhere beside it.

    Fields:
        step: what the run was for, in words.
        kind: its bucket class.
        recomputed: share of what the same demand takes from nothing.
        time_ns: the whole call.
        arena_bytes: the memory it ran in.
        is_first: its program was made in this run; such runs are left out of medians.
        other_ns: the time of the same step elsewhere, or None.
        error: largest difference from the other result, over its largest value; or None.
        agrees: whether both results lead to the same decision; or None.
    """

    step: str
    kind: str
    recomputed: float
    time_ns: int
    arena_bytes: int
    is_first: bool = False
    other_ns: int | None = None
    error: float | None = None
    agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class Median:
    """The middle of the warm runs of one group, in nanoseconds."""

    group: str
    runs: int
    time_ns: float
    other_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """One model's part of the page.

    Fields:
        name: its heading.
        words: a sentence or two on what was done.
        other: what stands beside it, "transformers 5.23"; or "".
        runs: in the order they ran.
        medians: of the warm runs.
        sizes: (what, bytes, remark).
        plan: the plan in words.
        timeline: the memory map, or None.
        tables: more results.
        figures: (heading, SVG).
    """

    name: str
    words: str
    other: str
    runs: tuple[Run, ...]
    medians: tuple[Median, ...]
    sizes: tuple[tuple[str, int, str], ...]
    plan: str
    timeline: Timeline | None = None
    tables: tuple[TextTable, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()


def medians(groups: Mapping[str, Sequence[Run]]) -> tuple[Median, ...]:
    """The median of each group's warm runs, over the same runs for both sides."""
    found = []
    for group, runs in groups.items():
        warm = [run for run in runs if not run.is_first]
        if warm:
            others = [run.other_ns for run in warm if run.other_ns is not None]
            beside = median(others) if len(others) == len(warm) else None
            found.append(Median(group, len(warm), median(r.time_ns for r in warm), beside))
    return tuple(found)


def page(
    title: str,
    studies: Sequence[Study],
    machine: Mapping[str, str],
    next_steps: Sequence[str] = (),
) -> str:
    """The report as one HTML document: no network, no other file, light and dark."""
    data = [study.timeline.payload() if study.timeline else None for study in studies]
    facts = "&nbsp;· ".join(
        f"{escape(name)}&nbsp;{escape(value)}" for name, value in machine.items()
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{THEME}{_file('report.css')}</style></head><body><main>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="facts">{facts}</p>',
            *(_study(study, number) for number, study in enumerate(studies)),
            *_next(next_steps),
            "</main>",
            f'<script type="application/json" id="timelines">{embedded(data)}</script>',
            f"<script>{_file('report.js')}</script></body></html>\n",
        ]
    )


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: no `</script>` or `<!--` can stand in it.

    >>> embedded("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return files("tgbench.views.pages").joinpath(name).read_text(encoding="utf-8")


# --- one study ----------------------------------------------------------------------------------


def _study(study: Study, number: int) -> str:
    parts = [f"<section><h2>{escape(study.name)}</h2><p>{escape(study.words)}</p>", _tiles(study)]
    if study.runs:
        chart = time_chart(study.runs, study.other)
        figure = f'<figure class="scroll">{chart}</figure>'
        parts += ["<h3>Time of each step</h3>", figure, _runs(study)]
    parts += map(_table, study.tables)
    parts += (f"<h3>{escape(name)}</h3><figure>{svg}</figure>" for name, svg in study.figures)
    if study.sizes:
        parts += ["<h3>Bytes</h3>", _sizes(study.sizes)]
    if study.timeline is not None:
        parts += ["<h3>Memory map</h3>", _timeline(study.timeline, number)]
    if study.plan:
        parts.append(f"<h3>Plan</h3><pre>{escape(study.plan)}</pre>")
    return "\n".join([*parts, "</section>"])


def _tiles(study: Study) -> str:
    tiles = []
    for middle in study.medians:
        value = f"<b>{ms(middle.time_ns)}</b>"
        beside = ""
        if middle.other_ns is not None:
            ratio = middle.other_ns / middle.time_ns
            beside = f"{escape(study.other)}: {ms(middle.other_ns)}, {times(ratio)} × as long"
        count = "1 run" if middle.runs == 1 else f"median of {middle.runs} runs"
        tiles.append(
            f'<div class="tile"><span>{escape(middle.group)}</span>{value}'
            f"<small>{count}</small><small>{beside}</small></div>"
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _runs(study: Study) -> str:
    header = ["step", "class of run", "recomputed", "time", "arena"]
    if study.other:
        header += [study.other, "equal"]
    rows = [_run_cells(run, bool(study.other)) for run in study.runs]
    opened = " open" if len(rows) <= 12 else ""
    note = (
        "class: what changed → what was asked for, u0 standing for any place; * first run of its "
        "class: planning or making the program is in its time"
    )
    return (
        f"<details{opened}><summary>{counted(len(rows), 'run')} as a table</summary>"
        '<div class="scroll">'
        f"{_grid(header, rows, numbers=(2, 3, 4, 5))}</div><p class='note'>{note}</p></details>"
    )


def _run_cells(run: Run, beside: bool) -> tuple[str, ...]:
    cells = (
        run.step,
        run.kind,
        share(run.recomputed),
        ms(run.time_ns) + ("*" if run.is_first else ""),
        format_bytes(run.arena_bytes),
    )
    return (*cells, ms(run.other_ns), agreement(run)) if beside else cells


def _table(table: TextTable) -> str:
    return (
        f"<h3>{escape(table.caption)}</h3><div class='scroll'>"
        f"{_grid(table.header, table.rows, numbers=range(1, len(table.header)))}</div>"
    )


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)

    def line(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{' class=n' if i in right else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"


def _sizes(sizes: Sequence[tuple[str, int, str]]) -> str:
    most = max((size for _, size, _ in sizes), default=1) or 1
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{format_bytes(size)}</td>"
        f'<td class="bar"><i style="width:{max(100 * size / most, 0.2):.1f}%"></i></td>'
        f"<td>{escape(remark)}</td></tr>"
        for name, size, remark in sizes
    )
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def _timeline(shown: Timeline, number: int) -> str:
    runs = "".join(f"<option>{escape(run)}</option>" for run in shown.computed)
    legend = "".join(
        f'<li><i class="key {kind}"></i>{escape(MEANINGS[kind])}: '
        f"{format_bytes(shown.bytes_of(kind))}</li>"
        for kind in KINDS
        if shown.bytes_of(kind)
    )
    legend += '<li><i class="key live"></i>line: bytes in use at each step</li>'
    listed = sorted(shown.rectangles, key=lambda r: -r.size_bytes)[:MOST_LISTED]
    left_out = len(shown.rectangles) - len(listed)
    rest = f" (the {left_out} smallest are left out)" if left_out else ""
    rows = [
        (
            r.label, r.kind, r.detail, f"{r.size_bytes:,}", f"{r.offset_bytes:,}",
            r.when.removeprefix("steps ").removeprefix("step "),
        )
        for r in listed
    ]  # fmt: skip
    return f"""<p>{escape(str(shown))}.</p>
<ul class="legend">{legend}</ul>
<div class="controls" hidden>
 <label>computed in
 <select data-run="{number}"><option value="">any run</option>{runs}</select></label>
 <button type="button" data-zoom="slices">slices only</button>
 <button type="button" data-zoom="all">all of it</button>
 <span>ctrl and scroll to zoom, drag to move</span>
</div>
<figure class="timeline" data-timeline="{number}">
<canvas hidden role="img" aria-label="{escape(str(shown))}"></canvas>
<noscript>{to_svg(shown)}</noscript></figure>
<p class="seen" data-seen="{number}" aria-live="polite">{_bounds(shown)}</p>
<details><summary>the memory map as a table{escape(rest)}</summary><div class="scroll">
{_grid(("node", "kind", "op, elements", "bytes", "offset", "steps"), rows, numbers=(3, 4))}
</div></details>"""


def _bounds(shown: Timeline) -> str:
    largest = max(shown.rectangles, key=lambda r: r.size_bytes, default=None)
    return f"largest: {escape(describe(largest))}" if largest else ""


def _next(steps: Sequence[str]) -> list[str]:
    if not steps:
        return []
    return ["<h2>Next</h2><ol>", *(f"<li>{escape(step)}</li>" for step in steps), "</ol>"]


# --- the chart ----------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 280, 74, 12, 30, 24


def time_chart(runs: Sequence[Run], other: str) -> str:
    """Time of each step on a logarithmic axis: circles here, squares for what stands beside it."""
    times = [r.time_ns for r in runs] + [r.other_ns for r in runs if r.other_ns]
    if not times:
        return ""
    low, high = min(times) / 1e6 / 1.3, max(times) / 1e6 * 1.3
    across = (WIDTH - LEFT - RIGHT) / max(len(runs), 1)

    def at(index: int, time_ns: float) -> tuple[float, float]:
        share = math.log(time_ns / 1e6 / low) / math.log(high / low)
        return LEFT + (index + 0.5) * across, HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="11">',
        "<title>time of each step, logarithmic; the table below has the numbers</title>",
        f"<style>{THEME}</style>",
    ]
    for value in log_ticks(low, high):
        y, label = at(0, value * 1e6)[1], f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"
        parts.append(
            f'<line class="tg-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tg-text" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )
    ours = [(i, run, run.time_ns) for i, run in enumerate(runs)]
    theirs = [(i, run, run.other_ns) for i, run in enumerate(runs) if run.other_ns]
    for series, mark, name in ((theirs, "b", other), (ours, "a", "tgbench")):
        points = [at(i, time_ns) for i, _, time_ns in series]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = " tg-dash" if mark == "b" else ""
        parts.append(
            f'<polyline class="tg-{mark} tg-line{dash}" style="fill:none" points="{path}"/>'
        )
        for (x, y), (_, run, time_ns) in zip(points, series, strict=True):
            words = f"{run.step}, {name}: {ms(time_ns)}"
            parts.append(_mark(mark, x, y, words, hollow=run.is_first and mark == "a"))
    parts += _chart_labels(runs, across, other if theirs else "")
    return "".join([*parts, "</svg>"])


def _mark(mark: str, x: float, y: float, words: str, hollow: bool) -> str:
    title = f"<title>{escape(words)}</title>"
    style = ' style="fill:var(--tg-paper,#fff)"' if hollow else ""
    if mark == "a":
        return f'<circle class="tg-a" cx="{x:.1f}" cy="{y:.1f}" r="4"{style}>{title}</circle>'
    return f'<rect class="tg-b" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6">{title}</rect>'


def _chart_labels(runs: Sequence[Run], across: float, other: str) -> list[str]:
    parts = [
        f'<circle class="tg-a" cx="{LEFT + 6}" cy="14" r="4"/>'
        f'<text class="tg-strong" x="{LEFT + 16}" y="18">tgbench (hollow: first of a class)</text>'
    ]
    if other:
        x = LEFT + 240
        parts.append(
            f'<rect class="tg-b" x="{x}" y="11" width="6" height="6"/>'
            f'<text class="tg-strong" x="{x + 12}" y="18">{escape(other)}</text>'
        )
    for first, stop in _stretches(runs):
        left, right = LEFT + first * across, LEFT + stop * across
        name = runs[first].step.split()[0]
        parts.append(
            f'<line class="tg-grid" x1="{right:.1f}" x2="{right:.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM + 20}"/>'
        )
        if right - left > 5.5 * len(name):
            parts.append(
                f'<text class="tg-strong" x="{(left + right) / 2:.1f}" y="{HEIGHT - BOTTOM + 15}" '
                f'text-anchor="middle">{escape(name)}</text>'
            )
    return parts


def _stretches(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Half-open ranges of runs whose steps begin with the same word."""
    words = [run.step.split()[0] for run in runs]
    edges = [i for i in range(len(runs)) if i == 0 or words[i] != words[i - 1]]
    return list(zip(edges, [*edges[1:], len(runs)], strict=True))


# --- numbers for people -------------------------------------------------------------------------


def ms(time_ns: float | None) -> str:
    """Nanoseconds with three digits: 0.412 ms, 57.3 ms, 1.25 s.

    >>> ms(57_312_000), ms(1_250_000_000), ms(None)
    ('57.3 ms', '1.25 s', '-')
    """
    if time_ns is None:
        return "-"
    value, unit = (time_ns / 1e9, "s") if time_ns >= 1e9 else (time_ns / 1e6, "ms")
    digits = max(2 - math.floor(math.log10(value)), 0) if value >= 0.01 else 4
    return f"{value:.{digits}f} {unit}"


def times(ratio: float) -> str:
    """A ratio with three digits, or as many as it has before the point.

    >>> times(0.9), times(1.9), times(77.27), times(1666.49)
    ('0.90', '1.90', '77.3', '1666')
    """
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def share(part: float) -> str:
    """A share in per cent, never rounded to 0 or 100 unless it is.

    >>> share(0.25), share(0.0004), share(0.9999), share(1.0), share(0)
    ('25.0 %', '0.04 %', '>99.9 %', '100 %', '0 %')
    """
    if part in (0, 1):
        return f"{100 * part:.0f} %"
    if 0.9995 <= part < 1:
        return ">99.9 %"
    return f"{100 * part:.1f} %" if part >= 0.001 else f"{100 * part:.1g} %"


def agreement(run: Run) -> str:
    """How near the two results are: `yes 1e-06`."""
    if run.error is None:
        return "-"
    return f"{'yes' if run.agrees else 'NO'} {run.error:.0e}"
