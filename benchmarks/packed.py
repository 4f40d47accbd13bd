"""Weights in the layout that kernels want: single calls, and models in full runs and after edits.

    calls     PyTorch's convolution or linear layer of a slice, beside the operator with weights
              that were laid out once
    models    a session with packed weights, one without, and PyTorch, in turns: everything
              computed, and one element changed

Every comparison is of the least time of turns in one process.

    python -m benchmarks.packed
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Command, ms, threads
from tgbench.commands.apps.cnn import NETWORKS, seeded
from tgbench.commands.progress import note, say, table
from tgbench.kernels.torch.packed import laid_out_rows, laid_out_windows
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

Step: TypeAlias = Callable[[], Any]
Sizes: TypeAlias = Sequence[tuple[int, ...]]
Inputs: TypeAlias = dict[str, np.ndarray[Any, Any]]
ROW_MAJOR = torch.contiguous_format
REPETITIONS, THREADS = 15, 2
WINDOWS: Sizes = [
    (64, 64, 3, 15), (128, 128, 3, 15), (256, 256, 3, 14), (512, 512, 3, 7), (3, 64, 7, 27),
]  # fmt: skip
POINTS: Sizes = [(64, 256, 14), (256, 1024, 14), (1024, 256, 14), (2048, 512, 7)]
ROWS: Sizes = [(384, 1536, n) for n in (2, 8, 32, 128)] + [(640, 2048, n) for n in (2, 8, 32, 128)]


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "encoder": lambda: encoder(6, 4096),
    "resnet50": lambda: image("resnet50"),
    "vgg16": lambda: image("vgg16"),
}
QUICK = {"encoder": lambda: encoder(1, 256)}


def main(argv: Sequence[str] | None = None) -> int:
    command = Command("packed", "Weights in the layout that kernels want.")
    command.add_argument("--threads", type=int, default=THREADS, help=f"({THREADS})")
    options, record = command.begin(argv)
    turns = 1 if options.quick else REPETITIONS
    with threads(options.threads), torch.inference_mode():
        sizes = {windows: WINDOWS, points: POINTS, rows: ROWS}
        calls = [
            one
            for kind, every in sizes.items()
            for one in kind(turns, every[:1] if options.quick else every)
        ]
        say(table(["call", "as they lie, µs", "packed, µs", "ratio"], list(map(_call_row, calls))))
        made = QUICK if options.quick else MODELS
        models = {name: model(name, *make(), turns) for name, make in made.items()}
    header = ["model", "run", "PyTorch, ms", "unpacked, ms", "packed, ms", "PyTorch / packed"]
    say("\n" + table(header, [row for name, facts in models.items() for row in _rows(name, facts)]))
    found = {"threads": options.threads, "calls": calls, "models": models}
    record.write(found, options.output)
    return 0


def _call_row(call: dict[str, Any]) -> list[str]:
    plain, packed = call["plain_ns"], call["packed_ns"]
    return [call["call"], f"{plain / 1e3:.0f}", f"{packed / 1e3:.0f}", f"{plain / packed:.2f} ×"]


def _rows(name: str, facts: dict[str, Any]) -> Iterator[list[str]]:
    for run in ("full", "edit"):
        took = [facts["torch_ns"], facts[f"unpacked_{run}_ns"], facts[f"packed_{run}_ns"]]
        yield [name, run, *map(ms, took), f"{took[0] / took[2]:.2f} ×"]


# --- single calls --------------------------------------------------------------------------------


def windows(turns: int, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Convolutions of a window of an image."""
    for inputs, outputs, size, extent in sizes:
        x, out = _window(inputs, extent), _room(outputs, extent - size + 1)
        plain = _window(inputs, extent, ROW_MAJOR), _room(outputs, extent - size + 1, ROW_MAJOR)
        w, b = torch.randn(outputs, inputs, size, size), torch.randn(outputs)
        packed = laid_out_windows(w, (1, 1), (1, 1), 1)
        ways = partial(_conv, *plain, w, b), partial(_conv_packed, x, packed, b, out)
        yield compared(f"conv {size}×{size} {inputs}→{outputs}, {extent}×{extent}", turns, *ways)


