"""What a check found: a table of outputs, the node to blame, the edits that go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tgbench.base.errors import CheckError
from tgbench.base.words import counted, ruled
from tgbench.session.check.edits import EditFailure
from tgbench.session.check.nodes import NodeCheck

if TYPE_CHECKING:
    import pandas as pd

AROUND = 3  # nodes shown before and behind the one to blame


@dataclass(frozen=True)
class OutputCheck:
    """One output of one pair: the largest errors, and the largest relative one allowed."""

    pair: int
    output: str
    dtype: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.relative <= self.tolerance


class Cause(Enum):
    """Why outputs differ."""

    KERNEL = "a node is wrong by itself"
    GROWTH = "no node is wrong by itself: rounding errors grow"
    GRAPH = "the graph is computed as it says, and it is not what the pairs came from"
    ORIGINAL = "the graph says something else than the original here"
    MEMORY = "every node is right when all are kept: the session's memory map or programs are wrong"
    INCREMENTAL = "a run from nothing is right: the incremental one was wrong"


@dataclass(frozen=True)
class Blame:
    """Why a pair fails, and the first node to blame, if one is."""

    pair: int
    cause: Cause
    node: NodeCheck | None = None

    def __str__(self) -> str:
        where = f": {self.node.name} = {self.node.op}" if self.node is not None else ""
        return f"pair {self.pair}: {self.cause.value}{where}"


@dataclass(frozen=True)
class CheckReport:
    """What `check` found; it prints as a table, `assert_passed` raises.

    Fields:
        outputs: every output of every pair.
        verdict: why the first pair that fails does, where that was looked for.
        nodes: every node of that pair.
        edits: how many were tried.
        failure: the edits after which a run goes wrong.
        rounded: how many weights are held in less than they are stored in.
        inexact: how many products may be of factors in less (`arithmetic`).
    """

    outputs: tuple[OutputCheck, ...]
    verdict: Blame | None = None
    nodes: tuple[NodeCheck, ...] = ()
    edits: int = 0
    failure: EditFailure | None = None
    rounded: int = 0
    inexact: int = 0

    @property
    def passed(self) -> bool:
        return self.failure is None and all(output.passed for output in self.outputs)

    @property
    def rows(self) -> pd.DataFrame:
        """One row an output: pair, output, dtype, absolute, relative, tolerance, passed."""
        import pandas as pd

        names = ["pair", "output", "dtype", "absolute", "relative", "tolerance", "passed"]
        return pd.DataFrame(
            [[getattr(row, name) for name in names] for row in self.outputs], columns=names
        )

    @property
    def node_rows(self) -> pd.DataFrame:
        """One row a node: node, op, shape, box, own, total, original, tolerance, kernels."""
        import pandas as pd

        return pd.DataFrame([_node_row(node) for node in self.nodes], columns=list(NODE_COLUMNS))

    def assert_passed(self) -> None:
        """Raise CheckError, with the table, unless everything is right."""
        if not self.passed:
            raise CheckError(f"the check failed\n{self}")

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        blamed = self.verdict.node if self.verdict is not None else None
        return {
            "passed": self.passed,
            "outputs": self.rows.to_dict("records"),
            "verdict": None if self.verdict is None else str(self.verdict),
            "cause": None if self.verdict is None else self.verdict.cause.name.lower(),
            "node": None if blamed is None else _plain(blamed),
            "edits": self.edits,
            "rounded": self.rounded,
            "inexact": self.inexact,
            "failure": None if self.failure is None else {
                "pair": self.failure.pair,
                "fault": self.failure.fault,
                "python": self.failure.python,
            },
        }  # fmt: skip

    def __str__(self) -> str:
        right = sum(output.passed for output in self.outputs)
        parts = [
            ruled(
                ("pair", "output", "absolute", "relative", "allowed", ""),
                [
                    (str(o.pair), f"{o.output}: {o.dtype}", f"{o.absolute:.2e}",
                     f"{o.relative:.2e}", f"{o.tolerance:.0e}", "" if o.passed else "differs")
                    for o in self.outputs
                ],
            ),
            f"{right:,} of {_outputs(len(self.outputs))} right",
        ]  # fmt: skip
        if self.rounded:
            parts.append(f"{counted(self.rounded, 'weight')} rounded (weights_dtype): these errors "
                         "are of that too")  # fmt: skip
        if self.inexact:
            parts.append(f"{counted(self.inexact, 'product')} of factors that may be rounded "
                         "(arithmetic): these errors are of that too")  # fmt: skip
        if self.verdict is not None:
            parts += ["", str(self.verdict)]
        if self.nodes:
            parts += ["", self._around()]
        if self.failure is not None:
            parts += ["", str(self.failure)]
        elif self.edits:
            parts += [f"{self.edits} edits: every run equals one that computes everything"]
        return "\n".join(parts)

    def _around(self) -> str:
        """The nodes next to the one to blame; without one, those with the largest errors."""
        blamed = self.verdict.node if self.verdict is not None else None
        if blamed is None:
            shown: Sequence[NodeCheck] = sorted(self.nodes, key=lambda n: -n.own)[: 2 * AROUND]
        else:
            at = self.nodes.index(blamed)
            shown = self.nodes[max(0, at - AROUND) : at + AROUND + 1]
        rows = [
            (("→ " if node is blamed else "  ") + node.name, node.op,
             f"{node.dtype}{list(node.shape)}" if node.box is None else str(node.box),
             f"{node.own:.1e}", f"{node.total:.1e}",
             "" if node.original is None else f"{node.original:.1e}", ", ".join(node.kernels))
            for node in shown
        ]  # fmt: skip
        return ruled(("  node", "op", "box", "own", "total", "original", "kernel"), rows)


NODE_COLUMNS = ("node", "op", "shape", "box", "own", "total", "original", "tolerance", "kernels")


def _node_row(node: NodeCheck) -> list[Any]:
    box = None if node.box is None else str(node.box)
    return [
        node.name, node.op, list(node.shape), box, node.own, node.total, node.original,
        node.tolerance, ", ".join(node.kernels),
    ]  # fmt: skip


def _plain(node: NodeCheck) -> dict[str, Any]:
    return dict(zip(NODE_COLUMNS, _node_row(node), strict=True))


def _outputs(count: int) -> str:
    return f"{counted(count, 'output')} {'is' if count == 1 else 'are'}"
