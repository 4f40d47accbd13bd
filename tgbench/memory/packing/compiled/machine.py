"""From the text of an LLVM module to a function that Python can call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from llvmlite import binding

from tgbench.memory.packing.compiled.kinds import INT, READ_AS, ArrayKind, Kind
from tgbench.memory.packing.compiled.translation import translated


class CompiledLoop:
    """A function in the language of loops, compiled when it is first called.

    It takes integers and arrays, and returns an integer. Other loops may call it with any kinds,
    and get back what it returns. While it runs, other threads go on.

    Raises `TypeError` for what is not in the language, and for arrays that it cannot hold.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._codes: dict[tuple[Kind, ...], MachineCode] = {}

    def __call__(self, *args: Any) -> int:
        kinds = tuple(map(_kind, args))
        if kinds not in self._codes:
            self._codes[kinds] = MachineCode(translated(self.function, kinds), kinds)
        return self._codes[kinds](args)


def loop(function: Callable[..., Any]) -> CompiledLoop:
    return CompiledLoop(function)


def _kind(arg: Any) -> Kind:
    if not isinstance(arg, np.ndarray):
        return INT
    if not arg.flags.c_contiguous or arg.dtype.name not in READ_AS or arg.ndim not in (1, 2):
        raise TypeError(f"a loop takes no {arg.dtype} array of shape {arg.shape} like this one")
    return ArrayKind(arg.dtype.name, arg.ndim)


class MachineCode:
    """`main` of a module, compiled for this processor, for arguments of some kinds."""

    def __init__(self, text: str, kinds: Sequence[Kind]) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(),
            features=binding.get_host_cpu_features().flatten(),
            opt=3,
            jit=True,
        )
        module = binding.parse_assembly(text)
        module.verify()
        tuning = binding.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = True
        tuning.loop_unrolling = tuning.loop_interleaving = False  # for loops longer than these
        passes = binding.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(module, passes)
        self._engine = binding.create_mcjit_compiler(module, machine)  # keeps the code alive
        self._engine.finalize_object()
        count = sum(1 + kind.axes if isinstance(kind, ArrayKind) else 1 for kind in kinds)
        signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
        self._main = signature(self._engine.get_function_address("main"))

    def __call__(self, args: Sequence[Any]) -> int:
        flat: list[int] = []
        for arg in args:
            if isinstance(arg, np.ndarray):
                flat += (arg.ctypes.data, *arg.shape)
            else:
                flat.append(index(arg))
        return int(self._main(*flat))
