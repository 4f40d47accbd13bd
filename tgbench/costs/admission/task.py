"""A kernel task: a folder with all that somebody needs who writes a kernel for one node."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from tgbench.base.errors import KernelError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.graph_file import save_graph

WORDS = """# Kernel task: `{op}`

Write `run(out, {names}, **attributes)` in `kernel.py`. It computes `{op}`, as in node `{node}`:

{types}

with the attributes `{attrs}`. The reference is in `reference.py`; its definition in the op table is

```python
{definition}
```

What is asked of it:

- `out` and the inputs are torch tensors on the CPU. Their strides may be any; sizes may differ
  from those above.
- All of `out` is written, and nothing else: no input, no byte around or between.
- It is as close to the float64 reference as the dtype allows (1e-4 of the largest number for
  float32), for large numbers and zeros as well.
- What it computes for a part of the result has the bits that it has in the whole: sums must not
  depend on how many rows there are, nor on where they lie.

The file stands by itself: it imports nothing of this folder. `pytest test_kernel.py` tries it;
`python benchmark.py` times it beside the kernels that there are; `tgbench kernel admit kernel.py`
checks all of this in another process, keeps the file under its hash, and prints the name by which a
session has it: `GraphSession(…, kernels=["name@hash"])`.
"""

KERNEL = '''"""A kernel of {op}; see TASK.md. This one is right, and slow."""

import numpy as np
import torch

import tgbench.graph.ops  # fills the table
from tgbench.graph.op_table import OPS

OP = "{op}"
DTYPES = {dtypes}


def run(out, {names}, **attributes):
    arrays = [np.asarray(x) for x in ({names},)]
    out.copy_(torch.as_tensor(OPS[OP].reference(attributes, *arrays)))
'''

REFERENCE = '''"""The op by NumPy, as the op table has it."""

import numpy as np

from tgbench.graph.op_table import OPS
import tgbench.graph.ops  # fills the table

ATTRIBUTES = {attrs!r}


def reference({names}):
    arrays = [np.asarray(x) for x in ({names},)]
    return np.asarray(OPS["{op}"].reference(ATTRIBUTES, *arrays))
'''

TEST = '''"""The checks of `tgbench kernel admit`, without keeping anything."""

from pathlib import Path

from tgbench.costs.admission.candidate import read
from tgbench.costs.admission.checks import check
from tgbench.graph.graph_file import load_graph

HERE = Path(__file__).parent


def test_kernel():
    (node,) = load_graph(HERE / "task.json").outputs.values()
    assert check(read((HERE / "kernel.py").read_text()), node.call, print)
'''

BENCHMARK = '''"""The kernel beside those that there are, at the task's sizes, in turns."""

import statistics
import time
from pathlib import Path

from tgbench.costs.admission.candidate import kernel_of, read
from tgbench.costs.probe import Twin
from tgbench.base.regions import Box
from tgbench.graph.graph_file import load_graph
from tgbench.kernels import KERNELS

HERE = Path(__file__).parent
(node,) = load_graph(HERE / "task.json").outputs.values()
twin, box = Twin.of(node.call, "cpu"), Box.full(node.shape)
kernels = [*KERNELS[node.op], kernel_of(read((HERE / "kernel.py").read_text()), "kernel.py")]
kernels = [kernel for kernel in kernels if twin.run(kernel, box) is not None]
took = {kernel.name: [] for kernel in kernels}
for _ in range(20):
    for kernel in kernels:
        began = time.perf_counter_ns()
        twin.run(kernel, box)
        took[kernel.name].append(time.perf_counter_ns() - began)
for name, times in sorted(took.items(), key=lambda one: statistics.median(one[1])):
    print(f"{statistics.median(times) / 1e3:10.1f} µs  {name}")
'''


def write_task(graph: Graph, name: str, folder: str | Path) -> Path:
    """Write the task of a node into a new folder. Raises KernelError for a node that has none."""
    node = next((one for one in graph.nodes if one.name == name), None)
    if node is None:
        near = ", ".join([one.name for one in graph.nodes if not one.is_leaf][:8])
        raise KernelError(f"the graph has no node {name}; it has {near} …")
    if node.is_leaf or not node.inputs:
        raise KernelError(f"{name} is not computed from anything; choose a node with inputs")
    here = Path(folder)
    try:
        here.mkdir(parents=True)
    except OSError as error:
        raise KernelError(f"{here}: cannot be made ({error}); choose a new folder") from None
    save_graph(_alone(node), here / "task.json")
    for file, text in _files(node).items():
        (here / file).write_text(text, encoding="utf-8")
    return here


def _alone(node: Node) -> Graph:
    """The graph of this one op."""
    g = GraphBuilder()
    inputs = [g.input(f"x{i}", one.shape, one.dtype) for i, one in enumerate(node.inputs)]
    g.output("y", g.apply(node.op, *inputs, **node.attrs))
    return g.build()


def _files(node: Node) -> dict[str, str]:
    call, names = node.call, ", ".join(f"x{i}" for i in range(len(node.inputs)))
    dtypes = (*(type_.dtype for type_ in call.inputs), call.out.dtype)
    types = "\n".join(f"- `x{i}`: `{type_}`" for i, type_ in enumerate(call.inputs))
    try:
        definition = textwrap.dedent(inspect.getsource(call.op.reference)).strip()
    except (OSError, TypeError):  # a function of NumPy's own
        definition = str(call.op.reference)
    said = {"op": node.op, "names": names, "attrs": dict(node.attrs), "dtypes": dtypes}
    words = WORDS.format(
        **said, node=node.name, types=f"{types}\n- `out`: `{call.out}`", definition=definition
    )
    return {
        "TASK.md": words,
        "kernel.py": KERNEL.format(**said),
        "reference.py": REFERENCE.format(**said),
        "test_kernel.py": TEST,
        "benchmark.py": BENCHMARK,
    }
