"""`tgbench stream`: a causal audio network, block of samples by block.

$ tgbench stream --samples 2000 --window 1024
2000 samples in blocks of 1, window 1024, an output depends on 256
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from tgbench.base.arrays import read_array
from tgbench.base.atomic import atomic_path
from tgbench.base.errors import InputError
from tgbench.commands.apps.streaming import stream
from tgbench.commands.apps.tcn import Wavenet
from tgbench.commands.numbers import MOST_SAMPLES, finite, whole
from tgbench.commands.progress import bar
from tgbench.commands.targets import require_apart, require_writable

CLOSE = 1e-4
MOST_LAYERS, MOST_CHANNELS = 16, 4096


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--layers", type=whole(1, MOST_LAYERS), default=8, help="dilations 1, 2, 4, … (8)")
    add("--channels", type=whole(1, MOST_CHANNELS), default=32, help="of the network (32)")
    add("--samples", type=whole(1, MOST_SAMPLES), default=2000, help="of a random signal (2000)")
    add("--signal", type=Path, help="a .npy file in its place, [time] or [1, time]")
    add("--block", type=whole(1, MOST_SAMPLES), default=1, help="samples at a time (1)")
    add(
        "--window",
        type=whole(1, MOST_SAMPLES),
        help="samples that are held (four times what an output sees)",
    )
    add("--output", type=Path, help="a .npy file for the network's outputs")
    add("--plain", action="store_true", help="compare with one full forward in PyTorch")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    require_writable(arguments.output)
    require_apart(InputError, [arguments.output], arguments.signal)
    module, signal = Wavenet(arguments.channels, arguments.layers), read_signal(arguments)
    with bar() as progress:
        found = stream(
            module, signal, block=arguments.block, window=arguments.window, progress=progress
        )
    if arguments.output is not None:
        with atomic_path(arguments.output) as temporary, temporary.open("wb") as file:
            np.save(file, found.output)
    facts = found.to_dict()
    if arguments.plain:
        with torch.inference_mode():
            plain = module(torch.tensor(signal[None]))[0].numpy()
        facts["largest_difference"] = float(np.abs(plain - found.output).max())
    print(json.dumps(facts) if arguments.json else found)
    if arguments.plain and not arguments.json:
        print(f"largest difference from one full forward: {facts['largest_difference']:.2g}")
    return 0 if facts.get("largest_difference", 0.0) < CLOSE else 1


def read_signal(arguments: argparse.Namespace) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    if arguments.signal is None:
        count = arguments.samples // arguments.block * arguments.block
        if not count:
            raise InputError(
                f"--samples {arguments.samples} are less than a --block of {arguments.block}; "
                "give more, or smaller blocks"
            )
        random = np.random.default_rng(0)
        return random.normal(size=(1, count)).astype(np.float32)
    try:
        array = read_array(arguments.signal)
    except (OSError, ValueError) as error:
        raise InputError(f"--signal {arguments.signal} cannot be read ({error})") from error
    signal = np.atleast_2d(finite(array, "--signal", arguments.signal))
    if signal.ndim != 2 or signal.shape[0] != 1:
        raise InputError(
            f"--signal {arguments.signal} is {list(array.shape)}; give [time] or [1, time]"
        )
    return signal
