"""Chains on their way to workers: a program is sent to each worker once, chains name it.

    client ── chain, name of its program ─→ worker        knows the program: runs
           ←─ unknown ─────────────────────               does not: says so,
           ── chain, program ─────────────→               and keeps it for the next ones

A program is nearly all of a message and the same for every chain of a way of cutting, and writing
it out for the solver takes longer than many a window. A worker is whatever process runs a chain:
nobody has to know which that is, so this goes over anything with `submit`.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.search.chain import LOST, Chain, ChainResult, Stop, Submits, never

KEPT = 8  # programs of a worker, the latest ones
ASKED_EVERY_S = 0.02  # how often `stop` is asked while chains run elsewhere


class Known:
    """Programs that a process knows as a worker, by name; it may run several chains at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: OrderedDict[str, IntegerProgram] = OrderedDict()

    def of(self, name: str, packed: bytes | None) -> IntegerProgram | None:
        """The program of a name; None if it is not known, nor given."""
        with self._lock:
            if name not in self._programs:
                if packed is None:
                    return None
                self._programs[name] = pickle.loads(packed)
            self._programs.move_to_end(name)
            while len(self._programs) > KEPT:
                self._programs.popitem(last=False)
            return self._programs[name]


KNOWN = Known()


@dataclass(frozen=True)
class UnknownProgram:
    """The answer of a worker that does not know a program."""


@dataclass(frozen=True)
class Message:
    """A chain as it is sent: its program by name, with it where `program` is not None."""

    name: str
    program: bytes | None
    rest: Mapping[str, Any]

    @staticmethod
    def of(chain: Chain, *, whole: bool) -> Message:
        packed = chain.program.packed
        rest = {f.name: getattr(chain, f.name) for f in fields(chain) if f.name != "program"}
        return Message(hashlib.sha256(packed).hexdigest(), packed if whole else None, rest)


def run_message(message: Message) -> ChainResult | UnknownProgram | Exception:
    """Run the chain, by a name that another process can import.

    A fault of the search is handed back, so that nobody takes it for a worker that died.
    """
    try:
        program = KNOWN.of(message.name, message.program)
        return UnknownProgram() if program is None else Chain(program, **message.rest).run()
    except MemoryError:
        raise
    except Exception as error:
        return error


def run_round(
    chains: Sequence[Chain], executor: Submits | None = None, stop: Stop = never
) -> ChainResult:
    """All chains of a round: on an executor, or here where there is none.

    A stop ends chains here at their next step; chains elsewhere are cancelled or left alone, and
    what they find is not waited for.
    """
    if executor is None:
        return sum((chain.run(stop) for chain in chains), ChainResult())
    sent = [Sent(executor, chain) for chain in chains]
    try:
        while not stop() and sum(one.is_done() for one in sent) < len(sent):
            time.sleep(ASKED_EVERY_S)
        return sum((one.result() for one in sent if one.is_done()), ChainResult())
    finally:
        for one in sent:
            one.cancel()


class Sent:
    """A chain that was sent, and is sent again with its program where that is not known."""

    def __init__(self, executor: Submits, chain: Chain) -> None:
        self.executor, self.chain = executor, chain
        self._future = self._submitted(whole=False)

    def is_done(self) -> bool:
        if not self._future.done():
            return False
        if isinstance(self._answer, UnknownProgram):
            self._future = self._submitted(whole=True)
        return bool(self._future.done())

    def result(self) -> ChainResult:
        """What the chain found, once it is done."""
        found = self._answer
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, ChainResult)
        return found

    def cancel(self) -> None:
        """Unless it is done."""
        if not self._future.done():
            self._future.cancel()

    @property
    def _answer(self) -> ChainResult | UnknownProgram | Exception:
        try:
            found: ChainResult | UnknownProgram | Exception = self._future.result()
        except Exception:  # a worker that died takes its chain with it, no more
            return LOST
        return found

    def _submitted(self, *, whole: bool) -> Any:
        """A future, also where the executor has broken down and takes no more calls."""
        try:
            return self.executor.submit(run_message, Message.of(self.chain, whole=whole))
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed
