"""OpenVINO: a step whose cache is memory of the caller, as it grows.

Its own default on processors with AMX is to compute in bfloat16: `INFERENCE_PRECISION_HINT` says
what is meant. int8 is weight compression by NNCF, with one scale a row, and the dynamic
quantisation of activations that the plugin applies by itself.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import onnx_files
from benchmarks.peers.child import Array, Job

PACKAGES = ("openvino", "nncf")
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def compiled(path: Path, job: Job) -> Any:
    """A request of the model that ONNX describes."""
    import openvino

    core = openvino.Core()
    options = {
        "INFERENCE_PRECISION_HINT": HINTS[job.precision],
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return core.compile_model(core.read_model(path), "CPU", options).create_infer_request()


class Decode(onnx_files.Caller):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.request = compiled(_weights(job), job)
        self.give("token", self.token)
        self.give("at", self.at)

    def give(self, name: str, array: Array) -> None:
        import openvino

        self.request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def step(self, token: int, at: int) -> Array:
        self.token[0], self.at[0] = token, at
        for name, cache in zip(onnx_files.KEPT, self.cache, strict=True):
            for i, layer in enumerate(cache):
                self.give(f"{name}_{i}", layer[:, :at])
        self.request.infer()
        logits, *rows = (self.request.get_tensor(name).data for name in onnx_files.OUTPUTS)
        self.keep(at, rows)
        return np.asarray(logits[0])


class Forward:
    def __init__(self, job: Job) -> None:
        import openvino

        self.request = compiled(onnx_files.forward(job), job)
        self.given = np.load(job.inputs)
        self.request.set_input_tensor(openvino.Tensor(self.given, shared_memory=True))

    def run(self) -> Array:
        self.request.infer()
        return np.asarray(self.request.get_output_tensor().data)


def _weights(job: Job) -> Path:
    plain = onnx_files.step(Job("fp32", job.threads, job.model, job.work, job.tokens))
    if job.precision != "int8":
        return plain
    folder = job.work / f"{plain.parent.name}-nncf-{metadata.version('nncf')}"
    return onnx_files.made(folder, "model.xml", lambda path: _compress(plain, path))


def _compress(plain: Path, path: Path) -> None:
    import nncf
    import openvino

    model = nncf.compress_weights(
        openvino.Core().read_model(plain), mode=nncf.CompressWeightsMode.INT8_SYM
    )
    openvino.save_model(model, path, compress_to_fp16=False)


decode, forward = Decode, Forward
