"""Real models at reduced width, with seeded weights: what PyTorch users bring to the importer.

ZOO[name]() makes a Model: the module, its example inputs, and how its inputs are edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import weight_norm

from tgbench.commands.apps.cnn import Vgg

Array = np.ndarray[Any, Any]
Edit = Callable[[Array, np.random.Generator], Array]
VOCAB = 64


@dataclass(frozen=True)
class Model:
    """A module and how it is used.

    Fields:
        edit: a changed copy of the example's first input.
        wants: demands that runs draw from, besides everything; by output name.
    """

    module: nn.Module
    args: tuple[Any, ...]
    edit: Edit
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    wants: tuple[Mapping[str, Any], ...] = ()


# --- edits ----------------------------------------------------------------------------------------


def one_token(ids: Array, random: np.random.Generator) -> Array:
    """Another id in the middle or near the end of one text of the batch."""
    changed = ids.copy()
    at = ids.shape[1] // 2 + int(random.integers(2)) * (ids.shape[1] // 4)
    changed[random.integers(ids.shape[0]), at] = random.integers(1, VOCAB)
    return changed


def one_patch(image: Array, random: np.random.Generator) -> Array:
    """Noise in a sixteenth of the image, at one of four places on a grid."""
    changed, side = image.copy(), image.shape[2] // 4
    top, left = (int(random.integers(1, 3)) * side for _ in range(2))
    patch = random.normal(size=(image.shape[1], side, side))
    changed[0, :, top : top + side, left : left + side] = patch
    return changed


def one_sample(signal: Array, random: np.random.Generator) -> Array:
    """All channels at one of four times."""
    changed = signal.copy()
    changed[0, :, int(random.integers(4)) * (signal.shape[2] // 4) + 3] = random.normal(
        size=signal.shape[1]
    )
    return changed


def one_step(sequence: Array, random: np.random.Generator) -> Array:
    """All features at one of two times of a [batch, time, features] sequence."""
    changed = sequence.copy()
    at = sequence.shape[1] // 2 + int(random.integers(2))
    changed[0, at] = random.normal(size=sequence.shape[2])
    return changed


# --- language models of transformers --------------------------------------------------------------

DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():  # norms start at 1 and biases at 0, where mistakes would not show
        for parameter in module.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn_like(buffer) * 0.1)
            elif name.endswith("running_var"):
                buffer.mul_(torch.rand_like(buffer) + 0.5)
    return module


def _ids(tokens: int = 16, batch: int = 1) -> Tensor:
    return torch.randint(1, VOCAB, (batch, tokens), generator=torch.Generator().manual_seed(1))


def _decoder(kind: str, attention: str, **overrides: Any) -> Model:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**(DECODER | overrides))
    config._attn_implementation = attention
    made = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")
    last = {"logits": np.s_[:, 13]}
    return Model(
        seeded(lambda: made(config)),
        (_ids(),),
        one_token,
        {"use_cache": False},
        wants=(last,),
    )


def gemma3(attention: str = "sdpa") -> Model:
    types = ["sliding_attention", "full_attention"]
    return _decoder("Gemma3Text", attention, layer_types=types, sliding_window=5)


def _bert(**overrides: Any) -> Model:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32, **overrides,
    )  # fmt: skip
    return Model(
        seeded(lambda: transformers.BertModel(config)),
        (_ids(12, 2),),
        one_token,
        wants=({"last_hidden_state": np.s_[:, 3]},),
    )


def minilm() -> Model:
    """sentence-transformers/all-MiniLM-L6-v2 with its real weights, as far as its second layer."""
    import transformers

    from tgbench.sources.models.checkpoints import find_minilm

    module = transformers.AutoModel.from_pretrained(
        find_minilm(), attn_implementation="sdpa", num_hidden_layers=2
    )
    return Model(module.eval(), (_ids(8),), one_token, wants=({"last_hidden_state": np.s_[:, 0]},))


# --- images ---------------------------------------------------------------------------------------


def _image(channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(2))


def _vision(name: str, config: str, size: int, **options: Any) -> Model:
    import transformers

    made = getattr(transformers, config)(**options)
    return Model(seeded(lambda: getattr(transformers, name)(made)), (_image(3, size),), one_patch)


def resnet(layer_type: str = "basic", width: int = 8) -> Model:
    return _vision(
        "ResNetModel", "ResNetConfig", 64, embedding_size=8, hidden_sizes=[width, 2 * width],
        depths=[1, 1], layer_type=layer_type,
    )  # fmt: skip


def convnext() -> Model:
    return _vision(
        "ConvNextModel", "ConvNextConfig", 32, hidden_sizes=[8, 16], depths=[1, 2], num_stages=2
    )


def vit() -> Model:
    return _vision(
        "ViTModel", "ViTConfig", 32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, image_size=32, patch_size=8,
    )  # fmt: skip


def _vgg() -> nn.Module:
    return Vgg(((8, 8), (12, 12)), hidden=16, classes=10, pooled=2)


class ResBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, and the way around (as in diffusion U-Nets)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, before), nn.GroupNorm(4, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        return self.conv2(F.silu(self.norm2(inner))) + self.skip(x)  # type: ignore[no-any-return]


class ImageAttention(nn.Module):
    """Self-attention over pixels."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            self.qkv(rows).view(b, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.out(mixed).transpose(1, 2).reshape(b, c, h, w)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Down, attention, up, with skips (Ronneberger et al. 2015; Ho et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.down2 = ResBlock(8, 8), ResBlock(8, 16)
        self.halve = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.middle = ImageAttention(16)
        self.up = ResBlock(24, 8)
        self.leave = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down1(self.enter(x))
        low = self.middle(self.down2(self.halve(skip)))
        high = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.leave(self.up(torch.cat([high, skip], dim=1)))  # type: ignore[no-any-return]


