"""A grid of numbers over an image, as an SVG that needs no network.

Orange places have numbers above zero, blue ones below (Okabe and Ito's colours, 2008). The largest
of both stand under the image, every number in its place's tooltip.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from tgbench.views.draw.svg import THEME

ABOVE, BELOW = "#d55e00", "#0072b2"
SIDE = 336  # pixels of the picture's longer side
LEGEND = 26  # and what stands under it


@dataclass(frozen=True)
class Heatmap:
    """Values [rows, columns] of places that stand `stride` apart over an image [C, height, width].

    >>> import numpy as np
    >>> grid = Heatmap(np.zeros((1, 4, 4)), np.array([[1.0, -1.0]]), 2, 2, "drop")
    >>> grid.to_svg().count("<title>")
    2
    """

    image: npt.NDArray[Any]
    values: npt.NDArray[Any]
    patch: int
    stride: int
    title: str

    def to_svg(self) -> str:
        height, width = self.image.shape[1:]
        scale = SIDE / max(height, width)
        most = max(float(np.abs(self.values).max()), 1e-30)
        cells = [
            f'<rect x="{column * self.stride}" y="{row * self.stride}" width="{self.patch}" '
            f'height="{self.patch}" fill="{ABOVE if value > 0 else BELOW}" '
            f'fill-opacity="{0.75 * abs(float(value)) / most:.3f}"><title>row {row}, column '
            f"{column}: {float(value):.4g}</title></rect>"
            for (row, column), value in np.ndenumerate(self.values)
        ]
        picture = base64.b64encode(png(_grey(self.image))).decode()
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width * scale, SIDE):.0f}" '
            f'height="{height * scale + LEGEND:.0f}" font-family="system-ui, sans-serif" '
            f'font-size="11" role="img" aria-label="{escape(self.title, quote=True)}">'
            f'<style>{THEME}</style><g transform="scale({scale:.6g})">'
            f'<image width="{width}" height="{height}" href="data:image/png;base64,{picture}"/>'
            f"{''.join(cells)}</g>{self._legend(height * scale + 18)}</svg>"
        )

    def _legend(self, y: float) -> str:
        """The two colours with the number at which they are strongest, and what is told."""
        ends = ((ABOVE, float(self.values.max())), (BELOW, float(self.values.min())))
        told = [(colour, end) for colour, end in ends if (end > 0) == (colour == ABOVE) and end]
        parts = [
            f'<rect x="{90 * i}" y="{y - 9:.0f}" width="11" height="11" fill="{colour}"/>'
            f'<text class="tg-text" x="{90 * i + 16}" y="{y:.0f}">{end:+.3g}</text>'
            for i, (colour, end) in enumerate(told)
        ]
        title = (
            f'<text class="tg-text" x="{90 * len(told)}" y="{y:.0f}">{escape(self.title)}</text>'
        )
        return "".join([*parts, title])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self.values), "image/svg+xml": self.to_svg()}


def _grey(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The mean of the channels, stretched to 0..255."""
    grey = image.mean(axis=0)
    low, high = float(grey.min()), float(grey.max())
    stretched: npt.NDArray[np.uint8] = ((grey - low) * (255 / max(high - low, 1e-30))).astype("u1")
    return stretched


def png(grey: npt.NDArray[np.uint8]) -> bytes:
    """A greyscale PNG file (W3C PNG specification: signature, IHDR, IDAT, IEND).

    >>> png(np.zeros((1, 1), np.uint8))[:4]
    b'\\x89PNG'
    """
    height, width = grey.shape
    lines = b"".join(b"\0" + row.tobytes() for row in grey)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
