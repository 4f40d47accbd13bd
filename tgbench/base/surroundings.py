"""What a caller has set around a call, for PyTorch: nothing of ours is computed otherwise by it.

Autocast rounds what is multiplied, and so may `torch.set_float32_matmul_precision` on a processor;
inference mode makes tensors that nobody may write into outside of it, and modes (a default device
is one) make tensors elsewhere, or others in their place. Where any of these is on, what the package
does is done with all of them off. What GPUs round to (TF32) is left to whoever sets it. What
`torch.compile` traces is traced up to a call of ours, and on from what it gave.

What is put back is said outright and may be said twice, so that an interrupt in any line leaves
none of it undone; and nothing that gives way in its middle (a generator) may be called like this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from threading import RLock, get_ident
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C._dynamo import eval_frame

P = ParamSpec("P")
R = TypeVar("R")

_autocasts = torch._C._is_any_autocast_enabled
_is_inference = torch.is_inference_mode_enabled
_count_functions = torch._C._len_torch_function_stack
_count_dispatches = torch._C._len_torch_dispatch_stack
_precision_of = torch._C._get_fp32_precision_getter
_set_precision = torch._C._set_fp32_precision_setter
_SKIPPED = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_EXACT = frozenset({"none", "ieee"})  # "none" is what nobody has set
_ROUNDED = ("matmul", "conv")  # what is called of oneDNN: it has a setting for each


class _Precision:
    """How exactly PyTorch multiplies float32 on processors, a setting of the whole process.

    Threads ask for all of it, and what was set comes back as the last of them leaves: until then
    nobody else may take what is set for what the process has.

    Fields:
        asking: threads, and who asked on each.
        turns: how often somebody asked.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._before: dict[str, str] = {}
        self.asking: dict[int, object] = {}
        self.turns = 0

    def is_others(self) -> bool:
        """Whether somebody asked, and nobody on this thread."""
        return get_ident() not in self.asking

    def ask(self, who: object) -> None:
        with self._lock:
            if not self.asking:
                self._before = {op: _set_for(op) for op in _ROUNDED}
            self.turns += 1
            self.asking.setdefault(get_ident(), who)
            self._set(dict.fromkeys(_ROUNDED, "ieee"))

    def leave(self, who: object) -> None:
        """May be said twice, and by who has not asked."""
        with self._lock:
            if self.asking.get(get_ident()) is not who:
                return
            if len(self.asking) == 1:
                self._set(self._before)
            del self.asking[get_ident()]

    def _set(self, precisions: dict[str, str]) -> None:
        for op, precision in precisions.items():
            _set_precision("mkldnn", op, precision)


def _set_for(op: str) -> str:
    """What is set for an op by itself: where nothing is, it has what is set for all."""
    found = _precision_of("mkldnn", op)
    return "none" if found == _precision_of("mkldnn", "all") else found


PRECISION = _Precision()


def is_plain() -> bool:
    """Whether nothing of that is set; a run asks, so this takes no longer than it has to.

    Of precisions this is that of products, which is set for all that PyTorch computes, or alone.
    """
    turn = PRECISION.turns
    return not (
        _autocasts()
        or _is_inference()
        or _count_functions()
        or _count_dispatches()
        or (PRECISION.asking and PRECISION.is_others())
        or _precision_of("mkldnn", "matmul") not in _EXACT
        or turn != PRECISION.turns  # somebody asked, and left, since this began
    )


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which no compiler of PyTorch looks into, nor into what it calls.

    Says what `torch.compiler.disable` says, which loads the compiler and has a call around each.
    """
    told: Any = function
    eval_frame.set_code_exec_strategy(told.__code__, _SKIPPED)  # called by what is not traced
    told._torchdynamo_disable = True  # called by what is
    told._torchdynamo_disable_msg = (
        "tgbench computes what changed, another part each time: leave fullgraph=True out, or call "
        "it outside of what is compiled"
    )
    return function


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """A function that does what it does whatever its caller has set.

    >>> @plainly
    ... def product(x):
    ...     return x @ x
    >>> with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
    ...     found = product(torch.ones(2, 2, device="cpu"))
    >>> found.dtype, found.device
    (torch.float32, device(type='cpu'))
    """
    assert not isgeneratorfunction(function), "others run before a generator is over"

    @untraced
    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs) if is_plain() else apart(function, *args, **kwargs)

    return called


def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call, with nothing set meanwhile."""
    surroundings = _Surroundings()
    try:
        try:
            surroundings.leave()
            return function(*args, **kwargs)
        finally:
            surroundings.enter()
    finally:  # an interrupt may have come while that was done
        surroundings.enter()


class _Surroundings:
    """What is set for this thread, to be left and entered again."""

    def __init__(self) -> None:
        self.functions, self.dispatches = _functions(), _dispatches()
        self.autocast: Any = torch._C._DisableAutocast()
        self.inference: Any = None

    def leave(self) -> None:
        _put_away()
        if _is_inference():
            self.inference = torch._C._InferenceMode(False)  # is in force from here on
        self.autocast.__enter__()
        PRECISION.ask(self)

    def enter(self) -> None:
        """The other way round, as each of these puts back all keys that it has found."""
        PRECISION.leave(self)
        self.autocast.__exit__(None, None, None)
        if self.inference is not None:
            self.inference.__exit__(None, None, None)
        if (_functions(), _dispatches()) == (self.functions, self.dispatches):
            return
        _put_away()
        for mode in self.functions:
            torch._C._push_on_torch_function_stack(mode)
        for mode in self.dispatches:
            torch._C._push_on_torch_dispatch_stack(mode)


def _functions() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(_count_functions())]


def _dispatches() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(i) for i in range(_count_dispatches())]


def _put_away() -> None:
    """No mode is on from here on."""
    while _count_functions():
        torch._C._pop_torch_function_stack()
    while _count_dispatches():
        torch._C._pop_torch_dispatch_stack(None)
