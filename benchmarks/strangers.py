"""Models of libraries that tgbench was not built with: imported, edited, beside PyTorch.

    timm · torchvision · segmentation-models-pytorch · diffusers · x-transformers · torch.nn

    model ─→ random weights from a seed ─→ tg.from_torch ─→ first answer ─→ edits, in turns:
                                                             PyTorch │ full │ edited

An edit changes one token, one element of a sequence, or a sixteenth of an image's height and width
somewhere. Every output of every run is compared with PyTorch's, and has to move. Each model has a
process of its own with an empty cache folder, so a first answer is one of a machine where nothing
was measured, and a time limit; the file is written after each. What counts is the processor's time
of one thread, all runs from the first edit on together.

    make strangers                                      installs the libraries into .venv-strangers
    python -m benchmarks.strangers [--only NAME …]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from benchmarks.measure import (
    Clocked,
    Command,
    largest_error,
    measured_apart,
    measured_here,
    ms,
    rotated,
)
from tgbench.commands.progress import note, say, table
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch
from tgbench.sources.torch.program import paths

Array: TypeAlias = np.ndarray[Any, Any]
Made: TypeAlias = tuple[nn.Module, tuple[Array, ...]]
LIBRARIES = Path(".venv-strangers")
EDITS, LIMIT_S, BOUND = 30, 400.0, 1.10
TOLERANCE, ROUNDINGS = 1e-5, 4  # besides, as many times as PyTorch is off float64
CLASSES, WORDS = 10, 20
SEEN = 8  # images, of which norms have their statistics


@dataclass(frozen=True)
class Stranger:
    """A model of a library, with random weights, and what it is given.

    Fields:
        make: the module, and its inputs; the first one is edited.
    """

    library: str
    make: Callable[[], Made]


class Called(nn.Module):
    """A module by one of its methods, and with options that are no tensors."""

    def __init__(self, module: nn.Module, method: str = "forward", **options: Any) -> None:
        super().__init__()
        self.module, self.method, self.options = module, method, options

    def forward(self, *inputs: torch.Tensor) -> Any:
        return getattr(self.module, self.method)(*inputs, **self.options)


# --- what they are given --------------------------------------------------------------------------


def normal(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def image(side: int, channels: int = 3) -> Array:
    return normal(1, channels, side, side)


def words(count: int) -> Array:
    return np.random.default_rng(1).integers(0, WORDS, (1, count))


# --- the models -----------------------------------------------------------------------------------


def of_timm(name: str, side: int) -> Stranger:
    def make() -> Made:
        _without_operators()
        import timm

        return timm.create_model(name, pretrained=False, num_classes=CLASSES), (image(side),)

    return Stranger("timm", make)


def of_torchvision(name: str, side: int = 96, **options: Any) -> Stranger:
    def make() -> Made:
        _without_operators()
        from torchvision.models import get_model

        return get_model(name, weights=None, **options), (image(side),)

    return Stranger("torchvision", make)


def of_segmentation(name: str, encoder: str = "resnet18", side: int = 128) -> Stranger:
    def make() -> Made:
        _without_operators()
        import segmentation_models_pytorch as segmentation

        options = {"encoder_name": encoder, "encoder_weights": None, "classes": 3}
        return getattr(segmentation, name)(**options), (image(side),)

    return Stranger("segmentation-models-pytorch", make)


def of_diffusers(name: str, *inputs: Array, method: str = "forward", **options: Any) -> Stranger:
    def make() -> Made:
        _without_operators()
        import diffusers

        module = getattr(diffusers, name)(**options)
        return Called(module, method, return_dict=False), inputs

    return Stranger("diffusers", make)


def of_x_transformers(layers: str = "Decoder", **options: Any) -> Stranger:
    def make() -> Made:
        import x_transformers

        stack = getattr(x_transformers, layers)(dim=128, depth=4, heads=4, **options)
        wrapped = x_transformers.TransformerWrapper(
            num_tokens=WORDS, max_seq_len=128, attn_layers=stack
        )
        return wrapped, (words(128),)

    return Stranger("x-transformers", make)


def of_torch(module: Callable[[], nn.Module], *inputs: Array) -> Stranger:
    return Stranger("torch.nn", lambda: (module(), inputs))


def _without_operators() -> None:
    """Have torchvision load where its compiled operators do not, as of a build for another torch:
    no model here uses any.
    """
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, ModuleType(name))


TIME = np.array([7])
TWO_LEVELS: Mapping[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1}
MODELS: Mapping[str, Stranger] = {
    "ConvNeXt atto": of_timm("convnext_atto", 96),
    "EfficientNet-B0": of_timm("efficientnet_b0", 96),
    "MobileNetV3 small": of_timm("mobilenetv3_small_100", 96),
    "GhostNet": of_timm("ghostnet_100", 96),
    "RegNetY-200MF": of_timm("regnety_002", 96),
    "ResNeSt-14": of_timm("resnest14d", 96),
    "DenseNet-121": of_timm("densenet121", 96),
    "Inception-v3": of_timm("inception_v3", 128),
    "NFNet-L0": of_timm("nfnet_l0", 96),
    "HRNet-W18 small": of_timm("hrnet_w18_small", 128),
    "DLA-34": of_timm("dla34", 96),
    "RepViT M0.9": of_timm("repvit_m0_9", 128),
    "FastViT T8": of_timm("fastvit_t8", 128),
    "ViT tiny": of_timm("vit_tiny_patch16_224", 224),
    "EVA-02 tiny": of_timm("eva02_tiny_patch14_224", 224),
    "Swin tiny": of_timm("swin_tiny_patch4_window7_224", 224),
    "Hiera tiny": of_timm("hiera_tiny_224", 224),
    "MLP-Mixer S/32": of_timm("mixer_s32_224", 224),
    "PoolFormer S12": of_timm("poolformer_s12", 128),
    "LeViT-128S": of_timm("levit_128s", 224),
    "XCiT nano": of_timm("xcit_nano_12_p16_224", 224),
    "MobileViT XXS": of_timm("mobilevit_xxs", 128),
    "PVTv2-B0": of_timm("pvt_v2_b0", 128),
    "MaxViT tiny": of_timm("maxvit_tiny_rw_224", 224),
    "CrossViT tiny": of_timm("crossvit_tiny_240", 240),
    "CoaT tiny": of_timm("coat_tiny", 224),
    "FocalNet tiny": of_timm("focalnet_tiny_srf", 224),
    "GCViT XXT": of_timm("gcvit_xxtiny", 224),
    "VOLO-D1": of_timm("volo_d1_224", 224),
    "MambaOut femto": of_timm("mambaout_femto", 224),
    "EfficientViT M0": of_timm("efficientvit_m0", 224),
    "MobileOne S0": of_timm("mobileone_s0", 224),
    "Sequencer2D S": of_timm("sequencer2d_s", 224),
    "StarNet S1": of_timm("starnet_s1", 224),
    "FasterNet T0": of_timm("fasternet_t0", 224),
    "SwiftFormer XS": of_timm("swiftformer_xs", 224),
    "Inception-NeXt atto": of_timm("inception_next_atto", 224),
    "DPN-48b": of_timm("dpn48b", 224),
    "SqueezeNet 1.1": of_torchvision("squeezenet1_1"),
    "ShuffleNetV2": of_torchvision("shufflenet_v2_x0_5"),
    "GoogLeNet": of_torchvision("googlenet", init_weights=False),
    "ResNeXt-50": of_torchvision("resnext50_32x4d"),
    "FCN, ResNet-50": of_torchvision("fcn_resnet50", weights_backbone=None, num_classes=3),
    "LR-ASPP, MobileNetV3": of_torchvision(
        "lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=3
    ),
    "U-Net, ResNet-18": of_segmentation("Unet"),
    "FPN, ResNet-18": of_segmentation("FPN"),
    "DeepLabV3+, ResNet-18": of_segmentation("DeepLabV3Plus"),
    "PSPNet, ResNet-18": of_segmentation("PSPNet"),
    "SegFormer, ResNet-18": of_segmentation("Segformer"),
    "U-Net of a diffusion": of_diffusers(
        "UNet2DModel", image(32), TIME, sample_size=32, in_channels=3, out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), **TWO_LEVELS,
    ),
    "U-Net under a text": of_diffusers(
        "UNet2DConditionModel", image(32, 4), TIME, normal(1, 16, 32), sample_size=32,
        cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **TWO_LEVELS,
    ),
    "decoder of a VAE": of_diffusers(
        "AutoencoderKL", image(32, 4), method="decode",
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        **TWO_LEVELS,
    ),
    "DiT": of_diffusers(
        "DiTTransformer2DModel", image(16, 4), TIME, np.array([3]), num_attention_heads=4,
        attention_head_dim=16, in_channels=4, num_layers=3, sample_size=16, num_embeds_ada_norm=10,
    ),
    "MM-DiT of SD3": of_diffusers(
        "SD3Transformer2DModel", image(16, 4), normal(1, 16, 32), normal(1, 64), TIME,
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=64,
        pooled_projection_dim=64, out_channels=4,
    ),
    "decoder": of_x_transformers(),
    "decoder, rotary, GLU": of_x_transformers(
        rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True
    ),
    "decoder, ALiBi": of_x_transformers(alibi_pos_bias=True),
    "decoder, grouped heads": of_x_transformers(attn_kv_heads=2, attn_qk_norm=True),
    "decoder, shifted tokens": of_x_transformers(shift_tokens=1, attn_gate_values=True),
    "encoder, T5's bias": of_x_transformers("Encoder", rel_pos_bias=True),
    "Transformer": of_torch(
        lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True), normal(1, 64, 64),
        normal(1, 64, 64),
    ),
    "encoder": of_torch(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3),
        normal(1, 128, 64),
    ),
}  # fmt: skip
QUICK = "encoder"  # of torch itself


# --- one model ------------------------------------------------------------------------------------


def as_trained(module: nn.Module, inputs: Sequence[Array]) -> nn.Module:
    """With numbers that reach the end: libraries begin with heads of zeros, norms that do nothing,
    and statistics of no image, after which outputs hardly hang on an input.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() < 2 or not parameter.any():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        norms = [one for one in module.modules() if isinstance(one, BatchNorm)]
        for norm in norms:
            norm.train().momentum = 1.0
        if norms:
            module(*(torch.randn(SEEN, *one.shape[1:]) for one in inputs))
        return module.eval()


