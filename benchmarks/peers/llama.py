"""llama.cpp, through the Python package that builds it for the machine at hand.

The file of weights is written from the checkpoint. It has no tokenizer, as ids go in and logits
come out. int8 is Q8_0: 32 weights share a scale, and activations are rounded alike. The cache is
float32 where the weights are, and float16, the library's own default, elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import gemma
from benchmarks.peers.child import Array, Job
from benchmarks.peers.onnx_files import made

PACKAGES = ("llama-cpp-python", "gguf")
KINDS = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}


class Decode:
    def __init__(self, job: Job) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        path = _written(job)
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        self.context = llama_cpp.llama_init_from_model(model, self.options(job))
        if not self.context:
            raise RuntimeError("llama.cpp made no context of the model")
        self.vocabulary = gemma.Config(job.model, job.tokens).raw["vocab_size"]

    def options(self, job: Job) -> Any:
        options = self.api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = job.tokens, 1, 1
        options.n_threads = options.n_threads_batch = job.threads
        if job.precision == "fp32":
            options.type_k = options.type_v = self.api.GGML_TYPE_F32
        return options

    def prompt(self, ids: Sequence[int]) -> None:
        """One by one: Q8_0 on AMX ends the process where several rows come at once."""
        for at, token in enumerate(ids):
            self.step(token, at)

    def step(self, token: int, at: int) -> Array:
        given = (self.api.llama_token * 1)(token)
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(given, 1))
        if status:
            raise RuntimeError(f"llama_decode answered {status}")
        logits = self.api.llama_get_logits(self.context)
        return np.ctypeslib.as_array(logits, shape=(self.vocabulary,))


def _written(job: Job) -> Path:
    kind = f"{job.model.stem}-gguf-{metadata.version('gguf')}-{job.precision}"
    return made(job.work / kind, "model.gguf", lambda path: _write(job, path))


def _write(job: Job, path: Path) -> None:
    import gguf

    config = gemma.Config(job.model, job.tokens)
    writer = gguf.GGUFWriter(path, "gemma3")
    _describe(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, len(config.kinds))
    kind = gguf.GGMLQuantizationType[KINDS[job.precision]]
    for name, tensor in gemma.weights(job.model).items():
        own = kind if tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(tensor.numpy(), own)
        writer.add_tensor(names.get_name(name, (".weight",)), data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: gemma.Config) -> None:
    raw = config.raw
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(len(config.kinds))
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.shared)
    writer.add_key_length(config.depth)
    writer.add_value_length(config.depth)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_freq_base(config.ropes["full_attention"])
    writer.add_sliding_window(config.window)
    writer.add_vocab_size(raw["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


decode = Decode
