"""VGG16, ResNet18 and ResNet50 in plain torch, with torchvision's parameter names.

    NETWORKS["resnet18"]()        seeded random weights, scaled so that activations keep their size
    network("resnet18", "resnet18.safetensors")             a checkpoint in torchvision's names

Sources: Simonyan and Zisserman, arXiv:1409.1556 (configuration D); He et al., arXiv:1512.03385,
with the stride of a bottleneck in its 3 × 3 convolution, as torchvision has it. Initialisation: He
et al., arXiv:1502.01852. Batch norms get seeded statistics, so that a wrong one would show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tgbench.base.errors import InputError, WeightsError
from tgbench.base.safetensors import Weights

VGG16_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class Vgg(nn.Module):
    """Blocks of 3 × 3 convolutions, each halved by max pooling; then three linear layers."""

    def __init__(
        self, widths: Sequence[Sequence[int]] = VGG16_WIDTHS, hidden: int = 4096,
        classes: int = 1000, pooled: int = 7,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for block in widths:
            for width in block:
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
                before = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((pooled, pooled))
        self.classifier = nn.Sequential(
            nn.Linear(before * pooled**2, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return found


class Basic(nn.Module):
    """Two 3 × 3 convolutions and the way around them."""

    widening = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = around(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3 × 3 convolution between two of 1 × 1, and the way around them."""

    widening = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = around(before, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + self.downsample(x))


def around(before: int, after: int, stride: int) -> nn.Sequential:
    """What a block adds to its result: its input, by a 1 × 1 convolution where shapes differ."""
    if stride == 1 and before == after:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


class ResNet(nn.Module):
    """A 7 × 7 convolution, four stages of blocks, the mean over pixels, and a linear layer."""

    def __init__(
        self, block: type[Basic] | type[Bottleneck], depths: Sequence[int], width: int = 64,
        classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before, stages = width, []
        for i, depth in enumerate(depths):
            inner, blocks = width * 2**i, []
            for j in range(depth):
                blocks.append(block(before, inner, 2 if i and not j else 1))
                before = inner * block.widening
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        found: Tensor = self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return found


def seeded(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in evaluation mode, with random weights that depend on the seed alone."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=random)
                if part.bias is not None:
                    part.bias.uniform_(-0.05, 0.05, generator=random)
            elif isinstance(part, nn.BatchNorm2d):
                part.weight.uniform_(0.4, 0.8, generator=random)
                part.bias.uniform_(-0.1, 0.1, generator=random)
                part.running_mean.uniform_(-0.1, 0.1, generator=random)  # type: ignore[union-attr]
                part.running_var.uniform_(0.8, 1.2, generator=random)  # type: ignore[union-attr]
    return module.eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vgg16": Vgg,
    "resnet18": lambda: ResNet(Basic, (2, 2, 2, 2)),
    "resnet50": lambda: ResNet(Bottleneck, (3, 4, 6, 3)),
}


def network(name: str, weights: Path | None = None) -> nn.Module:
    """A network by name; with a safetensors file in torchvision's names, with its weights.

    Raises InputError for an unknown name, WeightsError for a file that does not fit.
    """
    if name not in NETWORKS:
        raise InputError(f"model {name!r} is not known; give one of {', '.join(NETWORKS)}")
    made = seeded(NETWORKS[name]())
    if weights is not None:
        _load(made, weights)
    return made


def _load(module: nn.Module, path: Path) -> None:
    """Copy tensors by name; torchvision's counters of seen batches are not weights."""
    wanted = {n: t for n, t in module.state_dict().items() if not n.endswith("batches_tracked")}
    with Weights(path) as source:
        missing = [name for name in wanted if name not in source]
        if missing:
            raise WeightsError(f"{path} has no {missing[0]!r}; give a file in torchvision's names")
        for name, tensor in wanted.items():
            found = source.tensor(name)
            if found.shape != tensor.shape:
                raise WeightsError(
                    f"{path}: {name} is {list(found.shape)}, the network has {list(tensor.shape)}"
                )
            tensor.copy_(found)
