"""For every entry of the importer's table a call, to be compared with PyTorch.

A family is one module: a function per output. Tensors that are made outside are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers.integrations import moe  # noqa: F401  (it registers an op)

aten = torch.ops.aten
Case = Callable[..., Any]
RANDOM = torch.Generator().manual_seed(7)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=RANDOM)


INPUTS = {
    "x": normal(2, 4, 6),
    "y": normal(2, 4, 6),
    "p": normal(2, 4, 6).abs() + 0.5,
    "i": torch.randint(-4, 5, (2, 4, 6), generator=RANDOM),
    "b": normal(2, 4, 6) > 0,
    "f": normal(6),
    "n": torch.randint(0, 4, (3, 2), generator=RANDOM),
}
IMAGES = {"img": normal(1, 4, 8, 8), "sig": normal(1, 4, 12), "vol": normal(1, 4, 4, 4, 4)}
W, V, CUBE = normal(4, 6), normal(6), normal(3, 6, 5)
EXPERTS, OFFSETS = normal(3, 6, 4), torch.tensor([3, 3, 8], dtype=torch.int32)
HIDDEN = normal(2, 2, 3)  # of both directions, two samples
GATES = {n: [normal(3 * n, 6), normal(3 * n, 3), normal(3 * n), normal(3 * n)] for n in (1, 3, 4)}

UNARY = [
    "abs", "ceil", "cos", "erf", "exp", "floor", "neg", "round", "sigmoid", "sign", "sin", "tanh",
    "square", "positive", "relu", "detach", "clone", "ravel", "alias", "lift_fresh_copy",
    "resolve_conj", "resolve_neg", "detach_", "atan", "cosh", "exp2", "expm1",
    "isnan", "sinh", "tan", "trunc", "hardsigmoid", "hardswish", "mish", "relu6",
]  # fmt: skip


def unary(name: str) -> Case:
    return lambda x, **_: getattr(aten, name).default(x * 1.0)


def power(exponent: float) -> Case:
    return lambda p, **_: p**exponent


def comparison(name: str, form: str) -> Case:
    op = getattr(getattr(aten, name), form)
    return lambda x, i, **_: op(x, i if form == "Tensor" else 0.5)


def resized(name: str, mode: str, form: str, value: float) -> Case:
    return lambda **given: F.interpolate(given[name], mode=mode, **{form: value})


ELEMENTWISE: dict[str, Case] = {
    **{name: unary(name) for name in UNARY},
    "log": lambda p, **_: p.log(),
    "sqrt": lambda p, **_: p.sqrt(),
    "rsqrt": lambda p, **_: p.rsqrt(),
    "reciprocal": lambda p, **_: p.reciprocal(),
    "sin of integers": lambda i, **_: i.sin(),
    "mul": lambda x, y, **_: x * y,
    "mul of bool and float": lambda x, b, **_: b * x,
    "mul scalar": lambda i, **_: aten.mul.Scalar(i, 2.5),
    "maximum": lambda x, i, **_: torch.maximum(x, i),
    "minimum": lambda x, y, **_: torch.minimum(x, y),
    "remainder": lambda i, **_: i % 3,
    "remainder tensor": lambda x, p, **_: torch.remainder(x, p),
    "add": lambda x, i, **_: torch.add(x, i, alpha=2),
    "add scalar": lambda i, **_: aten.add.Scalar(i, 1),
    "integers and a float": lambda i, **_: i + 0.5,
    "sub": lambda x, f, **_: torch.sub(x, f, alpha=0.5),
    "sub scalar": lambda x, **_: aten.sub.Scalar(x, 1.0),
    "rsub": lambda x, **_: torch.rsub(x, 3.0),
    "rsub tensor": lambda x, f, **_: torch.rsub(x, f),
    "div": lambda i, **_: i / 4,
    "div scalar": lambda x, **_: aten.div.Scalar(x, 3.0),
    "true divide": lambda x, p, **_: aten.true_divide.Tensor(x, p),
    "div floor": lambda i, **_: torch.div(i, 3, rounding_mode="floor"),
    "div trunc": lambda x, p, **_: torch.div(x, p, rounding_mode="trunc"),
    "div mode scalar": lambda x, **_: aten.div.Scalar_mode(x, 0.3, rounding_mode="floor"),
    "floor divide": lambda i, **_: i // 2,
    "floor divide scalar": lambda i, **_: aten.floor_divide.Scalar(i, 2),
    "pow": lambda p, x, **_: p**x,
    "pow of scalar": lambda x, **_: 2.0**x,
    **{f"pow {e}": power(e) for e in (1, 2, 3, 0.5, -0.5, -1, 1.7)},
    **{
        f"{name} {form}": comparison(name, form)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Tensor", "Scalar")
    },
    "int against float": lambda i, **_: i > 0.5,
    "asin": lambda x, **_: (x / 10).asin(),
    "acos": lambda x, **_: (x / 10).acos(),
    "log10": lambda p, **_: p.log10(),
    "log1p": lambda p, **_: p.log1p(),
    "log2": lambda p, **_: p.log2(),
    "atan2": lambda x, y, **_: torch.atan2(x, y),
    "isinf": lambda x, **_: (x / torch.zeros(6)).isinf(),
    "bitwise and": lambda b, x, **_: torch.bitwise_and(b, x > 0),
    "bitwise or": lambda b, x, **_: torch.bitwise_or(b, x > 0),
    "and": lambda b, x, **_: b & (x > 0),
    "and scalar": lambda b, **_: aten.bitwise_and.Scalar(b, True),
    "__and__": lambda b, x, **_: aten.__and__.Tensor(b, x > 0),
    "__and__ scalar": lambda b, **_: aten.__and__.Scalar(b, True),
    "or": lambda b, x, **_: b | (x > 0),
    "or scalar": lambda b, **_: aten.bitwise_or.Scalar(b, False),
    "__or__": lambda b, x, **_: aten.__or__.Tensor(b, x > 0),
    "__or__ scalar": lambda b, **_: aten.__or__.Scalar(b, False),
    "xor": lambda b, x, **_: aten.bitwise_xor.Tensor(b, x > 0),
    "__xor__": lambda b, x, **_: aten.__xor__.Tensor(b, x > 0),
    "not": lambda b, **_: ~b,
    "logical and": lambda i, x, **_: torch.logical_and(i, x),
    "logical or": lambda i, b, **_: torch.logical_or(i, b),
    "logical xor": lambda i, b, **_: torch.logical_xor(i, b),
    "logical not": lambda i, **_: torch.logical_not(i),
    "where": lambda b, x, i, **_: torch.where(b, x, i),
    "where other": lambda b, x, **_: torch.where(b, x, -1.0),
    "where self": lambda b, x, **_: torch.where(b, -1.0, x),
    "where scalars": lambda b, **_: torch.where(b, 1.0, 2.0),
    "masked fill": lambda x, b, **_: x.masked_fill(b, -math.inf),
    "masked fill tensor": lambda x, b, f, **_: x.masked_fill(b, f.sum()),
    "clamp": lambda x, **_: x.clamp(-0.5, 0.5),
    "clamp low": lambda i, **_: i.clamp(min=0),
    "clamp tensor": lambda x, f, **_: torch.clamp(x, max=f),
    "clamp min": lambda x, **_: aten.clamp_min.default(x, 0.1),
    "clamp min tensor": lambda x, f, **_: aten.clamp_min.Tensor(x, f),
    "clamp max": lambda x, **_: aten.clamp_max.default(x, 0.1),
    "clamp max tensor": lambda x, f, **_: aten.clamp_max.Tensor(x, f),
    "to int": lambda x, **_: x.to(torch.int32),
    "to layout": lambda x, **_: aten.to.dtype_layout(x, dtype=torch.float64),
    "to device": lambda x, **_: x.to(device="cpu", dtype=torch.float64),
    "to other": lambda x, i, **_: aten.to.other(x, i),
    "_to_copy": lambda x, **_: aten._to_copy.default(x, dtype=torch.float64),
    "type as": lambda x, i, **_: i.type_as(x),
    "contiguous": lambda x, **_: x.transpose(0, 1).contiguous(),
    "dropout": lambda x, **_: F.dropout(x, 0.5, training=False) * 2,
    "feature dropout": lambda x, **_: aten.feature_dropout.default(x, 0.5, False) * 2,
    "alpha dropout": lambda x, **_: F.alpha_dropout(x, 0.5, training=False) * 2,
    "fill": lambda x, **_: aten.fill.Scalar(x, 2.0) + x,
    "fill tensor": lambda x, f, **_: aten.fill.Tensor(x, f.sum()),
    "copy": lambda x, f, **_: aten.copy.default(x, f),
    "like": lambda x, **_: torch.zeros_like(x) + torch.ones_like(x) * x + x.new_full((6,), 2.0),
    "new": lambda x, **_: x.new_zeros(6) + x.new_ones(6) * x + torch.full_like(x, 3.0),
}

LAYOUT: dict[str, Case] = {
    "unfold": lambda x, **_: x.unfold(1, 2, 2),
    "unfold with overlap": lambda x, **_: x.unfold(-1, 3, 2),
    "diagonal": lambda x, **_: x.diagonal(0, 1, 2) + x.diagonal(-1, 0, 1).sum(),
    "diagonal above": lambda x, **_: x.diagonal(1, 1, -1),
    "diagonal below": lambda x, **_: x.diagonal(-3, 2, 1),
    "view": lambda x, **_: x.view(8, 6) * 1,
    "repeat_interleave": lambda x, **_: x.repeat_interleave(2, dim=1),
    "repeat_interleave flat": lambda x, **_: x.repeat_interleave(3),
    "reshape": lambda x, **_: x.transpose(0, 1).reshape(-1),
    "_unsafe_view": lambda x, **_: aten._unsafe_view.default(x, [8, 6]),
    "view_as": lambda x, y, **_: x.view_as(y.view(2, 24)),
    "reshape_as": lambda x, y, **_: aten.reshape_as.default(x, y.view(48)),
    "flatten": lambda x, **_: x.flatten(1),
    "unflatten": lambda x, **_: x.unflatten(-1, (2, 3)),
    "unsqueeze": lambda x, **_: x.unsqueeze(1),
    "squeeze": lambda x, **_: x.unsqueeze(1).squeeze(),
    "squeeze dim": lambda x, **_: x[None].squeeze(0),
    "squeeze dims": lambda x, **_: x[None, None].squeeze((0, 1)),
    "atleast": lambda f, **_: aten.atleast_1d.default(f.sum()),
    "permute": lambda x, **_: x.permute(2, 0, 1),
    "transpose": lambda x, **_: x.transpose(-1, 0),
    "swapaxes": lambda x, **_: aten.swapaxes.default(x, 0, 1),
    "swapdims": lambda x, **_: aten.swapdims.default(x, 0, 1),
    "t": lambda x, **_: x[0].t(),
    "mT": lambda x, **_: aten.mT.default(x),
    "numpy T": lambda x, **_: aten.numpy_T.default(x[0]),
    "movedim": lambda x, **_: x.movedim(0, 2),
    "movedims": lambda x, **_: x.movedim((0, 1), (2, 0)),
    "expand": lambda f, **_: f.expand(3, -1) * 1,
    "expand_as": lambda f, x, **_: f.expand_as(x) * 1,
    "broadcast_to": lambda f, **_: torch.broadcast_to(f, (2, 6)) * 1,
    "repeat": lambda x, **_: x.repeat(2, 1, 1, 3),
    "tile": lambda f, **_: f.tile(2, 2),
    "slice": lambda x, **_: x[:, 1:4:2, -3:],
    "narrow": lambda x, **_: x.narrow(2, 1, 3),
    "select": lambda x, **_: x[:, -1],
    "unbind": lambda x, **_: x.unbind(1)[2],
    "split": lambda x, **_: x.split(4, -1)[1],
    "split sizes": lambda x, **_: x.split([1, 2, 3], -1)[2],
    "split sizes again": lambda x, **_: aten.split.sizes(x, [1, 2, 3], -1)[1],
    "chunk": lambda x, **_: x.chunk(2, 1)[0],
    "tensor_split": lambda x, **_: x.tensor_split(4, -1)[1],
    "unsafe chunk": lambda x, **_: aten.unsafe_chunk.default(x, 2, 1)[0],
    "unsafe split": lambda x, **_: aten.unsafe_split.Tensor(x, 4, -1)[1],
    "cat": lambda x, i, **_: torch.cat([x, i], 1),
    "cat with nothing": lambda x, **_: torch.cat([torch.zeros(0), x], -1),
    "concat": lambda x, y, **_: aten.concat.default([x, y]),
    "concatenate": lambda x, y, **_: aten.concatenate.default([x, y]),
    "stack": lambda x, y, **_: torch.stack([x, y], 1),
    "tril": lambda x, **_: x.tril(-1),
    "triu": lambda x, **_: x.triu(2),
    "triu of flags": lambda b, **_: b.triu(),
    "flip": lambda x, **_: x.flip(0, 2),
    "roll": lambda x, **_: x.roll((1, -2), (0, 2)),
    "roll flat": lambda x, **_: x.roll(5),
    "constant pad": lambda x, **_: F.pad(x, (1, 2, 0, 3), value=2.0),
    "constant pad nd": lambda x, **_: aten.constant_pad_nd.default(x, [1, -2], 0.5),
    "pad reflect": lambda x, **_: F.pad(x, (2, 1), mode="reflect"),
    "pad replicate": lambda x, **_: F.pad(x, (2, 1), mode="replicate"),
    "pad circular": lambda x, **_: F.pad(x, (2, 1), mode="circular"),
    "reflection": lambda x, **_: aten.reflection_pad1d.default(x, [2, 1]),
    "reflection 2": lambda x, **_: aten.reflection_pad2d.default(x, [2, 1, 1, 0]),
    "replication": lambda x, **_: aten.replication_pad1d.default(x, [2, 1]),
    "replication 2": lambda x, **_: aten.replication_pad2d.default(x, [2, 1, 1, 0]),
    "slice_scatter": lambda x, y, **_: torch.slice_scatter(x, y[:, 1:3], 1, 2, 4),
    "select_scatter": lambda x, f, **_: torch.select_scatter(x, f.expand(2, 6), 1, -1),
}

REDUCTION: dict[str, Case] = {
    **{
        f"norm {order}": lambda x, order=order, **_: torch.linalg.vector_norm(x, order, dim=(0, -1))
        for order in (0, 1, 2, 2.5, float("inf"), -float("inf"))
    },
    "normalize": lambda x, **_: F.normalize(x, dim=1),
    "norm of everything": lambda x, **_: x.norm(),
    "sum": lambda x, **_: x.sum(),
    "sum of bools": lambda b, **_: b.sum(-1),
    "sum dims": lambda x, **_: x.sum((0, -1), keepdim=True),
    "mean": lambda x, **_: x.mean(),
    "mean dims": lambda x, **_: x.mean(1),
    "amax": lambda x, **_: x.amax((1, 2)),
    "amin": lambda x, **_: x.amin(-1, keepdim=True),
    "max": lambda x, **_: x.max(),
    "min": lambda i, **_: i.min(),
    "prod": lambda p, **_: p.prod(),
    "prod dim": lambda p, **_: p.prod(1),
    "any": lambda b, **_: b.any(),
    "any dim": lambda i, **_: i.any(1),
    "any dims": lambda b, **_: aten.any.dims(b, [0, 1]),
    "all": lambda i, **_: i.all(),
    "all dim": lambda b, **_: b.all(-1, keepdim=True),
    "all dims": lambda b, **_: aten.all.dims(b, [0, 1]),
    "var": lambda x, **_: x.var(1),
    "std": lambda x, **_: x.std((0, 1), keepdim=True),
    "var_mean": lambda x, **_: torch.cat(torch.var_mean(x, -1, correction=0)),
    "max with place": lambda x, **_: torch.cat([part.double() for part in x.max(1)]),
    "min with place": lambda x, **_: torch.cat([part.double() for part in x.min(-1, True)]),
    "argmax": lambda x, **_: x.argmax(-1),
    "argmax flat": lambda x, **_: x.argmax(),
    "argmin": lambda x, **_: x.argmin(1, keepdim=True),
    "argsort": lambda x, **_: torch.argsort(x, 1, True).double(),
    "topk": lambda x, **_: torch.cat([part.double() for part in x.topk(2, -1)]),
    "logsumexp": lambda x, **_: x.logsumexp((0, 2)),
    "sort": lambda x, **_: torch.cat([part.double() for part in x.sort(1, descending=True)]),
    "cumsum": lambda x, **_: x.cumsum(1),
    "cumsum of bools": lambda b, **_: b.cumsum(-1),
}

AT = torch.tensor([[1, -1], [0, 2]])
INDEXING: dict[str, Case] = {
    "embedding": lambda n, **_: F.embedding(n, W),
    "index_select": lambda x, n, **_: x.index_select(1, n[0]),
    "gather": lambda x, i, **_: x.gather(2, i.abs()[..., :3]),
    "index": lambda x, **_: x[:, AT],
    "indices apart": lambda x, n, **_: x[n[:, 0] % 2, :, n[:, 1]],
    "index_put at a mask": lambda x, b, **_: x.index_put((b,), torch.tensor(2.0)),
    "index_put at a mask of rows": lambda x, b, **_: x.index_put((b[..., 0],), torch.tensor(2.0)),
    "index by input": lambda x, i, **_: x[:, i[0, 0] % 4 - 4],
    "two indices": lambda x, n, **_: x[:, n, AT[:1]],
    "scatter": lambda x, y, i, **_: x.scatter(2, torch.arange(6).expand(2, 4, 6), y),
    "scatter value": lambda x, n, **_: x.scatter(1, n[:2, None].expand(2, 1, 2), 5.0),
    "scatter_add": lambda x, y, i, **_: x.scatter_add(2, i.abs(), y),
    "index_copy": lambda x, y, **_: x.index_copy(1, torch.tensor([3, 0]), y[:, :2]),
    "index_put": lambda x, f, **_: aten.index_put.default(x, [None, torch.tensor([2, -4])], f),
}

MASK = torch.ones(4, 4).tril().bool()
NEURAL: dict[str, Case] = {
    "linear": lambda x, **_: F.linear(x, W, W[:, 0]),
    "linear to one": lambda x, **_: F.linear(x, V),
    "mm": lambda x, y, **_: torch.mm(x[0], y[1].t()),
    "bmm": lambda x, y, **_: torch.bmm(x, y.mT),
    "matmul": lambda x, **_: x @ V,
    "mv": lambda x, **_: torch.mv(x[0], V),
    "dot": lambda f, **_: torch.dot(f, V),
    "addmm": lambda x, f, **_: torch.addmm(f, x[0].t(), W, beta=0.5, alpha=2.0),
    "addmm, nothing added": lambda x, f, **_: torch.addmm(f, x[0].t(), W, beta=0.0),
    "baddbmm": lambda x, y, f, **_: torch.baddbmm(f, x.mT, y),
    "einsum": lambda x, y, **_: torch.einsum("bij,bkj->bik", x, y),
    "_grouped_mm": lambda i, **_: aten._grouped_mm(  # whole numbers: only in bfloat16
        i.reshape(6, 8).bfloat16(), torch.ones(3, 8, 8).bfloat16() * 0.5, OFFSETS.clamp(max=6)
    ).float(),
    "grouped_mm_fallback": lambda x, **_: torch.ops.transformers.grouped_mm_fallback(
        x.reshape(8, 6), EXPERTS, OFFSETS
    ),
    "lstm": lambda x, f, **_: torch.lstm(
        x, (HIDDEN, 2 * HIDDEN), GATES[4] * 2, True, 1, 0.0, False, True, True
    )[0],
    "gru": lambda x, **_: torch.gru(x, HIDDEN[:1], GATES[3][:2], False, 1, 0.0, False, False, True)[
        0
    ],
    "rnn of tanh": lambda x, **_: torch.rnn_tanh(
        x, HIDDEN[:1], GATES[1], True, 1, 0.0, False, False, True
    )[1],
    "rnn of relu": lambda x, **_: torch.rnn_relu(
        x, HIDDEN[:1], GATES[1], True, 1, 0.0, False, False, True
    )[1],
    "silu": lambda x, **_: F.silu(x),
    "gelu": lambda x, **_: F.gelu(x),
    "gelu tanh": lambda x, **_: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x, **_: F.leaky_relu(x, 0.2),
    "prelu": lambda x, f, **_: F.prelu(x, f[: x.shape[1]]),
    "prelu of one number": lambda x, f, **_: F.prelu(x, f[:1]),
    "log_sigmoid": lambda x, **_: F.logsigmoid(x * 5),
    "addcmul": lambda x, f, **_: torch.addcmul(x, x, f, value=0.5),
    "outer": lambda x, f, **_: torch.outer(x[0, 0], f),
    "clip": lambda x, **_: torch.clip(x, -0.2, 0.7),
    "min and max of two": lambda x, f, **_: torch.max(torch.min(x, f), x * 0.5),
    "var, unbiased": lambda x, **_: torch.ops.aten.var.dim(x, [1], True, True),
    "var, corrected": lambda x, **_: torch.var(x, 1, correction=2, keepdim=True),
    "clip by tensors": lambda x, f, **_: torch.clip(x, f - 1.0, f),
    "var, biased": lambda x, **_: torch.ops.aten.var.dim(x, [-1], False),
    "masked in place": lambda x, f, **_: x.softmax(-1).masked_fill_(x > 0.1, -2.0),
    "a range in place": lambda x, **_: x * torch.arange(1.0, 1.0 + x.shape[-1]).div_(3.0),
    "rounded in place": lambda x, **_: (x * 7).relu().round_(),
    "elu": lambda x, **_: F.elu(x, 1.5),
    "rrelu": lambda x, **_: F.rrelu(x, 0.1, 0.4),
    "bilinear": lambda x, f, **_: F.bilinear(x, x[..., :5], CUBE, f[:3]),
    "addmv": lambda x, f, **_: torch.addmv(x[0, :, 0], x[1], f, beta=0.5, alpha=2.0),
    "batch_norm of the batch": lambda x, f, **_: F.batch_norm(
        x, None, None, V[:4], f[:4], training=True
    ),
    "softplus": lambda x, **_: F.softplus(x * 10, 2, 5),
    "glu": lambda x, **_: F.glu(x, 1),
    "hardtanh": lambda x, **_: F.hardtanh(x, -0.3, 0.4),
    "relu6": lambda x, **_: aten.relu6.default(x * 5),
    "softmax": lambda x, **_: x.softmax(1, dtype=torch.float64),
    "_softmax": lambda x, **_: aten._softmax.default(x, -1, False),
    "_safe_softmax": lambda x, **_: aten._safe_softmax.default(x, -1),
    "log_softmax": lambda x, **_: x.log_softmax(-1),
    "_log_softmax": lambda x, **_: aten._log_softmax.default(x, 1, False),
    "layer_norm": lambda x, f, **_: F.layer_norm(x, (6,), f, V, 1e-3),
    "layer_norm, two dims, bare": lambda x, **_: F.layer_norm(x, (4, 6)),
    "native_layer_norm": lambda x, f, **_: aten.native_layer_norm.default(x, [6], f, None, 1e-5)[0],
    "rms_norm": lambda x, f, **_: F.rms_norm(x, (6,), f),
    "rms_norm, eps": lambda x, **_: F.rms_norm(x, (4, 6), eps=0.1),
    "group_norm": lambda x, **_: F.group_norm(x, 2, V[:4], W[:, 0], 1e-3),
    "native_group_norm": lambda x, **_: aten.native_group_norm.default(
        x, None, None, 2, 4, 6, 2, 1e-5
    )[0],
    "instance_norm": lambda x, **_: F.instance_norm(x, weight=V[:4], bias=W[:, 0]),
    "instance_norm, running": lambda x, **_: F.instance_norm(
        x, W[:, 0], W[:, 1].abs() + 1, use_input_stats=False
    ),
    "batch_norm": lambda x, **_: F.batch_norm(x, W[:, 0], W[:, 1].abs() + 1, V[:4], W[:, 2]),
    "batch_norm, bare": lambda x, **_: F.batch_norm(x, W[:, 0], W[:, 1].abs() + 1),
    "native batch norm": lambda x, **_: aten._native_batch_norm_legit_no_training.default(
        x, None, None, W[:, 0], W[:, 1].abs() + 1, 0.1, 1e-5
    )[0],
    "_weight_norm": lambda x, f, **_: aten._weight_norm.default(x[0].t(), f[:, None], 0),
    "attention": lambda x, y, **_: F.scaled_dot_product_attention(x, y, x, scale=0.7),
    "attention, causal": lambda x, y, **_: F.scaled_dot_product_attention(
        x[None], y[None], x[None], is_causal=True
    ),
    "attention, masked": lambda x, y, **_: F.scaled_dot_product_attention(
        x[None], y[None], x[None], attn_mask=MASK
    ),
    "attention, rows that see nothing": lambda x, y, **_: F.scaled_dot_product_attention(
        x[None], y[None], x[None], attn_mask=MASK.roll(1, 1).tril()
    ),
    "attention, mask of the input": lambda x, y, b, **_: F.scaled_dot_product_attention(
        x[None], y[None], x[None], attn_mask=b[..., :4] & MASK
    ),
    "attention, heads share": lambda x, **_: F.scaled_dot_product_attention(
        x[None], x[None, :1], x[None, :1], enable_gqa=True
    ),
}

K1, K2, K3 = normal(6, 4, 3), normal(6, 4, 3, 3), normal(6, 4, 3, 3, 3)
IMAGE: dict[str, Case] = {
    "conv1d": lambda sig, **_: F.conv1d(sig, K1, V, padding=2, dilation=2),
    "conv1d, no batch": lambda sig, **_: F.conv1d(sig[0], K1, V),
    "conv2d": lambda img, **_: F.conv2d(img, K2[:, :2], V, 2, 1, groups=2),
    "conv3d": lambda vol, **_: F.conv3d(vol, K3, padding=(1, 0, 1)),
    "conv1d same": lambda sig, **_: F.conv1d(sig, K1[..., :2], padding="same"),
    "conv2d same": lambda img, **_: F.conv2d(img, K2, padding="same", dilation=2),
    "conv3d valid": lambda vol, **_: F.conv3d(vol, K3, padding="valid"),
    "convolution": lambda img, **_: aten.convolution.default(
        img, K2, V, [2, 2], [1, 1], [1, 1], False, [0, 0], 1
    ),
    "convolution, transposed": lambda img, **_: aten.convolution.default(
        img, K2[:4], None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1
    ),
    "conv_transpose1d": lambda sig, **_: F.conv_transpose1d(sig, K1[:4], stride=2),
    "conv_transpose2d": lambda img, **_: F.conv_transpose2d(
        img, K2[:4], stride=2, padding=1, output_padding=1
    ),
    "conv_transpose3d": lambda vol, **_: F.conv_transpose3d(vol, K3[:4]),
    "max_pool1d": lambda sig, **_: F.max_pool1d(sig, 3),
    "max_pool2d": lambda img, **_: F.max_pool2d(img, 3, 2, 1),
    "max_pool2d, no batch": lambda img, **_: F.max_pool2d(img[0], 2, ceil_mode=True),
    "max_pool3d": lambda vol, **_: F.max_pool3d(vol, 2, 1),
    "max_pool2d_with_indices": lambda img, **_: aten.max_pool2d_with_indices.default(
        img, [2, 2], [2, 2]
    )[0],
    "avg_pool1d": lambda sig, **_: F.avg_pool1d(sig, 3, 2),
    "avg_pool2d": lambda img, **_: F.avg_pool2d(img, 3, 2, 1, count_include_pad=False),
    "avg_pool2d by a number": lambda img, **_: F.avg_pool2d(img, 3, 2, 1, divisor_override=5),
    "avg_pool3d": lambda vol, **_: F.avg_pool3d(vol, 2),
    "adaptive_avg_pool1d": lambda sig, **_: F.adaptive_avg_pool1d(sig, 4),
    "adaptive_avg_pool2d": lambda img, **_: F.adaptive_avg_pool2d(img, (3, 1)),
    "adaptive_avg_pool3d": lambda vol, **_: F.adaptive_avg_pool3d(vol, 1),
    "_adaptive_avg_pool2d": lambda img, **_: aten._adaptive_avg_pool2d.default(img, [2, 2]),
    "_adaptive_avg_pool3d": lambda vol, **_: aten._adaptive_avg_pool3d.default(vol, [2, 2, 2]),
    **{
        f"{mode} {name} {form}": resized(name, mode, form, value)
        for name, modes in {
            "sig": ("nearest", "nearest-exact", "linear"),
            "img": ("nearest", "nearest-exact", "bilinear"),
            "vol": ("nearest", "nearest-exact", "trilinear"),
        }.items() for mode in modes for form, value in (("scale_factor", 1.7), ("size", 9))
    },
    "corners": lambda img, **_: F.interpolate(img, (5, 11), mode="bilinear", align_corners=True),
    "nearest1d default": lambda sig, **_: aten.upsample_nearest1d.default(sig, [24]),
    "nearest2d default": lambda img, **_: aten.upsample_nearest2d.default(img, [16, 4]),
    "nearest3d default": lambda vol, **_: aten.upsample_nearest3d.default(vol, [8, 8, 8]),
    "exact1d default": lambda sig, **_: aten._upsample_nearest_exact1d.default(sig, [24]),
    "exact2d default": lambda img, **_: aten._upsample_nearest_exact2d.default(img, [12, 4]),
    "exact3d default": lambda vol, **_: aten._upsample_nearest_exact3d.default(vol, [6, 6, 6]),
    "linear default": lambda sig, **_: aten.upsample_linear1d.default(sig, [20], False),
    "bilinear default": lambda img, **_: aten.upsample_bilinear2d.default(img, [12, 12], True),
    "bicubic": lambda img, **_: F.interpolate(img, scale_factor=1.7, mode="bicubic"),
    "bicubic default": lambda img, **_: aten.upsample_bicubic2d.default(img, [12, 5], True),
    "trilinear default": lambda vol, **_: aten.upsample_trilinear3d.default(vol, [6, 6, 6], False),
    "fold": lambda vol, **_: F.fold(
        vol.flatten()[:96].reshape(1, 8, 12), (7, 9), (2, 2), (1, 2), 1, (2, 3)
    ),
    "pixel_shuffle": lambda img, **_: F.pixel_shuffle(img, 2),
    "pixel_unshuffle": lambda img, **_: F.pixel_unshuffle(img[:, :, :4, :4], 2),
}  # fmt: skip


def _written(x: Tensor, y: Tensor, **_: Any) -> Tensor:
    x = x.clone()
    x[:, 1] = y[:, 0]
    x[0, 2:] += 1.0
    return x.mul_(2.0)


OTHERS: dict[str, Case] = {  # no entry: PyTorch writes them in ops that have one
    "lerp": lambda x, y, **_: torch.lerp(x, y, 0.3),
    "selu": lambda x, **_: F.selu(x),
    "celu": lambda x, **_: F.celu(x, 1.3),
    "batch_norm of the batch": lambda x, **_: F.batch_norm(x, None, None, training=True),
    "frac": lambda x, **_: torch.frac(x),
    "logaddexp": lambda x, y, **_: torch.logaddexp(x, y),
    "written in place": _written,
    "grouped heads": lambda x, **_: F.multi_head_attention_forward(
        x, x, x, 6, 2, torch.cat([W, W, W, W, W])[:18], V.repeat(3), None, None, False, 0.0,
        W[:, :1].repeat(2, 6)[:6, :6], V, training=False,
    )[0],
}  # fmt: skip

FAMILIES: dict[str, tuple[dict[str, Tensor], dict[str, Case]]] = {
    "elementwise": (INPUTS, ELEMENTWISE),
    "layout": (INPUTS, LAYOUT),
    "reduction": (INPUTS, REDUCTION),
    "indexing": (INPUTS, INDEXING),
    "neural": (INPUTS, NEURAL),
    "image": (IMAGES, IMAGE),
    "others": (INPUTS, OTHERS),
}
