"""The static offset-assignment problem: give each buffer one offset for its whole life.

Two buffers that are live at the same step must not share a byte; the aim is a low total height.

    problem      buffers with lifetimes, gaps and pins; solutions      problem
    heuristics   one pass over an order of the buffers, milliseconds   heuristics, lifetimes, bound
    search       complete: the lowest packing, or a proof              search, search_loops
    repair       what does not fit pushes others out                   repair, repair_loops
    race         the two in turns                                      race, parts, running
    compiled     the language in which loops are written, for LLVM     compiled
    packer       heuristics, then the race                             packer
    around it    minimalloc's files, pictures, the command             files, drawing, command

A solution may be higher than `capacity_bytes`; it, or `validate`, says so.
"""

from tgbench.memory.packing.bound import LowerBound, lower_bound
from tgbench.memory.packing.drawing import draw
from tgbench.memory.packing.files import read_minimalloc, write_minimalloc
from tgbench.memory.packing.heuristics import PACKERS, Heuristic
from tgbench.memory.packing.packer import pack
from tgbench.memory.packing.problem import Buffer, Problem, Solution, aligned_size
from tgbench.memory.packing.search import Pruning

__all__ = [
    "PACKERS",
    "Buffer",
    "Heuristic",
    "LowerBound",
    "Problem",
    "Pruning",
    "Solution",
    "aligned_size",
    "draw",
    "lower_bound",
    "pack",
    "read_minimalloc",
    "write_minimalloc",
]