def points(turns: int, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Convolutions with windows of one element."""
    for inputs, outputs, extent in sizes:
        x, out = _window(inputs, extent), _room(outputs, extent)
        plain = _window(inputs, extent, ROW_MAJOR), _room(outputs, extent, ROW_MAJOR)
        w, b = torch.randn(outputs, inputs, 1, 1), torch.randn(outputs)
        lines, target = (image.permute(0, 2, 3, 1) for image in (x, out))
        packed = laid_out_rows(w)
        ways = partial(_conv, *plain, w, b), partial(_linear_packed, lines, packed, b, target)
        yield compared(f"conv 1×1 {inputs}→{outputs}, {extent}×{extent}", turns, *ways)


def rows(turns: int, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Linear layers of few rows."""
    for depth, columns, count in sizes:
        x, out = torch.randn(count, depth), torch.empty(count, columns)
        w, b = torch.randn(columns, depth), torch.randn(columns)
        packed = laid_out_rows(w)
        ways = partial(_linear, x, w, b, out), partial(_linear_packed, x, packed, b, out)
        yield compared(f"linear {depth}→{columns}, {count} rows", turns, *ways)


def compared(name: str, turns: int, plain: Step, packed: Step) -> dict[str, Any]:
    plain_ns, packed_ns = least(turns, plain, packed)
    return {"call": name, "plain_ns": plain_ns, "packed_ns": packed_ns}


def _conv(x: Tensor, out: Tensor, weight: Tensor, bias: Tensor) -> None:
    out.copy_(torch.conv2d(x, weight, bias))


def _conv_packed(x: Tensor, packed: Tensor, bias: Tensor, out: Tensor) -> None:
    convolve = torch.ops.mkldnn._convolution_pointwise
    out.copy_(convolve(x, packed, bias, (0, 0), (1, 1), (1, 1), 1, "none", [], ""))


def _linear(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    torch.addmm(bias, x, weight.t(), out=out)


def _linear_packed(x: Tensor, packed: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""))


def _window(channels: int, extent: int, order: Any = torch.channels_last) -> Tensor:
    """Part of a larger image: channels-last, as sessions keep them, or as PyTorch does."""
    whole = torch.randn(1, channels, extent + 8, extent + 8).contiguous(memory_format=order)
    return whole[:, :, 4 : 4 + extent, 4 : 4 + extent]


def _room(channels: int, extent: int, order: Any = torch.channels_last) -> Tensor:
    return torch.zeros_like(_window(channels, extent, order))


def least(turns: int, *calls: Step) -> list[int]:
    """The least nanoseconds of each, in turns, after two calls to get warm."""
    found = [1 << 62] * len(calls)
    for turn in range(turns + 2):
        for i, call in enumerate(calls):
            began = time.perf_counter_ns()
            call()
            took = time.perf_counter_ns() - began
            found[i] = min(found[i], took) if turn >= 2 else found[i]
    return found


# --- models --------------------------------------------------------------------------------------


def model(name: str, module: nn.Module, x: Tensor, turns: int) -> dict[str, Any]:
    """A model of PyTorch, beside sessions of it."""
    imported = from_torch(module, (x,))
    (key,) = imported.graph.inputs
    sessions = {
        kind: GraphSession(imported, packed_bytes=limit)
        for kind, limit in (("packed", None), ("unpacked", 0))
    }
    given = x.numpy().copy()
    changed, middle = given.copy(), tuple(n // 2 for n in given.shape)
    changed[middle] = 1 if given.dtype == np.int64 else -given[middle]
    fulls = [partial(_full, session, {key: given}) for session in sessions.values()]
    names = [*(f"{kind}_full_ns" for kind in sessions), "torch_ns"]
    found = dict(zip(names, least(turns, *fulls, partial(module, x)), strict=True))
    for kind, session in sessions.items():
        edits = [_edit(session, {key: given}, {key: changed}) for _ in range(turns + 2)]
        found[f"{kind}_edit_ns"] = min(edits[2:])
    found["packed_bytes"] = sessions["packed"].pool.packed_bytes
    found["parameter_bytes"] = sessions["packed"].pool.parameter_bytes
    note(f"{name}: measured")
    return found


def _full(session: GraphSession, inputs: Inputs) -> None:
    session.forget()
    session.run(inputs)


def _edit(session: GraphSession, before: Inputs, after: Inputs) -> int:
    """The nanoseconds of the second of two runs."""
    session.run(before)
    began = time.perf_counter_ns()
    session.run(after)
    return time.perf_counter_ns() - began


def image(name: str) -> tuple[nn.Module, Tensor]:
    """A CNN with seeded weights, and an image."""
    pixels = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    return seeded(NETWORKS[name]()), torch.from_numpy(pixels)


class _Encoder(nn.Module):
    """A text encoder of MiniLM's sizes: the last hidden state of a batch of two texts."""

    def __init__(self, layers: int, vocabulary: int) -> None:
        import transformers

        super().__init__()
        config = transformers.BertConfig(
            hidden_size=384, num_hidden_layers=layers, num_attention_heads=12,
            intermediate_size=1536, vocab_size=vocabulary,
        )  # fmt: skip
        torch.manual_seed(0)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.bert(input_ids=ids).last_hidden_state
        return found


def encoder(layers: int, vocabulary: int) -> tuple[nn.Module, Tensor]:
    """The encoder, and two texts of 64 tokens: an edit recomputes one of them."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (2, 64))
    return _Encoder(layers, vocabulary).eval(), torch.from_numpy(ids)


if __name__ == "__main__":
    sys.exit(main())
