"""Ops that write over their operand, as ops that write apart: where nobody else sees the operand.

    y = conv(x)                     y = conv(x)
    z = relu_(y)          ─→        z = relu(y)
    add(y, z)                       add(z, z)          whoever reads y later reads z

PyTorch does this for any program, by going through all of it once more with tensors that hold
nothing: as long as exporting takes again. Most modules need no more than this: activations and
sums in place, over what a convolution or a norm has just made. What may be seen in another way
stays as it is, and PyTorch writes the program in others.

Dropout that is off gives its operand itself, and an einsum that sums nothing a view. PyTorch 2.13
takes both for memory of their own where it writes a program in others: who writes over the one then
leaves the other as it was. So the one is taken out first, and the other one written as the view.
"""

from __future__ import annotations

import torch
from torch import fx


def _op(name: str) -> torch._ops.OpOverload:
    """`relu_`, or with its overload: `add_.Tensor`."""
    packet, _, overload = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


IN_PLACE = {
    _op(f"{packet}_{overload}"): _op(packet + overload)
    for packets, overloads in (
        (("add", "sub", "mul", "div"), (".Tensor", ".Scalar")),
        (("masked_fill",), (".Scalar", ".Tensor")),
        (("relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "silu", "leaky_relu", "elu",
          "sigmoid", "tanh", "gelu", "clamp", "neg", "round"), ("",)),
    )
    for packet in packets
    for overload in overloads
}  # fmt: skip
MASKED = {_op("masked_fill_.Scalar"), _op("masked_fill_.Tensor")}
DROPOUT = {
    _op(packet + end)
    for packet in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
    for end in ("", "_")
}
EINSUM = _op("einsum")
# Ops whose result is memory of its own, whatever their arguments are. Einsum is none of them:
# there are calls that give their operand back, and no schema says so.
FRESH = {
    *IN_PLACE.values(),
    *map(_op, (
        "batch_norm", "instance_norm", "group_norm", "layer_norm", "linear", "matmul", "mm", "bmm",
        "cat", "adaptive_avg_pool2d", "gelu", "softplus", "mish", "clone", "conv1d",
        "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding",
        "conv_transpose1d", "conv_transpose2d.input", "max_pool2d", "avg_pool2d", "mean.dim",
        "softmax.int", "upsample_nearest2d.vec", "upsample_bilinear2d.vec",
        "arange", "arange.start", "arange.start_step", "zeros_like", "ones_like", "zeros", "ones",
    )),
}  # fmt: skip


def write_apart(module: fx.GraphModule) -> None:
    """Change a module so that fewer of its calls write over an operand; it gives the same."""
    places = {node: i for i, node in enumerate(module.graph.nodes)}
    for node in list(module.graph.nodes):
        if node.target in DROPOUT and node.args[-1] is False:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            continue
        if node.target is EINSUM:
            _as_view(node)
        target = IN_PLACE.get(node.target)
        if target is None or not _is_alone(node, places):
            continue
        operand = node.args[0]
        node.target = target
        operand.replace_all_uses_with(
            node, delete_user_cb=lambda user, at=places[node]: places[user] > at
        )
    module.recompile()


def _as_view(node: fx.Node) -> None:
    """An einsum of one operand that only exchanges its dimensions, as that."""
    equation, operands, *_ = node.args
    if not isinstance(equation, str) or not isinstance(operands, (list, tuple)):
        return
    before, _, after = equation.replace(" ", "").partition("->")
    after = after or "".join(sorted(before))
    if len(operands) > 1 or not before.isalpha() or len(set(before)) < len(before):
        return
    if sorted(before) == sorted(after):
        node.target = torch.ops.aten.permute.default
        node.args, node.kwargs = (operands[0], [before.index(name) for name in after]), {}


def _is_alone(node: fx.Node, places: dict[fx.Node, int]) -> bool:
    """Whether what a call writes over was made for it: no other name for the same memory is there.

    Its result has the operand's dtype and shape, which an op that writes apart may not keep.
    """
    operand = node.args[0]
    if not isinstance(operand, fx.Node) or operand.target not in FRESH:
        return False
    earlier = (user for user in operand.users if places[user] < places[node])
    if any(user.target not in FRESH for user in earlier):
        return False
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    dtypes = {one.dtype if isinstance(one, torch.Tensor) else None for one in values}
    return None not in dtypes and (len(dtypes) == 1 or _is_masked(node))


def _is_masked(node: fx.Node) -> bool:
    """Whether a call puts something where a mask is true, of the dtype that is there."""
    operand, mask, *others = node.all_input_nodes
    is_fill = node.target in MASKED and mask.meta["val"].dtype == torch.bool
    return is_fill and all(x.meta["val"].dtype == operand.meta["val"].dtype for x in others)
