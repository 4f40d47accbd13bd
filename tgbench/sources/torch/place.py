"""Where in the user's code an op comes from: module path, file, line, source text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tgbench.base.words import cut, printable

_FRAME = re.compile(  # bounded, so that a trace that somebody wrote is read in linear time
    r'File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,500})\n'
    r"(?P<code>[^\n]*)"
)
_WRITTEN = "<eval_with_key>"  # by PyTorch, in no file
_LIBRARY = ("/torch/nn/", "/torch/functional.py", "/torch/_", "/torch/utils/")
LONGEST = 300  # characters of a line, in a graph
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
        found = _FRAME.findall(meta.get("stack_trace") or "")
        frames = [frame for frame in found if not frame[0].startswith(_WRITTEN)]
        own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARY)]
        file, line, _, code = (own or frames or [("", "0", "", "")])[-1]
        return SourceLine(module_path(meta), file, int(line), code.strip())

    @property
    def short(self) -> str:
        """For a graph, which may be given to others: the file without the way to it; "" for none.

        >>> SourceLine("layers.0", "/home/me/model/net.py", 12, "y = self.up(x)").short
        'model/net.py:12, layers.0: y = self.up(x)'
        """
        if not self.file:
            return ""
        file = "/".join(self.file.replace("\\", "/").split("/")[-2:])
        inside = f", {self.module}" if self.module else ""
        code = f": {self.code}" if self.code else ""
        return cut(printable(f"{file}:{self.line}{inside}{code}").replace("\n", " "), LONGEST)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "a line that export did not keep"
        inside = f" in module {self.module!r}" if self.module else ""
        return printable(f"{where}{inside}" + (f": {self.code}" if self.code else ""))


def module_path(meta: Mapping[str, Any]) -> str:
    """The innermost module's path, as `named_modules` gives it; "" for the root."""
    stack = meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return _PROXY.sub("", paths[-1]).split("@")[0] if paths else ""
