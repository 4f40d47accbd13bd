"""Interrupted anywhere: at a bytecode of a run something is raised, and then it is tried again.

    run k ── KeyboardInterrupt at a bytecode ──→ states are what they were before run k
    run k again ──→ its results, and the states have advanced once

A real interrupt comes at some of these points; MemoryError comes at calls. The runs are a warm one,
a first one, and one that makes a new plan while states hold values. `make fuzz-interrupts` visits
one point after the other, of each bytecode at first the first time that it is reached; a run is
stopped some times in a row before it is let through.
"""
