"""What a candidate has to stand, in a process of its own (`python -m …checks FILE TASK`).

On each of many shapes and kinds of numbers, operands lying row-major, apart and turned:

    right       as close to the float64 reference as the dtype allows
    the same    the same bits again, and of any part that is computed alone
    inside      bytes around and between the numbers of the result, and all operands, stay

What it is at is written to a file before it is done, so that whoever waits can say where a
candidate crashed or hung. This finds mistakes; it is no wall against a file that means harm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tgbench.base.regions import Box
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.costs.admission.candidate import CandidateKernel, function_of, read
from tgbench.costs.probe import drawn, same_bits, twin_call
from tgbench.graph.graph_file import load_graph
from tgbench.graph.op_table import FLOATS, Call
from tgbench.runs.rules import Rules

CLOSE = {"float64": 1e-11, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
SIZES = (1, 2, 3, 17, 64, 130)
KINDS = ("normal", "integers", "large", "zeros")
WAYS = (*((kind, "plain") for kind in KINDS), ("normal", "apart"), ("normal", "turned"))
MOST = 1 << 20  # elements of an operand
GUARD, BYTE = 256, 0xA5
PARTS = 6
MOST_WRITTEN = 1 << 24  # bytes of any file


class RefusedKernel(Exception):  # noqa: N818  (a finding, not a fault of ours)
    """What is wrong, in words."""


def calls(call: Call) -> Iterator[Call]:
    """The task's own sizes, and each size in turn as a small, odd and large one."""
    shapes, dtypes = call.in_shapes, [type_.dtype for type_ in call.inputs]
    seen = set()
    sizes = sorted({int(size) for shape in shapes for size in shape})
    for old, new in [(0, 0), *((old, new) for old in sizes for new in SIZES)]:
        tried = tuple(tuple(new if n == old else int(n) for n in shape) for shape in shapes)
        found = twin_call(call.op.name, call.attrs, tried, dtypes)
        if found is None or tried in seen or max(map(_count, tried), default=0) > MOST:
            continue
        seen.add(tried)
        yield found


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def operands(call: Call, kind: str, seed: int) -> list[torch.Tensor]:
    """Random operands; floats of some kind."""
    rng, found = np.random.default_rng(seed), []
    for type_ in call.inputs:
        tensor = drawn(type_, call.inputs[0], rng)
        if type_.dtype in FLOATS and kind != "normal":
            plain = {"integers": tensor.round(), "large": tensor * 100, "zeros": tensor * 0}
            tensor = plain[kind]
        found.append(tensor)
    return found


