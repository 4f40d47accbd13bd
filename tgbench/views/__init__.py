"""Views: values in, pictures out. The payloads are plain data, tested without a browser.

The screen is imported when it is first asked for, as `tgbench.views.explore`; it needs the `lab`
extra.
"""

from importlib import import_module
from typing import Any

LAZY = {"Screen": "panels.screen", "explore": "panels.screen", "page": "pages.screen_page"}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LAZY[name]}"), name)
