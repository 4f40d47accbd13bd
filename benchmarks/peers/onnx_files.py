"""ONNX files, made once and kept: what ONNX Runtime and OpenVINO both read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import gemma
from benchmarks.peers.child import Array, Job

KEPT = ("key", "value")
OUTPUTS = ("logits", "keys", "values")
OPSET = 20


def step(job: Job) -> Path:
    """The one-token step of a checkpoint; for "int8", quantised."""
    plain = made(_name(job, "step"), "model.onnx", lambda path: _export_step(job, path))
    if job.precision != "int8":
        return plain
    return made(_name(job, "step-int8"), "model.onnx", lambda path: _quantise(plain, path))


def forward(job: Job) -> Path:
    """A whole module, from the file of `torch.export`."""
    return made(_name(job, "forward"), "model.onnx", lambda path: _export_forward(job, path))


def made(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A file in a folder of its own, which has another name until it is whole."""
    if not folder.exists():
        making = folder.with_name(f"making-{folder.name}")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        make(making / name)
        making.rename(folder)
    return folder / name


def _name(job: Job, kind: str) -> Path:
    """Named after the versions that make it."""
    made_by = "-".join(metadata.version(name) for name in ("torch", "onnxscript", "onnxruntime"))
    return job.work / f"{job.model.stem}-{kind}-{made_by}"


def _export_step(job: Job, path: Path) -> None:
    """The rows of the cache are as many as there are earlier tokens."""
    import torch

    module, (token, at, *kept) = gemma.step(job.model, job.tokens)
    few = [cache[:, :5] for cache in kept]
    count = torch.export.Dim("earlier", min=1, max=job.tokens - 1)
    names = [f"{name}_{i}" for i in range(len(kept) // 2) for name in KEPT]
    _export(
        module,
        (token, at, *few),
        path,
        input_names=["token", "at", *names],
        output_names=list(OUTPUTS),
        dynamic_shapes=(None, None, tuple({1: count} for _ in few)),
    )


def _export_forward(job: Job, path: Path) -> None:
    import torch

    program = torch.export.load(job.model)
    _export(program, None, path, input_names=["input"], output_names=["output"])


def _export(module: Any, given: Any, path: Path, **named: Any) -> None:
    import torch

    program = torch.onnx.export(module, given, dynamo=True, opset_version=OPSET, **named)
    program.save(path, external_data=True)


def _quantise(plain: Path, path: Path) -> None:
    """Weights of matrix products as int8, a scale a channel; their inputs as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        plain,
        path,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=True,
    )


class Caller:
    """Who calls a step, and has its inputs: the cache of all positions, a token and its place."""

    def __init__(self, job: Job) -> None:
        self.job, self.config = job, gemma.Config(job.model, job.tokens)
        self.cache = [np.zeros(self.config.cache, np.float32) for _ in KEPT]
        self.token, self.at = (np.zeros(1, np.int64) for _ in "ta")

    def prompt(self, ids: Sequence[int]) -> None:
        for cache, kept in zip(self.cache, gemma.prompted(self.job, ids), strict=True):
            cache[:] = kept

    def keep(self, at: int, rows: Iterable[Array]) -> None:
        """What a step computed of its token is there for the ones after it."""
        for cache, new in zip(self.cache, rows, strict=True):
            cache[:, :, at] = new[:, :, 0]
