"""ONNX Runtime: a step whose inputs and outputs are bound to arrays once.

The shapes of the cache grow with the text, over one array of all positions: attention reads no row
that is not there. int8 is the runtime's own dynamic quantisation, a scale for each output channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import onnx_files
from benchmarks.peers.child import Array, Job

PACKAGES = ("onnxruntime",)


def session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin after a run would take the processor of whoever has the next turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Decode(onnx_files.Caller):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        path = onnx_files.step(job)
        self.session = session(path, job.threads)
        self.bound = self.session.io_binding()
        layers, shared, _, depth = self.config.cache
        self.rows = [np.zeros((layers, shared, 1, depth), np.float32) for _ in self.cache]
        self.logits = np.zeros((1, self.config.raw["vocab_size"]), np.float32)
        for name, array in (("token", self.token), ("at", self.at)):
            _bind(self.bound.bind_input, name, array, array.shape)
        for name, array in zip(onnx_files.OUTPUTS, [self.logits, *self.rows], strict=True):
            _bind(self.bound.bind_output, name, array, array.shape)

    def step(self, token: int, at: int) -> Array:
        self.token[0], self.at[0] = token, at
        _, shared, _, depth = self.config.cache
        for name, cache in zip(onnx_files.KEPT, self.cache, strict=True):
            for i, layer in enumerate(cache):
                _bind(self.bound.bind_input, f"{name}_{i}", layer, (shared, at, depth))
        self.session.run_with_iobinding(self.bound)
        self.keep(at, self.rows)
        return self.logits[0]


def _bind(bind: Any, name: str, array: Array, shape: Sequence[int]) -> None:
    bind(name, "cpu", 0, array.dtype.type, tuple(shape), array.ctypes.data)


class Forward:
    def __init__(self, job: Job) -> None:
        self.session = session(onnx_files.forward(job), job.threads)
        self.bound = self.session.io_binding()
        (given,), (output,) = self.session.get_inputs(), self.session.get_outputs()
        self.given = np.load(job.inputs)
        self.output = np.zeros(output.shape, np.float32)
        _bind(self.bound.bind_input, given.name, self.given, self.given.shape)
        _bind(self.bound.bind_output, output.name, self.output, self.output.shape)

    def run(self) -> Array:
        self.session.run_with_iobinding(self.bound)
        return self.output


decode, forward = Decode, Forward
