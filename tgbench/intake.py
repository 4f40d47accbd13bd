"""What comes into a session: inputs checked, wishes read, changes found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.buckets import Bucket, BucketSpace, difference, region_of_index
from tgbench.errors import DemandError, HintError, InputError
from tgbench.graph import Graph, Node
from tgbench.optable import FLOATS, numpy_dtype
from tgbench.regions import EMPTY, Region

Array = NDArray[Any]


class Intake:
    """Reads the arguments of `run` against one graph.

    `unused` are inputs that no output depends on: they are checked and go no further.
    """

    def __init__(self, graph: Graph, space: BucketSpace, unused: Mapping[str, Node]) -> None:
        self.graph = graph
        self.space = space
        self.unused = unused
        self._limits = _index_limits(graph)
        known = {**graph.inputs, **unused, **graph.states}
        self._dtypes = {name: numpy_dtype(node.dtype) for name, node in known.items()}

    def arrays(self, inputs: Mapping[str, Any], held: Mapping[str, Array]) -> dict[str, Array]:
        """Every input as a checked array; inputs left out keep the value they are `held` at."""
        for name in inputs:
            self._require_known(name)
            if name in self.unused:
                self._checked(name, self.unused[name], inputs[name])
        arrays: dict[str, Array] = {}
        for name, node in self.graph.inputs.items():
            if name in inputs:
                arrays[name] = self._checked(name, node, inputs[name])
            elif name in held:
                arrays[name] = held[name]
            else:
                raise InputError(f"input {name!r} ({node.type}) has no value yet; pass it")
        return arrays

    def _require_known(self, name: str) -> None:
        if name not in self.graph.inputs and name not in self.unused:
            known = ", ".join([*self.graph.inputs, *self.unused])
            raise InputError(f"unknown input {name!r}; this graph takes {known}")

    def hints(self, changed: Mapping[str, Any] | None) -> dict[str, Region] | None:
        """`changed=` as regions by name."""
        if changed is None:
            return None
        found, known = {}, {**self.graph.inputs, **self.unused}
        for name, index in changed.items():
            self._require_known(name)
            node = known[name]
            found[name] = region_of_index(index, node.shape, f"changed {name}")
        return found

    def rounded_states(self, changed: Mapping[str, Region]) -> dict[str, Region]:
        """What changed of the states, rounded so that few classes arise.

        Where no rounding is asked for, states that are written whole change in boxes of extents
        that are powers of two: which of their elements move is in the numbers, not in the graph.
        """
        found = {}
        for name, region in changed.items():
            shape = self.graph.states[name].shape
            writes = self.graph.writes.get(name, ())
            is_whole = any(write.value.shape == shape for write in writes)
            plain = is_whole and name not in self.space.rounding
            space = BucketSpace({name: "pow2"}) if plain else self.space
            found[name] = space.round(name, region, shape)
        return found

    def checked_state(self, node: Node, value: Any) -> Array:
        """A state's new value as an array; raises InputError like an input's does."""
        array = self._checked(node.name, node, value)
        if node.dtype in FLOATS and not np.isfinite(array).all():
            raise InputError(f"state {node.name!r} cannot hold NaN or infinity; mend the value")
        return array

    def _checked(self, name: str, node: Node, value: Any) -> Array:
        if isinstance(value, torch.Tensor):
            if str(value.dtype).removeprefix("torch.") != node.dtype:
                raise InputError(
                    f"{name} is {value.dtype}, the graph takes {node.type}; convert it"
                )
            value = value.detach().cpu()
            value = (value.float() if node.dtype == "bfloat16" else value).numpy()
        array = np.asarray(value)
        if array.dtype != self._dtypes[name]:
            raise InputError(
                f"{name} is {array.dtype}, the graph takes {node.type}; "
                f"convert it (`{name}.astype('{numpy_dtype(node.dtype)}')`)"
            )
        if array.shape != node.shape:
            raise InputError(f"{name} has shape {list(array.shape)}, the graph takes {node.type}")
        return array

    def rounded(self, bucket: Bucket) -> Bucket:
        """A bucket as runs with such changes will have it."""
        shapes = {name: node.shape for name, node in self.graph.inputs.items()}
        changed = {
            name: self.space.round(name, region, shapes[name]) for name, region in bucket.changed
        }
        return Bucket.of(changed, dict(bucket.demand))

    def check_values(self, name: str, array: Array, region: Region) -> None:
        """Raise InputError for values that no graph can take, in the part that is new."""
        limit, node = self._limits.get(name), self.graph.inputs[name]
        if limit is None and node.dtype not in FLOATS:
            return
        for box in region:
            part = array[box.slices()]
            if node.dtype in FLOATS and not np.isfinite(part).all():
                found = np.argwhere(~np.isfinite(array))[0]
                where = tuple(int(i) for i in found)
                raise InputError(f"{name} is {array[where]} at {where}; inputs must be finite")
            if limit is None:
                continue
            least, most = (part.item(),) * 2 if part.size == 1 else (part.min(), part.max())
            if not 0 <= least <= most < limit:
                raise InputError(
                    f"{name} holds {array.min()}..{array.max()}, but it picks rows of a table "
                    f"with {limit}; values must be in 0..{limit - 1}"
                )

    def wanted(self, want: Mapping[str, Any] | None) -> dict[str, tuple[Region, Any]]:
        """The region of each wanted output, and the index it was asked for by."""
        outputs = self.graph.outputs
        if want is None:
            return {name: (Region.full(node.shape), ...) for name, node in outputs.items()}
        result = {}
        for name, index in want.items():
            if name not in outputs:
                raise DemandError(f"unknown output {name!r}; this graph gives {', '.join(outputs)}")
            shape = outputs[name].shape
            parts = index if isinstance(index, list) and index else ()
            for part in parts:
                if region_of_index(part, shape, name).is_empty:
                    raise DemandError(f"{name}: {part} asks for nothing; leave it out of `want`")
            region = region_of_index(index, shape, name)
            if region.is_empty:
                raise DemandError(f"{name}: {index} asks for nothing; leave it out of `want`")
            result[name] = (region, index)
        return result

    def differences(
        self,
        arrays: Mapping[str, Array],
        held: Mapping[str, Array],
        changed: Mapping[str, Region] | None,
        check: bool,
    ) -> dict[str, Region]:
        """The parts of the inputs that differ from what they were `held` at, rounded up."""
        found: dict[str, Region] = {}
        for name, array in arrays.items():
            if array is held[name]:
                continue
            if changed is None:
                region = difference(held[name], array)
            else:
                region = changed.get(name, EMPTY)
                if check:
                    _check_hint(name, region, difference(held[name], array))
            if region.boxes:
                self.check_values(name, array, region)
                found[name] = self.space.round(name, region, array.shape)
        return found


def _check_hint(name: str, hint: Region, found: Region) -> None:
    missed = found.subtract(hint)
    if missed.boxes:
        raise HintError(f"{name} changed at {missed}, which `changed` leaves out; widen it")


def _index_limits(graph: Graph) -> dict[str, int]:
    """Inputs that pick rows of a table, with the smallest such table's length."""
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op not in ("gather", "scatter"):
            continue
        index = node.inputs[1]
        while index.op in ("reshape", "permute", "slice", "expand", "cast"):
            index = index.inputs[0]
        if index.op == "input":
            length = int(node.inputs[0].shape[node.attrs["axis"]])
            limits[index.name] = min(limits.get(index.name, length), length)
    return limits
