"""The scripts of the screen, as one text: plain ES modules of the folder `widgets/`.

In an installed package that is `tgbench/_widgets/`. Nothing comes from a network.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tgbench.base.errors import WidgetError

PACKAGED = Path(__file__).parents[2] / "_widgets"
CHECKOUT = Path(__file__).parents[3] / "widgets"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(
    r"^export (?:(?=(?:const|let|function|class|async) )|default .*\n)", re.MULTILINE
)


def folder() -> Path:
    """Where the scripts are; raises WidgetError if the package came without them."""
    for place in (PACKAGED, CHECKOUT):
        if (place / "screen.js").exists():
            return place
    raise WidgetError(f"the scripts of the views are missing in {PACKAGED}; install tgbench again")


def style() -> str:
    return (folder() / "screen.css").read_text(encoding="utf-8")


@cache
def module(name: str) -> str:
    """One ES module without imports: a script with those that it imports written before it.

    Scripts import by `import { … } from "./name.js";` on one line, and every name at the top level
    of one stands for the same thing in all.
    """
    found: list[str] = []
    _collect(name, found)
    parts = [(folder() / part).read_text(encoding="utf-8") for part in found]
    last = IMPORT.sub("", parts[-1])
    return "\n".join([*(EXPORT.sub("", IMPORT.sub("", part)) for part in parts[:-1]), last])


def _collect(name: str, found: list[str]) -> None:
    """Append a script's imports, then the script."""
    if name not in found:
        for wanted in IMPORT.findall((folder() / name).read_text(encoding="utf-8")):
            _collect(wanted, found)
        found.append(name)