def change(x: Array, random: np.random.Generator) -> None:
    """One token, one element of a sequence, or a part of an image is another one, in place."""
    if x.dtype.kind == "i":
        x[tuple(random.integers(0, size) for size in x.shape)] = random.integers(0, WORDS)
        return
    if x.ndim == 4:
        height, width = x.shape[2:]
        size = max(height // 16, 1)
        top, left = random.integers(0, height - size + 1), random.integers(0, width - size + 1)
        place = np.s_[:, :, top : top + size, left : left + size]
    else:
        place = np.s_[:, random.integers(0, x.shape[1])]
    x[place] = random.standard_normal(x[place].shape)


def measured(name: str, edits: int) -> dict[str, Any]:
    """One model: imported, answered for the first time and again, and edited."""
    sys.path.append(str(LIBRARIES))
    torch.manual_seed(0)
    module, inputs = MODELS[name].make()
    module = as_trained(module.eval(), inputs)
    began = time.process_time()
    imported = from_torch(module, tuple(map(torch.from_numpy, inputs)))
    import_s = time.process_time() - began
    given = list(imported.graph.inputs)

    def answered() -> tuple[GraphSession, float]:
        began = time.process_time()
        session = GraphSession(imported)
        session.run(dict(zip(given, inputs, strict=True)))
        return session, time.process_time() - began

    _, first_s = answered()
    edited, again_s = answered()
    full = GraphSession(imported, making="always")
    found: dict[str, dict[str, Array]] = {}

    def by_pytorch() -> None:
        with torch.inference_mode():
            results = module(*map(torch.from_numpy, inputs))
            found["PyTorch"] = {key: tensor.numpy() for key, tensor in paths(results, "")}

    def in_full() -> None:
        full.forget()
        found["full"] = full.run(dict(zip(given, inputs, strict=True)))

    def by_what_changed() -> None:
        found["edited"] = edited.run(dict(zip(given, inputs, strict=True)))

    work = {
        "PyTorch": Clocked(by_pytorch),
        "full": Clocked(in_full),
        "edited": Clocked(by_what_changed),
    }
    by_pytorch()
    in_full()  # neither's first run counts
    random, worst, moved = np.random.default_rng(0), -1.0, list[float]()
    for i in range(edits):
        before = found["PyTorch"]
        change(inputs[0], random)
        for which in rotated(list(work), i):
            work[which]()
        right = found["PyTorch"]
        error = max(largest_error(found[which], right) for which in ("full", "edited"))
        moved.append(largest_error(before, right))
        if error > worst:
            worst, there, at_worst = error, right, [x.copy() for x in inputs]
    with torch.inference_mode():
        wide = [
            torch.from_numpy(x.astype(np.float64) if x.dtype.kind == "f" else x) for x in at_worst
        ]
        exact = {key: tensor.numpy() for key, tensor in paths(module.double()(*wide), "")}
    cpu_ns = {which: one.cpu for which, one in work.items()}
    total = {which: sum(times) for which, times in cpu_ns.items()}
    return {
        "library": MODELS[name].library, "nodes": len(imported.graph.nodes),
        "opaque": sum(node.op == "opaque" for node in imported.graph.nodes),
        "import_s": import_s, "first_s": first_s, "again_s": again_s, "worst_error": worst,
        "rounding": largest_error(there, exact), "moved": statistics.median(moved),
        "full_over_pytorch": total["full"] / total["PyTorch"],
        "edited_over_better": total["edited"] / min(total["PyTorch"], total["full"]),
        "medians_ns": {which: statistics.median(times) for which, times in cpu_ns.items()},
        "cpu_ns": cpu_ns,
    }  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------


def is_equal(found: Mapping[str, Any]) -> bool:
    """Whether outputs are PyTorch's, by what rounding makes of them and less than edits do."""
    if "error" in found:
        return False
    allowed = TOLERANCE + ROUNDINGS * found["rounding"]
    return bool(found["worst_error"] <= min(allowed, found["moved"] / 10))


def totals(results: Mapping[str, Any]) -> dict[str, Any]:
    """How many there are, are equal to PyTorch, and are no slower than it, in full and edited."""
    equal = [found for found in results.values() if is_equal(found)]
    if not equal:
        return {"models": len(results), "equal": 0}
    return {
        "models": len(results), "equal": len(equal),
        "libraries": len({found["library"] for found in equal}),
        "full_not_slower": sum(found["full_over_pytorch"] <= 1.0 for found in equal),
        "edited_not_slower": sum(found["edited_over_better"] <= BOUND for found in equal),
        "median_full_over_pytorch": statistics.median(f["full_over_pytorch"] for f in equal),
        "median_edited_over_better": statistics.median(f["edited_over_better"] for f in equal),
        "median_first_s": statistics.median(found["first_s"] for found in equal),
    }  # fmt: skip


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    if "error" in found:
        return [name, *["–"] * 11, found["error"].splitlines()[0][:60]]
    return [
        name, str(found["nodes"]), *(f"{found[key]:.1f}" for key in SECONDS),
        *(f"{found[key]:.0e}" for key in ("worst_error", "rounding", "moved")),
        *map(ms, found["medians_ns"].values()),
        f"{found['full_over_pytorch']:.2f}", f"{found['edited_over_better']:.2f}",
    ]  # fmt: skip


SECONDS = "import_s", "first_s", "again_s"
HEADER = [
    "model", "nodes", "import, s", "first, s", "again, s", "error", "rounding", "moved",
    "PyTorch, ms", "full", "edited", "full / PyTorch", "edited / better",
]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all models; what is there already is not measured again."""
    command = Command("strangers", __doc__)
    command.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    command.add_argument("--again", action="store_true", help="measure what is there already too")
    command.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each model")
    options, record = command.begin(argv)
    if not options.quick and not LIBRARIES.exists():
        say(f"no {LIBRARIES} here: `make strangers` installs the libraries")
        return 1
    results = measured_here(options.output).get("models", {})
    for name in (QUICK,) if options.quick else options.only:
        if options.again or name not in results:
            note(name)
            with tempfile.TemporaryDirectory() as cache:
                os.environ["XDG_CACHE_HOME"] = cache
                work = partial(measured, name, 2 if options.quick else EDITS)
                results[name] = measured_apart(work, options.limit)
            record.write({"totals": totals(results), "models": results}, options.output)
    say(table(HEADER, [row(name, found) for name, found in results.items()]))
    say(str(totals(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
