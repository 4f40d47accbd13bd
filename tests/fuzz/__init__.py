"""A fuzzer for sessions: random graphs × histories × options, against an evaluator of its own.

    bounded      numbers with a bound on their rounding error, on torch in float64
    fills        values of leaves
    table        what the fuzzer knows of an op: how to draw it, to build it, to compute it
    ops          the entries, by family
    drawing      a random graph
    case         a graph, options and a history as plain JSON
    history      random options and histories
    replay       a case against a session; what goes wrong is a `Failure`
    shrinking    the smallest case that fails alike
    printing     a case as a Python test
    coverage     what was exercised, in tables

`python -m fuzz --seconds 600 --seed 0` runs it (from tests/; `make fuzz` does).
"""
