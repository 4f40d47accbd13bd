"""Make the example files of this folder: python data/make_examples.py

A reduced Gemma 3 with seeded random weights reads a prompt, appends tokens, has one edited, asks
again, and goes on: `decode.trace.jsonl` is the trace of those runs, `decode.plan.json` the plan
that a search found for them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tgbench as tg
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

HERE = Path(__file__).parent
TOKENS, PROMPT = 64, 16


def main() -> None:
    config = gemma3_reduced()
    trace = HERE / "decode.trace.jsonl"
    trace.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        weights = gemma3_checkpoint(folder, config)
        graph = tg.models.gemma3(config, tokens=TOKENS)
        session = tg.GraphSession(graph, weights=weights, memory="128KiB", trace=trace)
        ids = np.zeros((1, TOKENS), np.int64)
        ids[0, :PROMPT] = np.random.default_rng(0).integers(0, config["vocab_size"], PROMPT)
        for end in (PROMPT + 12, PROMPT + 20):
            for t in range(int(np.count_nonzero(ids)), end):
                logits = session.run({"ids": ids}, want={"logits": np.s_[0, t - 1]})["logits"]
                ids[0, t] = max(int(logits.argmax()), 1)
            ids[0, PROMPT // 2] = 7  # an edit in the middle, then the same question twice
            for _ in range(2):
                session.run({"ids": ids}, want={"logits": np.s_[0, end - 1]})
        session.optimize("search", steps=64)
        session.save_plan(HERE / "decode.plan.json")
        session.trace.close()


if __name__ == "__main__":
    main()