class VaeDecoder(nn.Module):
    """A latent image to pixels: blocks and upsampling, both nearest and bilinear."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, 16, 3, padding=1)
        self.block1, self.block2 = ResBlock(16, 16), ResBlock(16, 8)
        self.spread = nn.Conv2d(16, 16, 3, padding=1)
        self.turned = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
        self.norm, self.leave = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.block1(self.enter(z))
        x = self.spread(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.turned(self.block2(x))
        x = F.interpolate(x, size=(48, 48), mode="bilinear", align_corners=False)
        return torch.tanh(self.leave(F.silu(self.norm(x))))


# --- signals and sequences ------------------------------------------------------------------------


class Tcn(nn.Module):
    """Dilated causal convolutions with weight norm and residuals (Bai et al. 2018)."""

    def __init__(self, channels: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, 3, dilation=2**i)) for i in range(layers)
        )
        self.head = nn.Conv1d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = x + F.relu(conv(F.pad(x, (2 * 2**i, 0))))
        return self.head(x)  # type: ignore[no-any-return]


class Unrolled(nn.Module):
    """A cell applied step by step, and what `nn.LSTM` or `nn.GRU` makes of the same."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell: nn.Module = nn.LSTMCell(6, 8) if kind == "lstm" else nn.GRUCell(6, 8)
        self.layer: nn.Module = (nn.LSTM if kind == "lstm" else nn.GRU)(8, 5, batch_first=True)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        state: Any = None
        steps = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            steps.append(state[0] if isinstance(state, tuple) else state)
        hidden = torch.stack(steps, dim=1)
        return {"hidden": hidden, "deep": self.layer(hidden)[0]}


def _pixels(module: Callable[[], nn.Module], channels: int, size: int) -> Model:
    return Model(seeded(module), (_image(channels, size),), one_patch)


def _recurrent(kind: str) -> Model:
    x = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(3))
    wants = ({"deep": np.s_[:, 3]},)
    return Model(seeded(lambda: Unrolled(kind)), (x,), one_step, wants=wants)


def _tcn() -> Model:
    x = torch.randn(1, 8, 48, generator=torch.Generator().manual_seed(4))
    return Model(seeded(Tcn), (x,), one_sample, wants=({"output": np.s_[..., -1:]},))


ZOO: dict[str, Callable[[], Model]] = {
    "gemma3 sdpa": gemma3,
    "gemma3 eager": lambda: gemma3("eager"),
    "qwen3": lambda: _decoder("Qwen3", "sdpa", num_hidden_layers=1),
    "llama": lambda: _decoder("Llama", "sdpa", num_hidden_layers=1),
    "llama eager": lambda: _decoder("Llama", "eager", num_hidden_layers=1),
    "bert": _bert,
    "minilm": minilm,
    "resnet basic": resnet,
    "resnet bottleneck": lambda: resnet("bottleneck", 24),
    "convnext": convnext,
    "vit": vit,
    "vgg": lambda: _pixels(_vgg, 3, 16),
    "unet": lambda: _pixels(UNet, 3, 16),
    "vae decoder": lambda: _pixels(VaeDecoder, 4, 12),
    "tcn": _tcn,
    "lstm": lambda: _recurrent("lstm"),
    "gru": lambda: _recurrent("gru"),
}
