"""Where in the user's code an op comes from: module path, file, line, source text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tgbench.base.words import printable

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code>.*)')
_LIBRARY = ("/torch/nn/", "/torch/functional.py", "/torch/_", "/torch/utils/")
_PROXY = re.compile(r"\b(?:_export_root|L__self__)\.?")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The innermost line outside PyTorch's own modules; empty where export kept none."""

    module: str  # path in the model, such as "layers.0.mlp"
    file: str
    line: int
    code: str

    @staticmethod
    def of(meta: Mapping[str, Any]) -> SourceLine:
        """Read off the metadata of an exported node."""
        frames = _FRAME.findall(meta.get("stack_trace") or "")
        own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARY)]
        file, line, _, code = (own or frames or [("", "0", "", "")])[-1]
        return SourceLine(module_path(meta), file, int(line), code.strip())

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "a line that export did not keep"
        inside = f" in module {self.module!r}" if self.module else ""
        return printable(f"{where}{inside}" + (f": {self.code}" if self.code else ""))


def module_path(meta: Mapping[str, Any]) -> str:
    """The innermost module's path, as `named_modules` gives it; "" for the root."""
    stack = meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return _PROXY.sub("", paths[-1]).split("@")[0] if paths else ""
