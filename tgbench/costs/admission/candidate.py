"""A candidate: a Python file with a kernel that somebody wrote, as one of the kernels of a session.

    OP = "rms_norm"                                what it computes
    DTYPES = ("float32", "float32", "float32")     of the inputs, then of the result

    def run(out, *inputs, **attributes):           writes all of `out`, and nothing else

`out` and the inputs are torch tensors on the CPU with any strides. A run computes a part of a
result: `out` is that part, and the inputs are the parts that it reads.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from tgbench.base.errors import KernelError
from tgbench.costs.probe import twin_call
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import KERNELS, Kernel, Site, View
from tgbench.kernels.views import Bound, inputs, is_complete

AHEAD = 0.9  # of the fastest other one's model: who asked for a kernel has it until it is timed


class CandidateKernel(NamedTuple):
    """What a file says of itself.

    Fields:
        op: what it computes.
        dtypes: of the inputs, then of the result.
        source: the text.
    """

    op: str
    dtypes: tuple[str, ...]
    source: str


def read(source: str) -> CandidateKernel:
    """What a source says, found without executing it; raises KernelError for what is missing."""
    try:
        tree = ast.parse(source)
        said = {
            target.id: ast.literal_eval(line.value)
            for line in tree.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name) and target.id in ("OP", "DTYPES")
        }
        return CandidateKernel(str(said["OP"]), tuple(map(str, said["DTYPES"])), source)
    except KeyError as error:
        raise KernelError(f"the file does not say {error.args[0]}; begin with a task's") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise KernelError(f"the file is no kernel ({error}); begin with a task's") from None


def function_of(candidate: CandidateKernel) -> Callable[..., Any]:
    """Its `run`: the file is executed. Raises KernelError where that does."""
    names: dict[str, Any] = {"__name__": f"tgbench kernel of {candidate.op}"}
    try:
        exec(compile(candidate.source, "<kernel>", "exec"), names)
        run: Callable[..., Any] = names["run"]
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise KernelError(
            f"the file of a kernel of {candidate.op} does not run here ({what}); it may import "
            "what is installed, and nothing beside it"
        ) from error
    return run


@lru_cache(4096)
def _result(call: Call, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """What shape the op gives for parts of these shapes."""
    dtypes = [type_.dtype for type_ in call.inputs]
    part = twin_call(call.op.name, call.attrs, shapes, dtypes)
    return None if part is None else tuple(map(int, part.out.shape))


def suits(candidate: CandidateKernel, site: Site) -> bool:
    """Whether the result at a site is the op of the parts that it reads, all of fixed sizes."""
    op, views = site.call.op, site.ins
    if op.name != candidate.op or any(view is None for view in views) or not is_complete(site):
        return False
    if op.picks and any(fact is not None for fact in site.call.facts):
        return False
    flat: list[View] = [*inputs(site), site.out]
    if tuple(view.dtype for view in flat) != candidate.dtypes:
        return False
    if not all(type(size) is int for view in flat for size in view.shape):
        return False
    *shapes, out = [tuple(map(int, view.shape)) for view in flat]
    return _result(site.call, tuple(shapes)) == out


def kernel_of(candidate: CandidateKernel, name: str) -> Kernel:
    """A kernel that sessions have that ask for it by this name; the file is executed."""
    run = function_of(candidate)

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        attrs = dict(site.call.attrs)

        def called(out: Any, *given: Any) -> None:
            run(out, *given, **attrs)

        return called, (site.out, *inputs(site))

    def cost_ns(site: Site) -> float:
        others = (kernel for kernel in KERNELS[candidate.op] if not kernel.is_asked)
        return AHEAD * min((k.cost_ns(site) for k in others if k.takes(site)), default=1000.0)

    return Kernel(
        name, candidate.op, lambda site: suits(candidate, site), cost_ns, bind,
        devices=("cpu",), is_fixed=True, is_asked=True,
    )  # fmt: skip
