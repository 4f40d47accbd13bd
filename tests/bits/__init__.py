"""Bit-exact mode over every op and hostile numbers: histories beside sessions that have no past.

numbers    floats of a kind: zeros of both signs, ties, denormals, all magnitudes, …
graphs     every op case, as it is and otherwise; random graphs
histories  changes that walk over the inputs, each run beside a session made anew

`make fuzz-bits` goes through all op cases with all kinds of numbers, and then goes on with random
graphs.
"""
