"""Chains: loops that compiled code calls one after the other, their arguments in one table.

    table    │ entry │ loop │ address of x │ … │ n │ entry │ loop │ …
                 └──→ loads the words behind it as the loop wants them, and calls it

A call from Python costs 0.3 µs with everything in the caches, and several times that behind a
product whose weights went through all of them; from here it costs 10 ns. What moves with the origin
are words: additions, where Python would make an array each. Nothing is compiled for a chain: there
is an entry for each kind of arguments, made in a millisecond when the first chain wants it. The
loops are those of the kernels, so every bit is theirs.

Source of the method: direct threaded code (J. R. Bell, 1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from tgbench.base.errors import KernelError
from tgbench.graph.op_table import ITEMSIZE
from tgbench.kernels.numba import loops
from tgbench.kernels.numba.loops import kernel, load, long

Words = NDArray[np.int64]
TEAM, HELPERS = "team", "helpers"  # kinds of arguments that every loop of a team begins with
PLAIN = {"int": types.int64, HELPERS: types.int64, "float": types.float64}
FINE = 0, -2  # what a loop gives that raised nothing: `RETCODE_OK`, `RETCODE_NONE`
WORD, WORD_BYTES = ir.IntType(64), 8
NEWLINE = "\n"  # until Python 3.12 no expression in a string has a backslash


def widths(kinds: tuple[str, ...]) -> list[int]:
    """How many words an argument of each kind takes: arrays have an address and a length."""
    return [0 if kind in (TEAM, HELPERS) else 1 if kind in PLAIN else 2 for kind in kinds]


def types_of(kinds: tuple[str, ...]) -> tuple[Any, ...]:
    flat = (PLAIN.get(kind) or loops.scalar("int64" if kind == TEAM else kind) for kind in kinds)
    return tuple(
        one if kind in PLAIN else types.Array(one, 1, "C")
        for kind, one in zip(kinds, flat, strict=True)
    )


@cache
def code(function: Any, kinds: tuple[str, ...]) -> tuple[int, int]:
    """Where the entry for arguments of these kinds begins, and the loop; compiled or loaded."""
    signature = types_of(kinds)
    function.compile(signature)
    made = function.overloads[signature]
    loop: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return _entry(kinds), loop


@cache
def _engine() -> Any:
    """Makes machine code in half a millisecond: there is nothing to make quicker in an entry."""
    load()
    machine = binding.Target.from_default_triple().create_target_machine(opt=0)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


@cache
def _entry(kinds: tuple[str, ...]) -> int:
    """`int64 entry(words, team's words, how many, helpers)`: 0, or 1 if the loop raised."""
    with global_compiler_lock:
        name = f"tgbench_entry_{_entry.cache_info().currsize}"
        engine = _engine()
        engine.add_module(binding.parse_assembly(_text(name, kinds)))
        engine.finalize_object()
        found: int = engine.get_function_address(name)
        return found


def _text(name: str, kinds: tuple[str, ...]) -> str:
    """An entry in LLVM's language; raises KernelError where numba passes arrays in another way."""
    given, lines, at = ["ptr %result", "ptr %raised"], list[str](), 1

    def word(at: int) -> str:
        lines.append(f"%at{at} = getelementptr i64, ptr %words, i64 {at}")
        lines.append(f"%word{at} = load i64, ptr %at{at}")
        return f"%word{at}"

    def array(item: int, first: str, length: str) -> str:
        """As numba passes one: owner, parent, items, item's bytes, data, shape, strides."""
        return (
            f"ptr null, ptr null, i64 {length}, i64 {item}, ptr {first}, i64 {length}, i64 {item}"
        )

    for kind, width in zip(kinds, widths(kinds), strict=True):
        if kind == TEAM:
            given.append(array(WORD_BYTES, "%team", "%count"))
        elif kind == HELPERS:
            given.append("i64 %helpers")
        elif kind == "int":
            given.append(f"i64 {word(at)}")
        elif kind == "float":
            lines.append(f"%float{at} = bitcast i64 {word(at)} to double")
            given.append(f"double %float{at}")
        else:
            lines.append(f"%data{at} = inttoptr i64 {word(at)} to ptr")
            given.append(array(ITEMSIZE[kind], f"%data{at}", word(at + 1)))
        at += width
    _check_passing(kinds, ", ".join(given[2:]).split(", "))
    called = word(0)
    return f"""
        define i64 @{name}(ptr %words, ptr %team, i64 %count, i64 %helpers) {{
            %result = alloca i64
            %raised = alloca ptr
            store i64 0, ptr %result
            store ptr null, ptr %raised
            {NEWLINE.join(lines)}
            %loop = inttoptr i64 {called} to ptr
            %code = call i32 %loop({", ".join(given)})
            %is_fine = icmp eq i32 %code, {FINE[0]}
            %is_none = icmp eq i32 %code, {FINE[1]}
            %has_not = or i1 %is_fine, %is_none
            %has_raised = xor i1 %has_not, true
            %found = zext i1 %has_raised to i64
            ret i64 %found
        }}
    """


