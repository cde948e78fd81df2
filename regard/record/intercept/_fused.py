"""Attention inside torch's fused transformer layers, seen at the operators they call.

In evaluation `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` may
call one operator that computes everything. It takes the input of the projections, from which query
and key follow.

Axes: B batch, H heads, L positions, E model dimension, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from regard.problem import Scoring
from regard.record.intercept._call import Call
from regard.record.intercept._mask_reduction import reduce_mask

if TYPE_CHECKING:
    from torch.overrides import TorchFunctionMode

_ATTENTION = torch.ops.aten._native_multi_head_attention.default  # noqa: SLF001 - their only names
_LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default  # noqa: SLF001
_KINDS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


def may_fuse(module: nn.Module, mode: TorchFunctionMode) -> bool:
    """Whether a module of torch's would take its fast path without this mode."""
    if not isinstance(module, _KINDS) or module.training:
        return False
    trained = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    alone = _get_current_function_mode_stack() == [mode]
    return alone and not trained and torch.backends.mha.get_fastpath_enabled()


class FusedLayers(TorchDispatchMode):
    """Observes calls of the fused operators."""

    def __init__(self, notify: Callable[[Call], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._notify = notify

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _ATTENTION:
            self._notify(_of_attention(*args))
        elif func is _LAYER:
            self._notify(_of_layer(*args))
        return result


def _of_attention(
    query: Tensor,
    key: Tensor,  # noqa: ARG001 - fused, it is the query
    value: Tensor,  # noqa: ARG001 - likewise
    dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,  # noqa: ARG001 - after the attention
    out_bias: Tensor,  # noqa: ARG001
    mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: ARG001, FBT001, FBT002 - the operator's signature
    average: bool = True,  # noqa: ARG001, FBT001, FBT002
    mask_type: int | None = None,
) -> Call:
    return _call(query, dim, heads, weight, bias, mask, mask_type)


def _of_layer(
    source: Tensor,
    dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,  # noqa: ARG001 - after the attention
    out_bias: Tensor,  # noqa: ARG001
    use_gelu: bool,  # noqa: ARG001, FBT001 - the operator's signature
    norm_first: bool,  # noqa: FBT001
    eps: float,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *others: Any,
) -> Call:
    # Norm of the second half, two matrices and two biases of the MLP; then the mask and its kind.
    mask, mask_type = (*others[6:], None, None)[:2]
    source, lengths = _padded(source)
    if norm_first:
        source = F.layer_norm(source, (dim,), norm_weight, norm_bias, eps)
    return _call(source, dim, heads, weight, bias, mask, mask_type, lengths)


def _padded(source: Tensor) -> tuple[Tensor, Tensor | None]:
    """Lay out sequences of several lengths as a batch, with their lengths."""
    if not source.is_nested:
        return source, None
    lengths = torch.tensor([len(sequence) for sequence in source.unbind()], device=source.device)
    return source.to_padded_tensor(0.0), lengths


def _call(
    source: Tensor,
    dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
    lengths: Tensor | None = None,
) -> Call:
    if lengths is None:
        source, lengths = _padded(source)
    projected = F.linear(source, weight[: 2 * dim], bias[: 2 * dim])  # (B, L, 2·E)
    query, key = (
        part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in projected.split(dim, dim=-1)
    )  # (B, H, L, D)
    length = source.shape[1]
    hidden = None
    if lengths is not None:
        hidden = torch.arange(length, device=source.device) >= lengths[:, None, None, None]
    elif mask is not None:
        hidden = mask.bool()
        if mask_type == 1:  # of padding, (B, L)
            hidden = hidden[:, None, None, :]
    visible = None if hidden is None else ~hidden
    shape = (len(source), heads)
    reduction = None if visible is None else reduce_mask(visible, shape, length, length).mask
    return Call(query=query, key=key, scoring=Scoring(mask=reduction))
