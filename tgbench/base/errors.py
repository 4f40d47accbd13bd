"""Every exception tgbench raises on purpose: the fault, the place and the mend."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from numbers import Integral, Real
from typing import Any

from tgbench.base.words import kind_of_value, printable, shorten

LONGEST_MESSAGE = 4000  # characters
MOST_INTEGER = 1 << 63


class TgbenchError(Exception):
    """Base of all typed errors; catching it catches every fault that tgbench foresees.

    A message may quote what a file holds: it is shown as a terminal may have it, and not endlessly.

    >>> str(TgbenchError("no node \\x1b[2J"))
    'no node \\\\x1b[2J'
    """

    def __str__(self) -> str:
        said = super().__str__()
        rest = len(said) - LONGEST_MESSAGE
        told = printable(said[:LONGEST_MESSAGE])
        return told if rest <= 0 else f"{told}… ({rest:,} characters more)"


class GraphError(TgbenchError):
    """A graph is malformed: unknown op, wrong arity, shapes or dtypes that do not go together."""


class InputError(TgbenchError):
    """A run got an input with an unknown name, or the wrong shape, dtype or contents."""


class DemandError(TgbenchError):
    """A run asked for an output that does not exist or for a part outside its shape."""


class HintError(TgbenchError):
    """`changed=` left out a part of an input that really changed (found by `check=True`)."""


class BudgetError(TgbenchError):
    """No placement fits the budget.

    Attributes:
        budget_bytes: what was allowed.
        needed_bytes: the smallest budget found to work; those that were tried below it do not.
        lower_bound_bytes: no placement can be smaller.
        step: schedule step that makes the lower bound.
        nodes: names and byte sizes live at that step, largest first.
    """

    def __init__(
        self,
        message: str,
        *,
        budget_bytes: int,
        needed_bytes: int,
        lower_bound_bytes: int,
        step: int,
        nodes: tuple[tuple[str, int], ...],
    ) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.needed_bytes = needed_bytes
        self.lower_bound_bytes = lower_bound_bytes
        self.step = step
        self.nodes = nodes


class PlanError(TgbenchError):
    """A plan file is damaged, truncated, of another schema, or made for another graph."""


class ProgramsError(TgbenchError):
    """A file of programs is damaged, or was made by others or for another session than this one."""


class TraceError(TgbenchError):
    """A trace file holds a line, other than a torn last one, that is not a call record."""


class WeightsError(TgbenchError):
    """A weight file is damaged or hostile, or its tensors do not match the graph's parameters."""


class KernelError(TgbenchError):
    """No kernel can run an op on a device, or a kernel failed while running."""


class RecordsError(TgbenchError):
    """A record database is locked, damaged, foreign, of another schema, or holds wrong values."""


class UnreadableRecordsError(RecordsError):
    """What a record database holds is no use: it is damaged, foreign, or of an older release."""


class RecordsWarning(UserWarning):
    """The user's own record database cannot be used, or was damaged and put aside."""


class SearchError(TgbenchError):
    """A search in another process cannot be started, or ended before it had a plan."""


class PackingError(TgbenchError):
    """A file of buffers is damaged, or the complete packing search cannot run here."""


class ImporterError(TgbenchError):
    """A PyTorch module, exported program or file cannot become a graph."""


class UnsupportedOpError(ImporterError):
    """A module uses PyTorch ops that no graph can hold: random ones, shapes that depend on values.

    Attributes:
        ops: their names, in the order of first use.
    """

    def __init__(self, message: str, ops: tuple[str, ...]) -> None:
        super().__init__(message)
        self.ops = ops


class ExactnessError(TgbenchError):
    """No kernel of an op promises the same bits in every run, or the promise no longer holds."""


class CheckError(TgbenchError):
    """A session does not give the outputs it should (`CheckReport.assert_passed`)."""


class WidgetError(TgbenchError):
    """An interactive view cannot be shown here, or was asked for something it does not have."""


class ExportError(TgbenchError):
    """A file is none that can be exported, or not in the form that was asked for."""


def check_choice(
    error: type[TgbenchError], what: str, given: Any, choices: Collection[str]
) -> None:
    """Raise an error that names the choices unless one of them is given."""
    if not isinstance(given, str) or given not in choices:
        raise error(f"{what}={given!r} is not known; use one of {', '.join(choices)}")


def check_kind(
    error: type[TgbenchError], what: str, given: Any, kinds: type | tuple[type, ...], mend: str
) -> None:
    """Raise an error that says what to pass unless one of some kinds is given, or None.

    >>> check_kind(TgbenchError, "arena", 5, str, "pass a name")
    Traceback (most recent call last):
    tgbench.base.errors.TgbenchError: arena=5 is an int; pass a name
    """
    if given is not None and not isinstance(given, kinds):
        raise error(f"{what}={shorten(given)} is {kind_of_value(given)}; {mend}")


def check_flag(error: type[TgbenchError], what: str, given: Any) -> None:
    """Raise an error unless True or False is given: other things count as true, "no" among them.

    >>> check_flag(TgbenchError, "check", "no")
    Traceback (most recent call last):
    tgbench.base.errors.TgbenchError: check='no' is a str; pass True or False
    """
    if not isinstance(given, bool):
        raise error(f"{what}={shorten(given)} is {kind_of_value(given)}; pass True or False")


def check_callable(error: type[TgbenchError], what: str, given: Any, mend: str) -> None:
    """Raise an error that says what to pass unless something is given that can be called, or None.

    >>> check_callable(TgbenchError, "stop", 3, "pass one that is asked, or None")
    Traceback (most recent call last):
    tgbench.base.errors.TgbenchError: stop=3 is no function; pass one that is asked, or None
    """
    if given is not None and not callable(given):
        raise error(f"{what}={shorten(given)} is no function; {mend}")


def check_number(
    error: type[TgbenchError],
    what: str,
    given: Any,
    least: float = 0.0,
    whole: bool = False,
    optional: bool = True,
) -> None:
    """Raise an error that says what is allowed unless a finite number of at least so much is given;
    `whole`: an integer that 64 bits hold, as files have them; `optional`: or None.

    >>> check_number(TgbenchError, "steps", 2.5, whole=True)
    Traceback (most recent call last):
    tgbench.base.errors.TgbenchError: steps=2.5 is not an integer of at least 0; pass one
    """
    if given is None and optional:
        return
    is_number = isinstance(given, Integral if whole else Real) and not isinstance(given, bool)
    if not is_number or not least <= given < (MOST_INTEGER if whole else inf):
        kind = "an integer" if whole else "a number"
        is_long = is_number and given >= MOST_INTEGER
        most = " that 64 bits hold" if whole and is_long else ""
        raise error(f"{what}={shorten(given)} is not {kind} of at least {least:g}{most}; pass one")