def _check_passing(kinds: tuple[str, ...], given: Sequence[str]) -> None:
    """Whether numba takes as many arguments, each of that kind: a pointer, an integer, a double."""
    wanted = cpu_target.target_context.get_arg_packer(types_of(kinds)).argument_types
    takes = ["ptr" if one.is_pointer else str(one) for one in wanted]
    gives = [one.split()[0] for one in given]
    if takes != gives:
        raise KernelError(
            f"numba {numba.__version__} passes {', '.join(kinds)} as ({', '.join(takes)}), "
            f"not as ({', '.join(gives)}); install the version that tgbench was tested with"
        )


# --- running --------------------------------------------------------------------------------------


@intrinsic
def _enter(context, table, at, team, helpers):
    """Call the entry at a word of a table; whether its loop raised."""

    def generate(context, builder, signature, arguments):
        table, at, team, helpers = arguments
        words, shared = (
            make_array(kind)(context, builder, one)
            for kind, one in zip((signature.args[0], signature.args[2]), (table, team), strict=True)
        )
        start = builder.gep(words.data, [at])
        taken = ir.FunctionType(WORD, [WORD.as_pointer(), WORD.as_pointer(), WORD, WORD])
        function = builder.inttoptr(builder.load(start), taken.as_pointer())
        behind = builder.gep(start, [WORD(1)])
        return builder.call(function, [behind, shared.data, shared.nitems, helpers])

    return types.int64(table, types.int64, team, types.int64), generate


@kernel
def run(table, starts, first, stop, team, helpers):
    """Call what begins at starts[first:stop]; the number of the one that raised, or −1."""
    for i in range(first, stop):
        if _enter(table, starts[i], team, helpers):
            return i
    return -1


@long
def run_long(table, starts, first, stop, team, helpers):
    """The same, with Python let go of. One function compiled in both ways would be one for numba:
    what it keeps is found by a function's name, not by how it was compiled.
    """
    return run(table, starts, first, stop, team, helpers)


def compile_all() -> None:
    """Compile, or load, what executes chains and moves them."""
    words, number = types.Array(types.int64, 1, "C"), types.int64
    for one in (run, run_long):
        one.compile((words, words, number, number, words, number))
    move.compile((words, words, words))


@kernel
def move(table, moves, origin):
    """Words that depend on the origin: see `moving`."""
    at = 0
    while at < len(moves):
        total = moves[at + 3]
        for k in range(moves[at + 5]):
            total += moves[at + 7 + 2 * k] * origin[moves[at + 6 + 2 * k]]
        table[moves[at]] = moves[at + 1] + moves[at + 2] * (total // moves[at + 4])
        at += 6 + 2 * moves[at + 5]


def moving(at: int, lead: int, scale: int, form: Any) -> list[int]:
    """table[at] = lead + scale · form, as `move` reads it."""
    terms = [number for term in form.terms for number in term]
    return [at, lead, scale, form.const, form.per, len(form.terms), *terms]