def laid(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers lying side by side, apart, or with two dimensions turned."""
    if how == "turned" and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "apart" and tensor.dim():
        wide = torch.zeros((*tensor.shape[:-1], tensor.shape[-1] + 3), dtype=tensor.dtype)
        wide = wide[..., 1 : 1 + tensor.shape[-1]]
        wide.copy_(tensor)
        return wide
    return tensor.contiguous()


class Guarded:
    """Room for a result, with bytes around and between its numbers that nobody may write."""

    def __init__(self, shape: tuple[int, ...], dtype: str, how: str) -> None:
        kind = TORCH_DTYPES[dtype]
        plain = torch.empty(shape, dtype=torch.uint8)
        turned = how == "turned" and len(shape) >= 2
        wide = list(shape[:-2] + shape[:-3:-1] if turned else shape)
        if how == "apart" and wide:
            wide[-1] += 3
        lead = GUARD // kind.itemsize
        count = _count(tuple(wide))
        self._bytes = torch.full(((count + 2 * lead) * kind.itemsize,), BYTE, dtype=torch.uint8)
        whole = self._bytes.view(kind)[lead : lead + count].view(wide)
        whole = whole.transpose(-1, -2) if turned else whole
        self.out = whole[..., : shape[-1]] if how == "apart" and wide else whole
        assert self.out.shape == plain.shape
        index = torch.zeros(count + 2 * lead, dtype=torch.bool)
        inside = index[lead : lead + count].view(wide)
        inside = inside.transpose(-1, -2) if turned else inside
        (inside[..., : shape[-1]] if how == "apart" and wide else inside).fill_(True)
        self._outside = (~index).repeat_interleave(kind.itemsize)

    @property
    def is_whole(self) -> bool:
        return bool((self._bytes[self._outside] == BYTE).all())


def computed(
    run: Callable[..., Any], call: Call, given: list[torch.Tensor], how: str
) -> torch.Tensor:
    """What a candidate makes of operands; raises RefusedKernel if it writes where it may not."""
    room = Guarded(tuple(map(int, call.out.shape)), call.out.dtype, how)
    before = [tensor.clone() for tensor in given]
    run(room.out, *given, **call.attrs)
    if not room.is_whole:
        raise RefusedKernel("it writes outside of its result")
    pairs = zip(before, given, strict=True)
    if not all(same_bits(a.contiguous(), b.contiguous()) for a, b in pairs):
        raise RefusedKernel("it writes into an operand")
    return room.out.contiguous()


def check_right(call: Call, given: list[torch.Tensor], found: torch.Tensor) -> None:
    """Raises RefusedKernel for numbers further from the reference than rounding explains."""
    wide = [(t.double() if t.is_floating_point() else t).numpy() for t in given]
    with np.errstate(all="ignore"):
        want = np.asarray(call.op.reference(call.attrs, *wide))
    have = (found.double() if found.is_floating_point() else found).numpy()
    if found.dtype not in (TORCH_DTYPES[dtype] for dtype in CLOSE):
        wrong = have != want
    else:
        scale = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
        near = np.isclose(have, want, CLOSE[call.out.dtype], CLOSE[call.out.dtype] * scale)
        wrong = ~(near | (np.isnan(have) & np.isnan(want)))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise RefusedKernel(f"at {at} it gives {have[at]:.9g}, the reference {want[at]:.9g}")


def check_parts(
    run: Callable[..., Any], call: Call, given: list[torch.Tensor], whole: torch.Tensor, seed: int
) -> None:
    """Raises RefusedKernel where a part that is computed alone has other bits than in the whole."""
    rng, rules, shape = np.random.default_rng(seed), Rules(), call.out.shape
    fixed = call.op.whole(call)
    for _ in range(PARTS):
        box = Box(_interval(rng, int(n)) if k not in fixed else (0, n) for k, n in enumerate(shape))
        reads = rules.reads(call, box)
        if any(read is None for read in reads):
            continue
        parts = [t[read.slices()] for t, read in zip(given, reads, strict=True) if read is not None]
        dtypes = [type_.dtype for type_ in call.inputs]
        part = twin_call(call.op.name, call.attrs, [tuple(p.shape) for p in parts], dtypes)
        if part is None or tuple(part.out.shape) != box.extents:
            continue
        if not same_bits(computed(run, part, parts, "plain"), whole[box.slices()].contiguous()):
            raise RefusedKernel(f"the part {box}, computed alone, has other bits than in the whole")


def _interval(rng: np.random.Generator, n: int) -> tuple[int, int]:
    start = int(rng.integers(0, n))
    return start, int(rng.integers(start + 1, n + 1))


def check(candidate: CandidateKernel, call: Call, tell: Callable[[str], None]) -> int:
    """How many cases it stands; raises RefusedKernel at the first that it does not."""
    tell("loading the file")
    run, count = function_of(candidate), 0
    types = (*(type_.dtype for type_ in call.inputs), call.out.dtype)
    if (call.op.name, types) != (candidate.op, candidate.dtypes):
        raise RefusedKernel(f"the task is {call.op.name} of {types}, not {candidate[:2]}")
    for seed, one in enumerate(calls(call)):
        for kind, how in WAYS:
            tell(f"{', '.join(map(str, one.inputs))} → {one.out}; numbers: {kind}, lying {how}")
            given = [laid(t, how) for t in operands(one, kind, seed)]
            found = computed(run, one, given, how)
            check_right(one, given, found)
            if not same_bits(found, computed(run, one, given, how)):
                raise RefusedKernel("a second time it gives other bits")
            if how == "plain":
                check_parts(run, one, given, found, seed)
            count += 1
    return count


def main(file: str, task: str, told: str, memory: str) -> int:
    """The child: one line a case, then "done" or "refused" with what there is to say."""
    with Path(told).open("w", encoding="utf-8", errors="backslashreplace", buffering=1) as lines:

        def tell(text: str) -> None:
            print("case", text.replace("\n", " "), file=lines)

        _limit(int(memory))
        sys.path.pop(0)  # the folder at hand: no session has what lies there
        torch.set_num_threads(1)
        (node,) = load_graph(Path(task)).outputs.values()
        candidate = read(Path(file).read_text(encoding="utf-8"))
        try:
            print("done", check(candidate, node.call, tell), file=lines)
        except RefusedKernel as error:
            print("refused", error, file=lines)
        except MemoryError:
            print("refused it takes more memory than is allowed", file=lines)
        except Exception as error:  # whatever a candidate may raise
            said = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
            print("refused it raises", said, file=lines)
    return 0


def _limit(memory_bytes: int) -> None:
    """No large files, no more memory than there is now and so much besides: where a system has
    such limits.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    most = pages * os.sysconf("SC_PAGE_SIZE") + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
