"""tgbench: exact incremental programs of tensor graphs under a memory budget.

Nothing is loaded before it is asked for: the first public name loads all of them (`tgbench.front`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tgbench.front import *
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a room that the front page loads. Dunder names load nothing."""
        if name != "__all__" and name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        front = import_module(f"{__name__}.front")
        globals().update({public: getattr(front, public) for public in front.__all__})
        if name == "__all__":
            return front.__all__
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        """For completion: the public names too."""
        return sorted({*globals(), *__getattr__("__all__")})
