"""Model configurations: `config.json` of a Hugging Face checkpoint, read and checked.

A builder asks for the fields it understands; a field that changes what the model computes and that
it does not support is refused by name, so that a graph is never silently another model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from tgbench.base.errors import GraphError
from tgbench.base.strict_json import parsed, read_text
from tgbench.base.words import shorten

Source: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"

MOST = 1 << 40  # of any size
MOST_LAYERS = 1000  # each is built; a configuration is a few bytes


def load_config(source: Source) -> dict[str, Any]:
    """The fields of a configuration: a mapping, a `config.json`, or the folder that holds one.

    Raises `GraphError` for a file that is missing or no JSON object.

    >>> load_config({"hidden_size": 64})
    {'hidden_size': 64}
    """
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    with suppress(OSError):  # reading it says what is wrong with it
        path = path / "config.json" if path.is_dir() else path

    def refuse(fault: str) -> GraphError:
        return GraphError(
            f"{path}: no configuration can be read ({fault}); give the folder of a checkpoint, "
            "its config.json, or a dict"
        )

    config = parsed(read_text(path, refuse), refuse)
    if not isinstance(config, dict):
        raise GraphError(f"{path}: holds no JSON object; download the checkpoint again")
    return config


@contextmanager
def errors_of(source: Source) -> Iterator[None]:
    """What is wrong with a field is said with the file that has it, if there is one."""
    try:
        yield
    except GraphError as error:
        if isinstance(source, Mapping):
            raise
        raise GraphError(f"{source}: {error}") from error


def size_of(
    config: Mapping[str, Any], field: str, default: int | None = None, most: int = MOST
) -> int:
    """A field that must be a positive integer, and not above `most`."""
    value = config.get(field, default)
    if type(value) is not int or value <= 0:  # `type`, because True is an instance of int
        raise GraphError(f"config: {field} is {shorten(value)}, not a positive integer; set it")
    if value > most:
        raise GraphError(f"config: {field} is {shorten(value)}, more than {most}; set it")
    return value


def layers_of(config: Mapping[str, Any]) -> int:
    """How many layers there are."""
    return size_of(config, "num_hidden_layers", most=MOST_LAYERS)


def number_of(config: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """A field that must be a positive number."""
    value = config.get(field, default)
    if type(value) in (int, float) and 0 < value < math.inf:
        return float(value)
    raise GraphError(f"config: {field} is {shorten(value)}, not a positive number; set it")


def choice_of(
    config: Mapping[str, Any], field: str, choices: Mapping[str, str], default: str
) -> str:
    """What a field's value stands for."""
    value = config.get(field, default)
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise GraphError(f"config: {field} is {shorten(value)}; use one of {', '.join(choices)}")


def refuse(config: Mapping[str, Any], field: str, *plain: object, mend: str) -> None:
    """Raise `GraphError` unless a field is absent, None, or one of its `plain` values."""
    value = config.get(field)
    if value is not None and value not in plain:
        raise GraphError(
            f"config: {field} is {shorten(value)}, which tgbench does not build; {mend}"
        )
