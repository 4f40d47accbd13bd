"""What of a site, and of a kernel, a measured time depends on.

Signature     of a site: op, extents, dtypes, layouts, device; positions are left out
source_hash   of a kernel's functions: a changed kernel is measured anew
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tgbench.base.coords import value_of
from tgbench.base.known import ConstantData
from tgbench.base.machine import last_cache_bytes
from tgbench.base.memo import once_each
from tgbench.base.regions import Box
from tgbench.graph.op_table import ITEMSIZE, Attrs, Call
from tgbench.kernels.registry import Kernel, Site, View

LONG = 64  # characters of an attribute, past which its digest stands for it


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a site the time of a kernel depends on; equal for equal layers, at any position.

    Fields:
        text: op and attributes; dtype, extents and layout of the result and of each operand; what
            is done to each number of the result, and with which other operands; the device; whether
            weights are streamed from memory or stay in the cache.
        flops, size_bytes: arithmetic, and bytes read and written.
    """

    text: str
    flops: float
    size_bytes: int

    @staticmethod
    def of(site: Site, *, streams: bool = True) -> Signature:
        """The signature of a site.

        Args:
            streams: the graph's weights do not fit the last cache, so every run reads them from
                memory (see `streams`).
        """
        site = replace(site, in_boxes=tuple(box and numbers(box) for box in site.in_boxes))
        ins = [_operand(site, i) for i in range(len(site.ins))]
        where = f"{'streamed' if streams else 'cached'} {site.device.split(':')[0]}"
        text = f"{_called(site.call)} {_shaped(site.out)} = {', '.join(ins)}"
        text += "".join(map(_post, site.posts))
        return Signature(f"{text}; {where}", *amounts(site))

    def __str__(self) -> str:
        return self.text


def amounts(site: Site) -> tuple[float, int]:
    """The arithmetic of a site, and the bytes that it reads and writes."""
    flops = site.call.op.flops(site.call, numbers(site.out_box))
    return float(flops), _moved_bytes(site)


def head_of(site: Site) -> str:
    """What its signature's text begins with, less layouts; see `head`."""
    return f"{_called(site.call)} {_sized(site.out)}"


def head(text: str) -> str:
    """Of a text without layouts: what is computed, and how large that is.

    >>> head("add() float32[1,8] = float32[1,8], float32[8]; cached cpu")
    'add() float32[1,8]'
    """
    return text.partition(" = ")[0]


def without_layout(text: str) -> str:
    """A signature's text less the layouts of its operands.

    >>> without_layout("add() float32[1,8]c = float32[1,8]r, float32[8]c; cached cpu")
    'add() float32[1,8] = float32[1,8], float32[8]; cached cpu'
    """
    return re.sub(r"\][cprsb]", "]", text)


def streams(parameter_bytes: int) -> bool:
    """Whether weights of this size are read from memory in every run: the last cache is smaller."""
    return parameter_bytes > last_cache_bytes()


def numbers(box: Box) -> Box:
    """A box as plain integers: what only costs anything is never guarded."""
    return Box((value_of(start), value_of(stop)) for start, stop in box) if box.moves else box


def _moved_bytes(site: Site) -> int:
    most = dict.fromkeys(site.call.op.picks, site.out.elements)
    read = sum(
        min(view.elements, most.get(i, view.elements)) * ITEMSIZE[view.dtype]
        for i, view in enumerate(site.ins)
        if view is not None
    )
    others = (view for post in site.posts for view in post.read)
    return site.out.size_bytes + read + sum(view.size_bytes for view in others)


def _post(site: Site) -> str:
    others = map(_shaped, site.read)
    return f"; then {site.call.op.name}({', '.join((attributes(site.call.attrs), *others))})"


def _operand(site: Site, i: int) -> str:
    view = site.ins[i]
    if view is None:
        return "-"
    return _shaped(view) + ("o" if site.call.facts and site.is_all_open(i) else "")


def _shaped(view: View) -> str:
    return f"{_sized(view)}{_layout(view)}"


def _sized(view: View) -> str:
    return f"{view.dtype}[{','.join([str(value_of(n)) for n in view.shape])}]"


def _layout(view: View) -> str:
    """c: row-major without gaps; p: contiguous rows without gaps, in another order; r: contiguous
    rows; b: repeated elements; s: anything else.
    """
    sizes, steps = map(value_of, view.shape), map(value_of, view.strides)
    wide = [(size, step) for size, step in zip(sizes, steps, strict=True) if size != 1]
    if any(step == 0 for _, step in wide):
        return "b"
    if wide and wide[-1][1] != 1:
        return "s"
    if _follow(wide):
        return "c"
    return "p" if _follow(sorted(wide, key=lambda one: one[1], reverse=True)) else "r"


def _follow(wide: Sequence[tuple[int, int]]) -> bool:
    """Whether dimensions (size, step) lie without gaps, from the outermost to the innermost."""
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(wide))


@once_each
def _called(call: Call) -> str:
    """An op and its attributes."""
    return f"{call.op.name}({attributes(call.attrs)})"


def attributes(attrs: Attrs) -> str:
    """Attributes of a call as text, the same in every process."""
    return ", ".join(f"{key}={_attribute(value)}" for key, value in sorted(attrs.items()))


def _attribute(value: Any) -> str:
    text = value.digest if isinstance(value, ConstantData) else repr(value)
    return text if len(text) <= LONG else hashlib.sha256(text.encode()).hexdigest()[:16]


# --- the source of a kernel -----------------------------------------------------------------------


@cache
def source_hash(kernel: Kernel) -> str:
    """A hash of a kernel's compiled functions and of all of tgbench that they call.

    Comments and names of local variables do not count. The hash holds for one version of Python,
    which is part of the fingerprint.
    """
    return code_hash(kernel.bind, kernel.scratch)


def code_hash(*functions: Any) -> str:
    """The same of any functions."""
    digest, seen = hashlib.sha256(), set[int]()
    pending: list[Any] = [*functions]
    while pending:
        found = _plain(pending.pop(0))
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, Kernel):  # one that works through another
            pending += [found.bind, found.scratch]
        if not isinstance(found, FunctionType):
            digest.update(_stable(found).encode())
            continue
        digest.update(_code(found.__code__).encode())
        pending += _mentioned(found)
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """The Python function behind a decorated or compiled one."""
    for name in ("py_func", "__wrapped__"):
        value = getattr(value, name, value)
    return value


def _code(code: CodeType) -> str:
    constants = [
        _code(part) if isinstance(part, CodeType) else _stable(part) for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _mentioned(function: FunctionType) -> Iterator[Any]:
    """What a function refers to outside itself: globals, attributes of modules, closures."""
    names = [name for code in _codes(function.__code__) for name in code.co_names]
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    yield from function.__defaults__ or ()
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if value.__name__.startswith("tgbench."):
                yield from (getattr(value, other) for other in names if hasattr(value, other))
        elif value is not None and _is_ours(value):
            yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _is_ours(value: Any) -> bool:
    if isinstance(value, (bool, int, float, str, tuple, dict)):
        return True
    return str(getattr(_plain(value), "__module__", "")).startswith("tgbench.kernels")


def _stable(value: Any) -> str:
    """A text without addresses: the same in every process."""
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_stable, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_stable, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_stable(k)}: {_stable(v)}' for k, v in value.items()))}}}"
    return str(getattr(value, "__qualname__", type(value).__qualname__))
