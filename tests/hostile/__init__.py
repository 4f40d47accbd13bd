"""A fuzzer for files: mutated ones of every kind, read in a process with little memory and time.

    kinds       what kinds of files there are: samples of each, and what a session does with one
    mutating    a file's bytes, or what they mean, changed a little; fingerprints are mended
    reading     the process that reads: one file after another, under an address-space limit
    shrinking   the smallest file that fails alike

Every outcome is a typed error, or an answer that is right. `make fuzz-files SECONDS=600 SEED=0`
runs it; files that once failed lie in `cases/`, and are read by the tests.
"""
