"""What a changed patch reaches in a network of convolutions, by arithmetic on its layers alone.

Nothing here knows of tgbench: the counts are the oracle of what a session computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

Span = tuple[int, int, int]  # first changed, stop, size of one dimension
Part = tuple[Span, Span]

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


@dataclass
class Count:
    """Multiply–adds: of everything, and of what a patch reaches."""

    full: int = 0
    reached: int = 0


def _span(span: Span, kernel: int, stride: int, pad: int) -> Span:
    first, stop, size = span
    outputs = (size + 2 * pad - kernel) // stride + 1
    windows = range(outputs)
    hit = [i for i in windows if i * stride - pad < stop and first < i * stride - pad + kernel]
    return (hit[0], hit[-1] + 1, outputs) if hit else (0, 0, outputs)


def pool(part: Part, kernel: int, stride: int, pad: int = 0) -> Part:
    return _span(part[0], kernel, stride, pad), _span(part[1], kernel, stride, pad)


def conv(part: Part, count: Count, channels: int, kernel: int, stride: int, pad: int) -> Part:
    """`channels`: inputs times outputs."""
    found = pool(part, kernel, stride, pad)
    (top, bottom, height), (left, right, width) = found
    count.full += height * width * channels * kernel**2
    count.reached += (bottom - top) * (right - left) * channels * kernel**2
    return found


def vgg16(part: Part, count: Count) -> None:
    before = 3
    for width in VGG16:
        if width:
            part = conv(part, count, before * width, 3, 1, 1)
            before = width
        else:
            part = pool(part, 2, 2)
    linear(count, (512 * 49, 4096, 4096, 1000))


def resnet(part: Part, count: Count, depths: tuple[int, ...], has_bottlenecks: bool) -> None:
    part = pool(conv(part, count, 3 * 64, 7, 2, 3), 3, 2, 1)
    before = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        after = width * 4 if has_bottlenecks else width
        for block in range(depth):
            stride = 2 if stage and not block else 1
            inner = conv(part, count, before * width, *((1, 1, 0) if has_bottlenecks
                                                        else (3, stride, 1)))  # fmt: skip
            inner = conv(inner, count, width * width, 3, stride if has_bottlenecks else 1, 1)
            if has_bottlenecks:
                inner = conv(inner, count, width * after, 1, 1, 0)
            if before != after or stride > 1:
                part = conv(part, count, before * after, 1, stride, 0)
            assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(inner, part, strict=True))
            part, before = inner, after
    linear(count, (before, 1000))


def linear(count: Count, widths: tuple[int, ...]) -> None:
    for before, after in pairwise(widths):
        count.full += before * after
        count.reached += before * after


def reached(network: str, top: int, left: int, patch: int, size: int = 224) -> Count:
    """What a patch at a place of a `size` × `size` image reaches."""
    count, part = Count(), ((top, top + patch, size), (left, left + patch, size))
    if network == "vgg16":
        vgg16(part, count)
    else:
        resnet(part, count, (2, 2, 2, 2) if network == "resnet18" else (3, 4, 6, 3),
               network == "resnet50")  # fmt: skip
    return count
