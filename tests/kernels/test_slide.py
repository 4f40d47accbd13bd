"""Moving elements onto bytes that some of them lie in, beside a copy made before."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tgbench.kernels.torch.layout import slide_

DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool)


@given(st.data())
def test_elements_are_read_before_they_are_written_over(data: st.DataObject) -> None:
    """Any window of any part, either way, along any dimension, whatever order these lie in."""
    rank = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
    order = data.draw(st.permutations(range(rank)))
    flat = torch.arange(3000).to(data.draw(st.sampled_from(DTYPES)))
    strides, step = [0] * rank, 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    slot = flat[7 : 7 + step].as_strided(shape, strides, 7)
    part = tuple(slice(a, data.draw(st.integers(a + 1, n)))
                 for n in shape for a in [data.draw(st.integers(0, n - 1))])  # fmt: skip
    axis = data.draw(st.integers(0, rank - 1))
    first, last = part[axis].start, part[axis].stop
    by = data.draw(st.integers(-first, shape[axis] - last))
    there = (*part[:axis], slice(first + by, last + by), *part[axis + 1 :])

    expected = slot.clone()
    expected[there] = slot[part].clone()
    slide_(slot[there], slot[part])
    assert torch.equal(slot, expected)
    assert torch.equal(flat[:7], torch.arange(7).to(flat.dtype))
    assert torch.equal(flat[7 + step :], torch.arange(7 + step, 3000).to(flat.dtype))
