"""Chains: loops that compiled code calls one after the other, their arguments in one table.

    table    │ entry │ loop │ address of x │ … │ n │ entry │ loop │ …
                 └──→ loads the words behind it as the loop wants them, and calls it

A call from Python costs 0.3 µs with everything in the caches, and several times that behind a
product whose weights went through all of them; from here it costs 10 ns. What moves with the origin
are words: additions, where Python would make an array each. Nothing is compiled for a chain: there
is an entry for each kind of arguments, a few milliseconds of machine code, made when the first
chain wants it. The loops are those of the kernels, so every bit is theirs.

Source of the method: direct threaded code (J. R. Bell, 1973).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

from tgbench.kernels.numba import loops
from tgbench.kernels.numba.loops import kernel, long

Words = NDArray[np.int64]
TEAM, HELPERS = "team", "helpers"  # kinds of arguments that every loop of a team begins with
PLAIN = {"int": types.int64, HELPERS: types.int64, "float": types.float64}
FINE = 0, -2  # what a loop gives that raised nothing: `RETCODE_OK`, `RETCODE_NONE`
WORD = ir.IntType(64)


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
    return _entry(kinds, made.signature.return_type), loop


_kept: list[Any] = []  # libraries of machine code, as long as the process


@cache
def _entry(kinds: tuple[str, ...], result: Any) -> int:
    """`int64 entry(words, team's words, how many, helpers)`: 0, or 1 if the loop raised."""
    with global_compiler_lock:
        return _made(kinds, result)


def _made(kinds: tuple[str, ...], result: Any) -> int:
    context = cpu_target.target_context
    name = f"tgbench_entry_{len(_kept)}"
    library = context.codegen().create_library(name)
    module = library.create_ir_module(name)
    taken = ir.FunctionType(WORD, [WORD.as_pointer(), WORD.as_pointer(), WORD, WORD])
    made = ir.Function(module, taken, name)
    builder = ir.IRBuilder(made.append_basic_block())
    words, team, count, helpers = made.args

    def word(at: int) -> Any:
        return builder.load(builder.gep(words, [WORD(at)]))

    def array(kind: Any, first: Any, length: Any) -> Any:
        found = make_array(kind)(context, builder)
        item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        populate_array(
            found, builder.bitcast(first, found.data.type), [length], [WORD(item)], WORD(item), None
        )
        return found._getvalue()

    arguments, at = [], 1
    kept = types_of(kinds)
    for kind, one, width in zip(kinds, kept, widths(kinds), strict=True):
        if kind == TEAM:
            arguments.append(array(one, team, count))
        elif kind == HELPERS:
            arguments.append(helpers)
        elif kind == "float":
            arguments.append(builder.bitcast(word(at), ir.DoubleType()))
        elif kind == "int":
            arguments.append(word(at))
        else:
            pointer = context.get_data_type(one.dtype).as_pointer()
            arguments.append(array(one, builder.inttoptr(word(at), pointer), word(at + 1)))
        at += width
    code = _called(context, builder, word(0), result, kept, arguments)
    fine = [builder.icmp_signed("==", code, code.type(one)) for one in FINE]
    builder.ret(builder.zext(builder.not_(builder.or_(*fine)), WORD))
    library.add_ir_module(module)
    library.finalize()
    _kept.append(library)
    found: int = library.get_pointer_to_function(name)
    return found


def _called(
    context: Any, builder: Any, where: Any, result: Any, kept: Any, arguments: list[Any]
) -> Any:
    """The status of a call of numba's: result and exception go where the first two point."""
    kind = context.call_conv.get_function_type(result, kept)
    place, raised = (builder.alloca(one.pointee) for one in kind.args[:2])
    for one in (place, raised):
        builder.store(ir.Constant(one.type.pointee, None), one)
    given = context.get_arg_packer(kept).as_arguments(builder, arguments)
    return builder.call(builder.inttoptr(where, kind.as_pointer()), [place, raised, *given])


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


def _run(table, starts, first, stop, team, helpers):
    """Call what begins at starts[first:stop]; the number of the one that raised, or −1."""
    for i in range(first, stop):
        if _enter(table, starts[i], team, helpers):
            return i
    return -1


run, run_long = kernel(_run), long(_run)


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
