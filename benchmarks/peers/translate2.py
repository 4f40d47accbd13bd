"""CTranslate2: its own greedy generation, held after every token by its callback.

The library decodes whole texts: there is no call for one token. The callback that it makes for each
token waits until the next one is asked for, so a step is what lies between: one pass of the model
and the choice of the token. It follows its own choices, not the text that it is asked for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.child import Array, Job
from benchmarks.peers.onnx_files import made

PACKAGES = ("ctranslate2",)
TYPES = {"fp32": "float32", "int8": "int8_float32"}


class Decode:
    def __init__(self, job: Job) -> None:
        import ctranslate2

        self.generator = ctranslate2.Generator(
            str(_converted(job).parent),
            compute_type=TYPES[job.precision],
            intra_threads=job.threads,
        )
        self.tokens = job.tokens
        self.found: queue.Queue[Any] = queue.Queue()
        self.next = threading.Semaphore(0)

    def prompt(self, ids: Sequence[int]) -> None:
        threading.Thread(target=self.generate, args=(list(ids),), daemon=True).start()
        self.found.get()

    def generate(self, ids: Sequence[int]) -> None:
        self.generator.generate_batch(
            [list(map(_word, ids))],
            include_prompt_in_result=False,
            max_length=self.tokens - len(ids),
            end_token=[],
            return_logits_vocab=True,
            callback=self.told,
        )

    def told(self, result: Any) -> bool:
        self.found.put(result.logits)
        self.next.acquire()
        return False

    def step(self, token: int, at: int) -> Array:
        self.next.release()
        return np.asarray(self.found.get()).reshape(-1)


def _word(token: int) -> str:
    return f"<{token}>"


def _converted(job: Job) -> Path:
    kind = f"{job.model.stem}-ctranslate2-{metadata.version('ctranslate2')}-{job.precision}"
    return made(job.work / kind, "model.bin", lambda path: _convert(job, path.parent))


def _convert(job: Job, folder: Path) -> None:
    """The checkpoint has no tokenizer: a word stands for each id."""
    from ctranslate2.converters import transformers as converters

    class Tokenizer:
        bos_token, eos_token, unk_token, chat_template = _word(2), _word(1), _word(0), None

    class Converter(converters.TransformersConverter):
        def load_tokenizer(self, *_: Any, **__: Any) -> Any:
            return Tokenizer()

    def words(self: Any, model: Any, tokenizer: Any) -> list[str]:
        return [_word(i) for i in range(model.config.vocab_size)]

    converters.Gemma3Loader.get_vocabulary = words
    Converter(str(job.model)).convert(str(folder), quantization=TYPES[job.precision], force=True)


decode = Decode
