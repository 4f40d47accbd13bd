"""A fuzzer for what happens to a process: killed, a full disk, a locked database, a lost worker.

    files       what a session writes, and what must be true of it afterwards
    case        faults as data: drawn from seeds, and done
    shrinking   the fewest that do a harm; `cases` has such, and the tests do them
    __main__    one fault after another

A file is what it was or what it should have become, whole; an error is typed; nothing is left
lying about, and a session goes on. `make fuzz-faults SECONDS=600 SEED=0` runs it.
"""
