"""A graph laid out by Graphviz, every node for itself: for pages and slides.

`views.graphs` folds equal layers and needs nothing; this needs the package graphviz, and Graphviz.
"""

from __future__ import annotations

from tgbench.base.errors import ExportError
from tgbench.graph.graph import Graph


def rendered(graph: Graph, form: str) -> bytes:
    """The contents of a file: "png", "pdf", or another form that Graphviz writes.

    Raises ExportError where the package or the program is missing.
    """
    try:
        import graphviz
    except ModuleNotFoundError as error:
        raise ExportError(
            f"a graph as .{form} needs {error.name}; install it with: pip install 'tgbench[lab]', "
            "or write .svg"
        ) from error
    try:
        found: bytes = graphviz.Source(graph.to_dot()).pipe(format=form)
    except graphviz.ExecutableNotFound as error:
        raise ExportError(
            f"a graph as .{form} needs Graphviz's program `dot`, which is not on the PATH; install "
            "Graphviz (apt install graphviz, brew install graphviz), or write .svg"
        ) from error
    return found
