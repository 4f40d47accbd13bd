"""Loops over arrays, written in a small part of Python and compiled by LLVM within moments.

    function ─ translation ─→ text of an LLVM module ─ machine ─→ machine code
                kinds, instructions

    values        integers of 64 bits, unsigned ones, floats of 64 bits, truths; arrays of one or
                  two axes, without gaps, of int64, uint64, float64 or uint8; their rows
    statements    =, of several values too; += and its kind; if; while, with else; for over a range
                  in steps of 1 or -1; break, continue, return; a call of a loop
    expressions   + - * / % & | ^ << >>; one comparison; and, or, not; … if … else …; len, float,
                  np.int64, np.uint64, np.inf; min and max of two; numbers of the module; calls of
                  other loops

What runs in Python too, runs alike compiled, as long as no signed integer overflows, no index is
negative or too large, nothing is divided by zero, and no two arrays of one call share memory (so
that their loops can become vector instructions). None of this is checked. A variable keeps the
kind of its first value, and a name is given to one array at most.

numba compiles the same loops in nine times the time: it infers kinds at length, builds and
optimises a module for each function, and each again in those that call it. Here nothing has to be
kept on disk.
"""

from tgbench.memory.packing.compiled.machine import CompiledLoop, loop

__all__ = ["CompiledLoop", "loop"]
