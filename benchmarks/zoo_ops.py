"""Modules of one op: what `python -m benchmarks.zoo` and the tests import and edit.

    OPS["Conv2d"]     torch.nn.Conv2d(3, 5, 3) of an image
    OPS["cholesky"]   torch.linalg.cholesky(x @ xᵀ + 1) of a matrix

Inputs are drawn anew by `draw`; an edit copies a part of a new draw over the old one, so functions
make what they need (a positive definite matrix, say) of any numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F  # noqa: N812

Draw: TypeAlias = Callable[[Generator], Tensor]
Function: TypeAlias = Callable[..., Any]


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True)
class OneOp:
    """A module and how its inputs are drawn.

    Fields:
        make: the module, in evaluation mode, the same one each time.
    """

    name: str
    family: str
    make: Callable[[], nn.Module]
    inputs: tuple[Draw, ...]

    def draw(self, seed: int) -> tuple[Tensor, ...]:
        random = Generator().manual_seed(seed)
        return tuple(draw(random) for draw in self.inputs)


OPS: dict[str, OneOp] = {}


def _enter(family: str, name: str, make: Callable[[], nn.Module], inputs: tuple[Draw, ...]) -> None:
    assert name not in OPS, name
    OPS[name] = OneOp(name, family, make, inputs)


def module(family: str, name: str, make: Callable[[], nn.Module], *inputs: Draw) -> None:
    """A module of PyTorch, with weights that are drawn once."""

    def seeded() -> nn.Module:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return make().eval()

    _enter(family, name, seeded, inputs)


def function(family: str, name: str, call: Function, *inputs: Draw) -> None:
    _enter(family, name, lambda: Calls(call).eval(), inputs)


def normal(*shape: int) -> Draw:
    return lambda random: torch.randn(shape, generator=random)


def positive(*shape: int) -> Draw:
    return lambda random: torch.rand(shape, generator=random) + 0.1


def unit(*shape: int) -> Draw:
    """Between −0.9 and 0.9."""
    return lambda random: torch.rand(shape, generator=random) * 1.8 - 0.9


def below(high: int, *shape: int) -> Draw:
    """Integers from 0 on."""
    return lambda random: torch.randint(0, high, shape, generator=random)


def whole(*shape: int) -> Draw:
    """Integers of both signs, none of them 0."""
    return lambda random: (
        torch.randint(1, 9, shape, generator=random)
        * (torch.randint(0, 2, shape, generator=random) * 2 - 1)
    )


def flags(*shape: int) -> Draw:
    return lambda random: torch.rand(shape, generator=random) > 0.5


ROWS, MATRIX, IMAGE = normal(3, 6), normal(4, 4), normal(1, 4, 8, 8)
SIGNAL, VOLUME, LINE = normal(1, 4, 12), normal(1, 2, 4, 6, 6), normal(7)


def definite(x: Tensor) -> Tensor:
    """A positive definite matrix of any one."""
    return x @ x.mT + torch.eye(x.shape[-1])


def apart(x: Tensor) -> Tensor:
    """A matrix that has an inverse, of any one."""
    return x.tanh() + 4 * torch.eye(x.shape[-1])


def along_lines(name: str, x: Tensor) -> Any:
    """A function of torch along the last dimension; several results as a plain tuple."""
    result = getattr(torch, name)(x, dim=-1)
    return result if isinstance(result, Tensor) else tuple(result)


_call: Function
_operands: tuple[Draw, ...]

# --- activations ----------------------------------------------------------------------------------

for _kind in (nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish,
              nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU,
              nn.ReLU6, nn.RReLU, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink,
              nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Dropout, nn.AlphaDropout):  # fmt: skip
    module("activations", _kind.__name__, _kind, ROWS)
for _soft in (nn.Softmax, nn.Softmin, nn.LogSoftmax):
    module("activations", _soft.__name__, partial(_soft, dim=-1), ROWS)
module("activations", "Softmax2d", nn.Softmax2d, IMAGE)
module("activations", "Threshold", lambda: nn.Threshold(0.1, -1.0), ROWS)
module("activations", "GELU tanh", lambda: nn.GELU(approximate="tanh"), ROWS)
module("activations", "PReLU of channels", lambda: nn.PReLU(4), IMAGE)
function("activations", "elu with scales", lambda x: torch.ops.aten.elu(x, 1.2, 1.1, 0.9), ROWS)

# --- norms ----------------------------------------------------------------------------------------

module("norms", "BatchNorm1d", lambda: nn.BatchNorm1d(6), ROWS)
module("norms", "BatchNorm2d", lambda: nn.BatchNorm2d(4), IMAGE)
module("norms", "BatchNorm3d", lambda: nn.BatchNorm3d(2), VOLUME)
module(
    "norms",
    "BatchNorm2d of the batch",
    lambda: nn.BatchNorm2d(4, track_running_stats=False),
    normal(2, 4, 5, 5),
)
module("norms", "GroupNorm", lambda: nn.GroupNorm(2, 4), IMAGE)
module("norms", "InstanceNorm1d", lambda: nn.InstanceNorm1d(4), SIGNAL)
module("norms", "InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), IMAGE)
module("norms", "InstanceNorm3d", lambda: nn.InstanceNorm3d(2), VOLUME)
module(
    "norms",
    "InstanceNorm2d that tracks",
    lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    IMAGE,
)
module("norms", "LayerNorm", lambda: nn.LayerNorm(6), ROWS)
module("norms", "LayerNorm of planes", lambda: nn.LayerNorm((8, 8)), IMAGE)
module("norms", "LocalResponseNorm", lambda: nn.LocalResponseNorm(2), IMAGE)
module("norms", "RMSNorm", lambda: nn.RMSNorm(6), ROWS)
module("norms", "weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), ROWS)
module(
    "norms", "spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)), ROWS
)
function("norms", "norm", lambda x: x.norm(), ROWS)
function("norms", "norm of rows", lambda x: x.norm(dim=-1, keepdim=True), ROWS)
function("norms", "norm, p = 1", lambda x: x.norm(p=1, dim=-1), ROWS)
function("norms", "norm, p = 3", lambda x: x.norm(p=3, dim=0), ROWS)
function("norms", "norm, p = inf", lambda x: x.norm(p=float("inf"), dim=-1), ROWS)
function("norms", "norm, p = 0", lambda x: torch.linalg.vector_norm(x.relu(), 0, dim=-1), ROWS)
function("norms", "matrix norm", lambda x: torch.linalg.matrix_norm(x), MATRIX)
function("norms", "nuclear norm", lambda x: torch.linalg.matrix_norm(x, "nuc"), MATRIX)
function("norms", "normalize", lambda x: F.normalize(x, dim=1), ROWS)
function("norms", "normalize, p = 1", lambda x: F.normalize(x, p=1.0, dim=-1), ROWS)
function(
    "norms",
    "global response norm",  # of ConvNeXt V2
    lambda x: (
        x
        * (lambda g: g / (g.mean(1, keepdim=True) + 1e-6))(
            torch.norm(x, p=2, dim=(2, 3), keepdim=True)
        )
    ),
    IMAGE,
)
function("norms", "renorm", lambda x: x.renorm(2, 0, 1.5), ROWS)

# --- products -------------------------------------------------------------------------------------

module("products", "Linear", lambda: nn.Linear(6, 5), ROWS)
module("products", "Bilinear", lambda: nn.Bilinear(6, 5, 4), ROWS, normal(3, 5))
for _text, _shapes in {
    "ij,jk->ik": ((3, 4), (4, 5)), "bhqd,bhkd->bhqk": ((1, 2, 3, 4), (1, 2, 5, 4)),
    "ii->i": ((4, 4),), "ii": ((4, 4),), "i,j->ij": ((3,), (5,)), "ij,ij->": ((3, 4), (3, 4)),
    "bij,bjk,kl->bil": ((2, 3, 4), (2, 4, 5), (5, 3)), "...ij->...ji": ((2, 3, 4),),
    "bi,oij,bj->bo": ((2, 3), (4, 3, 5), (2, 5)),
}.items():  # fmt: skip
    function(
        "products",
        f"einsum {_text}",
        lambda *x, text=_text: torch.einsum(text, *x),
        *(normal(*s) for s in _shapes),
    )
for _name, _call, _operands in (
    ("matmul", torch.matmul, (normal(2, 3, 4), normal(4, 5))),
    ("bmm", torch.bmm, (normal(2, 3, 4), normal(2, 4, 5))),
    ("mv", torch.mv, (normal(3, 4), normal(4))),
    ("dot", torch.dot, (LINE, LINE)),
    ("outer", torch.outer, (LINE, normal(3))),
    ("inner", torch.inner, (normal(2, 4), normal(3, 4))),
    ("kron", torch.kron, (normal(2, 3), normal(3, 2))),
    ("tensordot", lambda a, b: torch.tensordot(a, b, 2), (normal(2, 3, 4), normal(3, 4, 5))),
    ("addmm", torch.addmm, (normal(3, 5), normal(3, 4), normal(4, 5))),
    ("baddbmm", torch.baddbmm, (normal(2, 3, 5), normal(2, 3, 4), normal(2, 4, 5))),
    ("addbmm", torch.addbmm, (normal(3, 5), normal(2, 3, 4), normal(2, 4, 5))),
    ("addmv", torch.addmv, (normal(3), normal(3, 4), normal(4))),
    ("addr", torch.addr, (normal(3, 4), normal(3), normal(4))),
    ("cdist", torch.cdist, (normal(3, 4), normal(5, 4))),
    ("cross", torch.linalg.cross, (normal(4, 3), normal(4, 3))),
    ("vecdot", torch.linalg.vecdot, (normal(4, 3), normal(4, 3))),
    ("matrix_power", lambda x: torch.linalg.matrix_power(x, 3), (MATRIX,)),
    ("chain_matmul", lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
     (normal(2, 3), normal(3, 4), normal(4, 2))),
    ("pdist", F.pdist, (normal(4, 3),)),
    ("CosineSimilarity", F.cosine_similarity, (ROWS, ROWS)),
    ("PairwiseDistance", F.pairwise_distance, (ROWS, ROWS)),
):  # fmt: skip
    function("products", _name, _call, *_operands)

# --- convolutions and folding ---------------------------------------------------------------------

module("convolutions", "Conv1d", lambda: nn.Conv1d(4, 5, 3, dilation=2), SIGNAL)
module("convolutions", "Conv2d", lambda: nn.Conv2d(4, 5, 3, stride=2, padding=1), IMAGE)
module("convolutions", "Conv2d of groups", lambda: nn.Conv2d(4, 6, 3, groups=2), IMAGE)
module(
    "convolutions",
    "Conv2d with mirrors",
    lambda: nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"),
    IMAGE,
)
module(
    "convolutions",
    "Conv2d around",
    lambda: nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular"),
    IMAGE,
)
module("convolutions", "Conv3d", lambda: nn.Conv3d(2, 3, 3), VOLUME)
module("convolutions", "ConvTranspose1d", lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), SIGNAL)
module(
    "convolutions",
    "ConvTranspose2d",
    lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1, padding=1),
    IMAGE,
)
module("convolutions", "ConvTranspose3d", lambda: nn.ConvTranspose3d(2, 3, 2), VOLUME)
module("convolutions", "Fold", lambda: nn.Fold((6, 6), 3, padding=1), normal(1, 18, 36))
module("convolutions", "Unfold", lambda: nn.Unfold(3, stride=2), IMAGE)
module("convolutions", "PixelShuffle", lambda: nn.PixelShuffle(2), IMAGE)
module("convolutions", "PixelUnshuffle", lambda: nn.PixelUnshuffle(2), IMAGE)
module("convolutions", "ChannelShuffle", lambda: nn.ChannelShuffle(2), IMAGE)
function("convolutions", "weights that are inputs", F.conv2d, IMAGE, normal(5, 4, 3, 3))

# --- pools ----------------------------------------------------------------------------------------

for _n, _input in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
    for _name in ("MaxPool", "AvgPool"):
        module("pools", f"{_name}{_n}d", partial(getattr(nn, f"{_name}{_n}d"), 2), _input)
    for _name in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        module("pools", f"{_name}{_n}d", partial(getattr(nn, f"{_name}{_n}d"), 3), _input)
module("pools", "MaxPool2d with places", lambda: nn.MaxPool2d(2, return_indices=True), IMAGE)
module(
    "pools",
    "AvgPool2d by another number",
    lambda: nn.AvgPool2d(3, stride=2, padding=1, divisor_override=5),
    IMAGE,
)
module("pools", "LPPool1d", lambda: nn.LPPool1d(2, 3), positive(1, 4, 12))
module("pools", "LPPool2d", lambda: nn.LPPool2d(2, 3), positive(1, 4, 8, 8))
function(
    "pools",
    "MaxUnpool2d",
    lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), kernel_size=[2, 2]),
    IMAGE,
)

# --- padding --------------------------------------------------------------------------------------

for _n, _input in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
    for _name in ("CircularPad", "ReflectionPad", "ReplicationPad", "ZeroPad"):
        module("padding", f"{_name}{_n}d", partial(getattr(nn, f"{_name}{_n}d"), 1), _input)
module("padding", "ConstantPad2d", lambda: nn.ConstantPad2d((1, -1, 2, 0), 0.5), IMAGE)

# --- resampling -----------------------------------------------------------------------------------

for _mode, _input in (("nearest", IMAGE), ("nearest-exact", IMAGE), ("linear", SIGNAL),
                      ("bilinear", IMAGE), ("bicubic", IMAGE), ("trilinear", VOLUME),
                      ("area", IMAGE)):  # fmt: skip
    function(
        "resampling",
        f"interpolate {_mode}",
        lambda x, mode=_mode: F.interpolate(x, scale_factor=1.5, mode=mode),
        _input,
    )
function(
    "resampling",
    "interpolate bilinear, antialias",
    lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True),
    IMAGE,
)
function(
    "resampling",
    "interpolate bicubic, corners",
    lambda x: F.interpolate(x, size=(11, 5), mode="bicubic", align_corners=True),
    IMAGE,
)
module("resampling", "Upsample", lambda: nn.Upsample(scale_factor=2), IMAGE)
for _mode in ("bilinear", "nearest", "bicubic"):
    function(
        "resampling",
        f"grid_sample {_mode}",
        lambda x, g, mode=_mode: F.grid_sample(x, g, mode, align_corners=False),
        IMAGE,
        unit(1, 3, 5, 2),
    )
function(
    "resampling",
    "grid_sample of a volume",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    VOLUME,
    unit(1, 2, 3, 3, 3),
)
function(
    "resampling",
    "affine_grid",
    lambda t: F.affine_grid(t, [1, 3, 4, 5], align_corners=False),
    normal(1, 2, 3),
)

# --- losses ---------------------------------------------------------------------------------------

for _name, _loss, _targets in (
    ("L1Loss", F.l1_loss, (ROWS,)),
    ("MSELoss", F.mse_loss, (ROWS,)),
    ("HuberLoss", F.huber_loss, (ROWS,)),
    ("SmoothL1Loss", F.smooth_l1_loss, (ROWS,)),
    ("CrossEntropyLoss", F.cross_entropy, (below(6, 3),)),
    ("cross entropy of shares", F.cross_entropy, (positive(3, 6),)),
    ("cross entropy, smoothed",
     lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (below(6, 3),)),
    ("NLLLoss", lambda x, t: F.nll_loss(x.log_softmax(-1), t), (below(6, 3),)),
    ("NLLLoss2d", lambda x, t: F.nll_loss(x.reshape(1, 6, 3).log_softmax(1), t), (below(6, 1, 3),)),
    ("KLDivLoss", lambda x, t: F.kl_div(x.log_softmax(-1), t, reduction="batchmean"),
     (positive(3, 6),)),
    ("PoissonNLLLoss", F.poisson_nll_loss, (positive(3, 6),)),
    ("GaussianNLLLoss", F.gaussian_nll_loss, (ROWS, positive(3, 6))),
    ("BCELoss", lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.clamp(0, 1)),
     (positive(3, 6),)),
    ("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, (positive(3, 6),)),
    ("SoftMarginLoss", lambda x, t: F.soft_margin_loss(x, t.sign()), (ROWS,)),
    ("MultiLabelSoftMarginLoss", lambda x, t: F.multilabel_soft_margin_loss(x, t.float()),
     (flags(3, 6),)),
    ("MultiMarginLoss", F.multi_margin_loss, (below(6, 3),)),
    ("MultiLabelMarginLoss", F.multilabel_margin_loss, (below(6, 3, 6),)),
    ("HingeEmbeddingLoss", lambda x, t: F.hinge_embedding_loss(x, t.sign()), (ROWS,)),
    ("CosineEmbeddingLoss", lambda x, y, t: F.cosine_embedding_loss(x, y, t.sign()),
     (ROWS, normal(3))),
    ("MarginRankingLoss", lambda x, y, t: F.margin_ranking_loss(x, y, t.sign()), (ROWS, ROWS)),
    ("TripletMarginLoss", F.triplet_margin_loss, (ROWS, ROWS)),
    ("CTCLoss", lambda x, t: torch.ops.aten.ctc_loss.IntList(
        x.reshape(3, 1, 6).log_softmax(-1), t + 1, (3,), (2,)), (below(4, 1, 2),)),
):  # fmt: skip
    function("losses", _name, _loss, ROWS, *_targets)

# --- element by element ---------------------------------------------------------------------------

for _name in ("abs", "atan", "asinh", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "exp",
              "exp2", "expm1", "floor", "frac", "isfinite", "isnan", "isinf", "isneginf", "neg",
              "nan_to_num", "rad2deg", "round", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc",
              "sinh", "square", "tan", "tanh", "trunc"):  # fmt: skip
    function("elements", _name, getattr(torch, _name), ROWS)
for _name in ("acos", "asin", "atanh", "erfinv"):
    function("elements", _name, getattr(torch, _name), unit(3, 6))
for _name in ("digamma", "i0", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt",
              "sqrt"):  # fmt: skip
    function("elements", _name, getattr(torch, _name), positive(3, 6))
function("elements", "acosh", lambda x: torch.acosh(x + 1), positive(3, 6))
function("elements", "logit", lambda x: torch.logit(x, 1e-3), unit(3, 6))
function("elements", "round to digits", lambda x: torch.round(x, decimals=2), ROWS)
function("elements", "polygamma", lambda x: torch.polygamma(1, x), positive(3, 6))
function("elements", "mvlgamma", lambda x: torch.mvlgamma(x + 2, 2), positive(3, 6))
for _name in (
    "bessel_j0",
    "bessel_j1",
    "entr",
    "erfcx",
    "i0e",
    "i1",
    "i1e",
    "log_ndtr",
    "ndtr",
    "spherical_bessel_j0",
    "airy_ai",
    "modified_bessel_i0",
    "scaled_modified_bessel_k0",
):
    function("elements", f"special.{_name}", getattr(torch.special, _name), positive(3, 6))
function(
    "elements",
    "special.ndtri",
    torch.special.ndtri,
    lambda random: torch.rand((3, 6), generator=random) * 0.8 + 0.1,
)
for _name in ("zeta", "gammainc", "gammaincc", "xlog1py"):
    function(
        "elements",
        f"special.{_name}",
        lambda x, y, f=_name: getattr(torch.special, f)(x + 1, y),
        positive(3, 6),
        positive(3, 6),
    )
for _name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "copysign", "fmax",
              "fmin", "fmod", "hypot", "logaddexp", "logaddexp2", "nextafter", "remainder",
              "heaviside", "floor_divide", "true_divide", "dist"):  # fmt: skip
    function("elements", _name, getattr(torch, _name), ROWS, normal(1, 6))
for _name in ("pow", "float_power", "xlogy"):
    function("elements", _name, getattr(torch, _name), positive(3, 6), positive(3, 6))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "isclose"):
    function("elements", _name, getattr(torch, _name), whole(3, 6), whole(6))
for _name in ("logical_and", "logical_or", "logical_xor"):
    function("elements", _name, getattr(torch, _name), flags(3, 6), flags(3, 6))
function("elements", "logical_not", torch.logical_not, flags(3, 6))
function("elements", "addcmul", lambda x, a, b: torch.addcmul(x, a, b, value=0.5), ROWS, ROWS, ROWS)
function(
    "elements",
    "addcdiv",
    lambda x, a, b: torch.addcdiv(x, a, b, value=0.5),
    ROWS,
    ROWS,
    positive(3, 6),
)
function("elements", "lerp", torch.lerp, ROWS, ROWS, unit(3, 6))
function("elements", "clamp", lambda x: x.clamp(-0.5, 0.7), ROWS)
function("elements", "clamp to tensors", lambda x, a: torch.clamp(x, a, a + 1), ROWS, ROWS)
function("elements", "where", torch.where, flags(3, 6), ROWS, ROWS)
function("elements", "masked_fill", lambda x, m: x.masked_fill(m, -1.0), ROWS, flags(3, 6))
function("elements", "ldexp", torch.ldexp, ROWS, below(4, 3, 6))
function("elements", "frexp", lambda x: tuple(torch.frexp(x)), ROWS)
function("elements", "to float64", lambda x: x.double() / 3, ROWS)
function("elements", "to float16", lambda x: x.half(), ROWS)
function("elements", "to integers", lambda x: (x * 10).long(), ROWS)

# --- integers -------------------------------------------------------------------------------------

for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"):
    function("integers", _name, getattr(torch, _name), whole(3, 6), whole(6))
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    function("integers", _name, getattr(torch, _name), whole(3, 6), below(4, 3, 6))
function("integers", "bitwise_not", torch.bitwise_not, whole(3, 6))
function("integers", "integer mean of flags", lambda x: (x > 0).sum() / 2, ROWS)
function("integers", "integer sums", lambda x: x.sum(-1), whole(3, 6))
function("integers", "integer products", lambda x: x.prod(-1), whole(3, 4))
function("integers", "integer matmul", torch.matmul, whole(3, 4), whole(4, 2))
function(
    "integers",
    "integer division",
    lambda a, b: torch.div(a, b, rounding_mode="floor"),
    whole(3, 6),
    whole(6),
)
function(
    "integers",
    "integer division to 0",
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    whole(3, 6),
    whole(6),
)
function("integers", "integer remainder", torch.remainder, whole(3, 6), whole(6))
function("integers", "integer fmod", torch.fmod, whole(3, 6), whole(6))
function("integers", "integer powers", lambda x: x**3, whole(3, 6))
function("integers", "one_hot", lambda x: F.one_hot(x, 5), below(5, 3))

# --- reductions -----------------------------------------------------------------------------------

for _name in ("sum", "mean", "prod", "std", "var", "amax", "amin", "nansum", "nanmean", "argmax",
              "argmin", "median", "logsumexp", "max", "min", "nanmedian", "mode",
              "aminmax", "std_mean", "var_mean"):  # fmt: skip
    function("reductions", _name, partial(along_lines, _name), ROWS)
for _name in ("sum", "mean", "std", "max", "argmax", "median", "prod"):
    function("reductions", f"{_name} of everything", getattr(torch, _name), ROWS)
for _name in ("any", "all", "count_nonzero"):
    function("reductions", _name, partial(along_lines, _name), flags(3, 6))
function("reductions", "quantile", lambda x: torch.quantile(x, 0.3, dim=-1), ROWS)
function("reductions", "cov", torch.cov, ROWS)
function("reductions", "corrcoef", torch.corrcoef, ROWS)
function("reductions", "histc", lambda x: torch.histc(x, 5, -2, 2), ROWS)
function("reductions", "bincount", lambda x: torch.bincount(x, minlength=5), below(5, 9))
function("reductions", "trace", torch.trace, MATRIX)
function("reductions", "trapezoid", lambda x: torch.trapezoid(x, dim=-1), ROWS)

# --- order and running sums -----------------------------------------------------------------------

for _name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort"):
    function("order", _name, partial(along_lines, _name), ROWS)
function("order", "argsort", lambda x: torch.argsort(x, dim=-1, stable=True), ROWS)
function("order", "topk", lambda x: tuple(torch.topk(x, 2)), ROWS)
function("order", "kthvalue", lambda x: tuple(torch.kthvalue(x, 2)), ROWS)
function("order", "msort", torch.msort, ROWS)
function("order", "diff", torch.diff, ROWS)
function("order", "bucketize", lambda x, b: torch.bucketize(x, b.sort().values), ROWS, LINE)
function("order", "searchsorted", lambda b, x: torch.searchsorted(b.sort().values, x), LINE, ROWS)
function("order", "isin", lambda x, y: torch.isin(x, y), below(9, 3, 6), below(9, 3))

# --- places ---------------------------------------------------------------------------------------

for _name, _call, _operands in (
    ("gather", lambda x, i: x.gather(1, i), (ROWS, below(6, 3, 2))),
    ("index_select", lambda x, i: x.index_select(1, i), (ROWS, below(6, 4))),
    ("take", torch.take, (ROWS, below(18, 4))),
    ("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), (ROWS, below(6, 3, 2))),
    ("x[i]", lambda x, i: x[i], (ROWS, below(3, 4))),
    ("x[i, j]", lambda x, i, j: x[i, j], (ROWS, below(3, 4), below(6, 4))),
    ("x[:, i, j]", lambda x, i, j: x[:, i, j], (normal(2, 3, 4), below(3, 5), below(4, 5))),
    ("x[i, :, j]", lambda x, i, j: x[i, :, j], (normal(2, 3, 4), below(2, 5), below(4, 5))),
    ("x[..., ::2]", lambda x: x[..., ::2], (ROWS,)),
    ("scatter", lambda x, i, s: x.scatter(1, i, s), (ROWS, below(6, 3, 1), normal(3, 1))),
    ("scatter of a number", lambda x, i: x.scatter(1, i, 2.0), (ROWS, below(6, 3, 2))),
    ("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), (ROWS, below(6, 3, 4), normal(3, 4))),
    ("scatter_reduce", lambda x, i, s: x.scatter_reduce(1, i, s, "amax"),
     (ROWS, below(6, 3, 4), normal(3, 4))),
    ("index_add", lambda x, i, s: x.index_add(0, i, s), (ROWS, below(3, 2), normal(2, 6))),
    ("index_copy", lambda x, i, s: x.index_copy(0, i, s), (ROWS, below(3, 1), normal(1, 6))),
    ("index_fill", lambda x, i: x.index_fill(0, i, 1.5), (ROWS, below(3, 1))),
    ("index_reduce", lambda x, i, s: x.index_reduce(0, i, s, "amax"),
     (ROWS, below(3, 2), normal(2, 6))),
    ("index_put", lambda x, i, s: x.index_put((i,), s), (ROWS, below(3, 1), normal(1, 6))),
    ("index_put of points", lambda x, i, j, s: x.index_put((i, j), s),
     (ROWS, below(3, 1), below(6, 1), normal(1))),
    ("index_put that adds", lambda x, i, j, s: x.index_put((i, j), s, accumulate=True),
     (ROWS, below(3, 4), below(6, 4), normal(4))),
    ("index_put at a mask", lambda x, m: x.index_put((m,), torch.tensor(1.0)),
     (ROWS, flags(3, 6))),
    ("put", lambda x, i, s: x.put(i, s), (ROWS, below(18, 1), normal(1))),
    ("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), (ROWS, flags(3, 6), ROWS)),
    ("slice_scatter", lambda x, s: x.slice_scatter(s, 1, 1, 5, 2), (ROWS, normal(3, 2))),
    ("select_scatter", lambda x, s: x.select_scatter(s, 0, 1), (ROWS, normal(6))),
    ("diagonal_scatter", lambda x, s: x.diagonal_scatter(s), (MATRIX, normal(4))),
):  # fmt: skip
    function("places", _name, _call, *_operands)
module("places", "Embedding", lambda: nn.Embedding(9, 4), below(9, 5))
module(
    "places", "Embedding of bounded rows", lambda: nn.Embedding(9, 4, padding_idx=0), below(9, 5)
)
for _mode in ("sum", "mean", "max"):
    module(
        "places",
        f"EmbeddingBag {_mode}",
        partial(nn.EmbeddingBag, 9, 4, mode=_mode),
        below(9, 2, 3),
    )

# --- shapes ---------------------------------------------------------------------------------------

for _name, _call, _operands in (
    ("cat", lambda a, b: torch.cat([a, b], 1), (ROWS, normal(3, 2))),
    ("stack", lambda a, b: torch.stack([a, b], 1), (ROWS, ROWS)),
    ("hstack", lambda a, b: torch.hstack([a, b]), (ROWS, ROWS)),
    ("vstack", lambda a, b: torch.vstack([a, b]), (ROWS, ROWS)),
    ("dstack", lambda a, b: torch.dstack([a, b]), (ROWS, ROWS)),
    ("block_diag", torch.block_diag, (ROWS, MATRIX)),
    ("cartesian_prod", torch.cartesian_prod, (LINE, normal(3))),
    ("combinations", torch.combinations, (LINE,)),
    ("chunk", lambda x: x.chunk(2, 1), (ROWS,)),
    ("split", lambda x: x.split([1, 5], 1), (ROWS,)),
    ("tensor_split", lambda x: x.tensor_split((2, 3), 1), (ROWS,)),
    ("unbind", lambda x: x.unbind(0), (ROWS,)),
    ("diag", torch.diag, (MATRIX,)),
    ("diag of a line", torch.diag, (LINE,)),
    ("diag_embed", torch.diag_embed, (ROWS,)),
    ("diagonal", lambda x: x.diagonal(1), (MATRIX,)),
    ("diagflat", torch.diagflat, (ROWS,)),
    ("expand", lambda x: x[:, None].expand(3, 2, 6), (ROWS,)),
    ("flatten", lambda x: x.flatten(1), (IMAGE,)),
    ("flip", lambda x: x.flip(1), (ROWS,)),
    ("fliplr", torch.fliplr, (ROWS,)),
    ("meshgrid", lambda a, b: torch.meshgrid(a, b, indexing="ij"), (LINE, normal(3))),
    ("movedim", lambda x: x.movedim(1, 3), (IMAGE,)),
    ("narrow", lambda x: x.narrow(1, 2, 3), (ROWS,)),
    ("permute", lambda x: x.permute(0, 2, 3, 1), (IMAGE,)),
    ("repeat", lambda x: x.repeat(2, 1), (ROWS,)),
    ("repeat_interleave", lambda x: x.repeat_interleave(2, 1), (ROWS,)),
    ("roll", lambda x: x.roll((1, 2), (0, 1)), (ROWS,)),
    ("rot90", torch.rot90, (ROWS,)),
    ("squeeze", lambda x: x.squeeze(0), (IMAGE,)),
    ("tile", lambda x: x.tile(2, 2), (ROWS,)),
    ("transpose", lambda x: x.transpose(0, 1), (ROWS,)),
    ("tril", torch.tril, (MATRIX,)),
    ("triu", lambda x: torch.triu(x, 1), (MATRIX,)),
    ("unflatten", lambda x: x.unflatten(1, (2, 3)), (ROWS,)),
    ("unfold", lambda x: x.unfold(1, 3, 2), (ROWS,)),
    ("vander", lambda x: torch.vander(x, 3), (LINE,)),
    ("as_strided", lambda x: x.as_strided((4, 3), (3, 1), 1), (ROWS,)),
    ("view of bits", lambda x: x.view(torch.int32), (ROWS,)),
):  # fmt: skip
    function("shapes", _name, _call, *_operands)

# --- linear algebra -------------------------------------------------------------------------------

for _name, _call in (
    ("cholesky", lambda x: torch.linalg.cholesky(definite(x))),
    ("cholesky_inverse", lambda x: torch.cholesky_inverse(torch.linalg.cholesky(definite(x)))),
    ("det", torch.linalg.det),
    ("slogdet", lambda x: tuple(torch.linalg.slogdet(x))),
    ("logdet", lambda x: torch.logdet(definite(x))),
    ("inv", lambda x: torch.linalg.inv(apart(x))),
    ("pinv", lambda x: torch.linalg.pinv(apart(x))),
    ("svdvals", torch.linalg.svdvals),
    ("svd", lambda x: (lambda u, s, v: u @ s.diag() @ v)(*torch.linalg.svd(x))),
    ("qr", lambda x: (lambda q, r: q @ r)(*torch.linalg.qr(x))),
    ("lu", lambda x: (lambda p, lower, u: p @ lower @ u)(*torch.linalg.lu(apart(x)))),
    ("eigvalsh", lambda x: torch.linalg.eigvalsh(definite(x))),
    ("eigh", lambda x: torch.linalg.eigh(definite(x))[0]),
    ("eigvals", lambda x: torch.linalg.eigvals(definite(x)).abs().sort().values),
    ("matrix_exp", lambda x: torch.linalg.matrix_exp(x.tanh())),
    ("matrix_rank", lambda x: torch.linalg.matrix_rank(apart(x))),
    ("cond", lambda x: torch.linalg.cond(apart(x))),
):
    function("linear algebra", _name, _call, MATRIX)
function(
    "linear algebra", "solve", lambda a, b: torch.linalg.solve(apart(a), b), MATRIX, normal(4, 2)
)
function(
    "linear algebra",
    "lstsq",
    lambda a, b: torch.linalg.lstsq(apart(a), b).solution,
    MATRIX,
    normal(4, 2),
)
function(
    "linear algebra",
    "solve_triangular",
    lambda a, b: torch.linalg.solve_triangular(apart(a).tril(), b, upper=False),
    MATRIX,
    normal(4, 2),
)
function(
    "linear algebra",
    "cholesky_solve",
    lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(definite(a))),
    MATRIX,
    normal(4, 2),
)

# --- Fourier transforms ---------------------------------------------------------------------------

for _name, _call in (
    ("fft", lambda x: torch.fft.fft(x).real),
    ("fft2", lambda x: torch.fft.fft2(x).abs()),
    ("fftn", lambda x: torch.view_as_real(torch.fft.fftn(x))),
    ("rfft", lambda x: torch.fft.rfft(x).abs()),
    ("rfft, both parts", lambda x: (torch.fft.rfft(x).real, torch.fft.rfft(x).imag)),
    ("irfft", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, n=6)),
    ("rfft2", lambda x: torch.fft.irfft2(torch.fft.rfft2(x).conj(), s=(3, 6))),
    ("hfft", lambda x: torch.fft.hfft(torch.complex(x, x * 2))),
    ("angle", lambda x: torch.fft.rfft(x).angle()),
    ("polar", lambda x: torch.polar(x.abs(), x).real),
    ("fftshift", torch.fft.fftshift),
    ("gated filter", lambda x: torch.fft.irfft(
        (lambda f: f * f.abs().relu().sigmoid())(torch.fft.rfft(x)), n=6)),
    ("complex product", lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(3, 3, 2)) * (1 + 2j))),
    ("convolution by fft", lambda x: torch.fft.irfft(
        torch.fft.rfft(x, 12) * torch.fft.rfft(x.flip(1), 12), n=12)[:, :6]),
):  # fmt: skip
    function("Fourier transforms", _name, _call, ROWS)
function(
    "Fourier transforms",
    "stft",
    lambda x: torch.stft(x, 8, window=torch.hann_window(8), return_complex=True).abs(),
    normal(2, 32),
)
function(
    "Fourier transforms",
    "istft",
    lambda x: torch.istft(
        torch.stft(x, 8, window=torch.hann_window(8), return_complex=True),
        8,
        window=torch.hann_window(8),
    ),
    normal(2, 32),
)

# --- recurrent and attention ----------------------------------------------------------------------


def first(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The first result of a module that gives several."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, *inputs: Tensor) -> Any:
            return self.inner(*inputs)[0]

    return First


SEQUENCE, STEP = normal(2, 5, 6), normal(2, 6)
for _name, _make in {
    "RNN": lambda: nn.RNN(6, 4, batch_first=True),
    "LSTM": lambda: nn.LSTM(6, 4, batch_first=True),
    "LSTM both ways": lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM projected": lambda: nn.LSTM(6, 4, proj_size=3, batch_first=True),
    "GRU": lambda: nn.GRU(6, 4, batch_first=True),
}.items():
    module("sequences", _name, first(_make), SEQUENCE)
module("sequences", "RNNCell", lambda: nn.RNNCell(6, 4), STEP)
module("sequences", "LSTMCell", lambda: nn.LSTMCell(6, 4), STEP)
module("sequences", "GRUCell", lambda: nn.GRUCell(6, 4), STEP)
module(
    "sequences",
    "MultiheadAttention",
    lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    SEQUENCE,
    SEQUENCE,
    SEQUENCE,
)
module(
    "sequences",
    "TransformerEncoderLayer",
    lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    SEQUENCE,
)
module(
    "sequences",
    "TransformerDecoderLayer",
    lambda: nn.TransformerDecoderLayer(6, 2, 8, batch_first=True),
    SEQUENCE,
    SEQUENCE,
)
function(
    "sequences",
    "scaled_dot_product_attention",
    lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    normal(1, 2, 5, 4),
)
function("sequences", "attention by hand", lambda x: torch.softmax(x @ x.mT, -1) @ x, SEQUENCE)
