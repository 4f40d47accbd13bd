"""`tgbench occlusion`: which parts of an image a classifier looks at.

$ tgbench occlusion --model resnet18 --image photo.npy --output map.html
class 285, logit 8.12; 14 × 14 places of 16 × 16 pixels, 4 a run
largest drop 3.1 at row 6, column 7
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tgbench.base.arrays import read_array
from tgbench.base.atomic import atomic_path
from tgbench.base.errors import InputError
from tgbench.commands.apps.cnn import NETWORKS, network
from tgbench.commands.apps.occlusion import AT_ONCE, Floats, OcclusionMap, occlusion, session_of
from tgbench.commands.numbers import finite, whole
from tgbench.commands.progress import bar
from tgbench.commands.targets import require_apart, require_writable
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_pt2

MEANS = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet, as torchvision scales images
DEVIATIONS = np.array([0.229, 0.224, 0.225], np.float32)
SIZE = 224  # of images for the networks by name


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="resnet18", help=f"{', '.join(NETWORKS)}, or a .pt2 file (resnet18)")
    add("--weights", type=Path, help="safetensors in torchvision's names (seeded random ones)")
    add("--image", default="random", help="a .npy file, float32 [3, height, width] scaled as the "
        "model takes it or uint8 [height, width, 3]; or random (random)")  # fmt: skip
    add("--patch", type=whole(1), default=16, help="pixels (16)")
    add("--stride", type=whole(1), default=16, help="pixels from place to place (16)")
    add("--class", dest="target", type=int, help="whose logit (the largest one's)")
    add("--fill", type=float, default=0.0, help="what covers, as the model takes it (0)")
    add(
        "--at-once",
        type=whole(1),
        help=f"places per run ({AT_ONCE}; of a .pt2 file, its input's batch)",
    )
    add("--plain", action="store_true", help="full forwards in PyTorch beside it, for comparison")
    add("--output", type=Path, help="a .npz or .html file to write")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None and arguments.output.suffix not in WRITERS:
        raise InputError(f"--output {arguments.output}: give a .npz or .html file")
    require_writable(arguments.output)
    read = arguments.weights, Path(arguments.model), Path(arguments.image)
    require_apart(InputError, [arguments.output], *read)
    session, module, size = opened(arguments)
    image = read_image(arguments.image, size)
    with bar() as progress:
        found = occlusion(
            session, image, patch=arguments.patch, stride=arguments.stride,
            target=arguments.target, fill=arguments.fill, at_once=arguments.at_once,
            progress=progress,
        )  # fmt: skip
    beside = _beside(module, found, arguments.fill) if arguments.plain else {}
    if arguments.output is not None:
        with atomic_path(arguments.output) as temporary:
            WRITERS[arguments.output.suffix](found, temporary)
    if arguments.json:
        print(json.dumps(found.to_dict() | beside))
        return 0
    print(found)
    if beside:
        plain_ns, both_ns = beside["plain_time_ns"], found.time_ns + found.ahead_ns
        print(
            f"full forwards one by one: {plain_ns / 1e9:.2f} s, {plain_ns / found.time_ns:.2f} × "
            f"as long ({plain_ns / both_ns:.2f} × with what went before); "
            f"largest difference of a drop {beside['largest_difference']:.2g}"
        )
    return 0


def opened(arguments: argparse.Namespace) -> tuple[GraphSession, nn.Module | None, int]:
    """A session, the module where there is one, and the images' size."""
    if arguments.model.endswith(".pt2"):
        if arguments.plain:
            raise InputError("--plain runs PyTorch modules; give a model by name")
        if arguments.weights is not None:
            raise InputError(f"{arguments.model} has its own weights; leave --weights out")
        imported = from_pt2(arguments.model)
        shapes = [node.shape for node in imported.graph.inputs.values()]
        return GraphSession(imported), None, int(shapes[0][-1])
    if arguments.model not in NETWORKS:
        raise InputError(
            f"--model {arguments.model}: give {', '.join(NETWORKS)}, or a .pt2 file "
            "(`torch.export.save`)"
        )
    module = network(arguments.model, arguments.weights)
    at_once = AT_ONCE if arguments.at_once is None else arguments.at_once
    image = np.zeros((1, 3, SIZE, SIZE), np.float32)
    return session_of(module, image, at_once), module, SIZE


def read_image(name: str, size: int) -> Floats:
    """An image as models take it; uint8 pixels are scaled as torchvision does.

    Raises InputError for a file that is none.
    """
    if name == "random":
        return np.random.default_rng(0).normal(size=(3, size, size)).astype(np.float32)
    try:
        array = read_array(name)
    except (OSError, ValueError) as error:
        raise InputError(f"--image {name} cannot be read ({error}); give a .npy file") from error
    if array.dtype == np.uint8 and array.ndim == 3:
        array = ((array / np.float32(255) - MEANS) / DEVIATIONS).transpose(2, 0, 1)
    return finite(array, "--image", name)


def _beside(module: nn.Module | None, found: OcclusionMap, fill: float) -> dict[str, Any]:
    assert module is not None
    drops, took = np.empty_like(found.drops), 0
    with torch.inference_mode():
        for row, column in np.ndindex(*drops.shape):
            image = torch.from_numpy(found.image[None]).clone()
            top, left = row * found.stride, column * found.stride
            image[:, :, top : top + found.patch, left : left + found.patch] = fill
            began = time.perf_counter_ns()
            logits = module(image)
            took += time.perf_counter_ns() - began
            drops[row, column] = found.logit - float(logits[0, found.target])
    difference = float(np.abs(drops - found.drops).max())
    return {"plain_time_ns": took, "largest_difference": difference}


def _npz(found: OcclusionMap, path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(
            file, drops=found.drops, image=found.image, target=found.target, logit=found.logit,
            patch=found.patch, stride=found.stride, multiply_adds=found.shares("multiply_adds"),
        )  # fmt: skip


PAGE = (  # light or dark as the picture in it
    ":root{color-scheme:light dark}body{font:16px sans-serif;background:#fff;color:var(--tg-ink)}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117}}"
)


def _html(found: OcclusionMap, path: Path) -> None:
    lines = "<br>".join(str(found).splitlines())
    path.write_text(
        '<!doctype html><meta charset="utf-8"><title>Occlusion map</title>'
        f"<style>{PAGE}</style><body>{found.heatmap.to_svg()}<p>{lines}</p>\n",
        encoding="utf-8",
    )


WRITERS = {".npz": _npz, ".html": _html}
