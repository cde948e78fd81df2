"""Attention inside torch's fused transformer layers, intercepted at the fused operators.

In evaluation mode `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder`
may call one operator that computes everything. Its argument is the input of the projections, from
which query and key are computed here. Where its context may be changed or is observed,
`FusedLayers` has their ``forward`` compute the parts, as torch does under a function mode.

Axes: B batch, H heads, L positions, E model dimension, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._contexts import is_batch
from regard.errors import RecordError
from regard.inputs import Scoring
from regard.intercept._call import Call
from regard.intercept._functions import Handler
from regard.intercept._mask_reduction import reduce_mask
from regard.intercept._operators import FUSED_ATTENTION, FUSED_LAYER, is_intercepting
from regard.masks import dense

if TYPE_CHECKING:
    from regard.intercept._compute import Interceptor

FORWARDS = tuple(
    f"{kind.__module__}:{kind.__name__}.forward"
    for kind in (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
)
"""Paths of the methods that may call a fused operator."""


class FusedLayers:
    """Runs these ``forward`` methods and operators on one thread.

    Args:
        interceptor: receives the calls.
    """

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor
        self._layers: list[nn.Module] = []
        """The layers whose ``forward`` runs, outermost first."""
        self.operators: dict[str, Handler] = {
            FUSED_ATTENTION: self._attention,
            FUSED_LAYER: self._encoder_layer,
        }
        """Handlers of the operators."""

    def __call__(
        self, path: str, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a ``forward``, without its operator if its attention may be changed."""
        assert isinstance(own, FunctionType), "replaced functions are"
        layer = args[0]
        if (
            own.__globals__["__name__"] == path.partition(":")[0]  # else a user has replaced it
            and is_intercepting()
            and self._interceptor.may_change_inside(layer)
        ):
            own = _without_operator(own)
        depth = len(self._layers)
        self._layers.append(layer)
        try:
            return own(*args, **kwargs)
        finally:
            del self._layers[depth:]

    def _attention(
        self,
        path: str,  # noqa: ARG002 - a handler's
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = own(*args, **kwargs)
        if self._interceptor.is_needed:
            self._notify(_of_attention(*args, **kwargs))
        return result

    def _encoder_layer(
        self,
        path: str,  # noqa: ARG002 - a handler's
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = own(*args, **kwargs)
        if self._interceptor.is_needed:
            call = _of_layer(*args, **kwargs)
            # A compiled layer has no forward in Python: the innermost one is another's.
            layers = (
                one for one in self._layers[-1:] if isinstance(one, nn.TransformerEncoderLayer)
            )
            self._notify(call.with_(modules=tuple(layer.self_attn for layer in layers)))
        return result

    def _notify(self, call: Call) -> None:
        if self._interceptor.needs_output:
            call, edits = self._interceptor.changed(call)
            if call.changed is not None or edits:
                raise RecordError(
                    "attention is changed, or its context observed, inside an operator of torch "
                    "that computes the whole layer, which was called by TorchScript or by the "
                    "model itself: trace or script the model later, or leave this layer out"
                )
        self._interceptor.notify(call)


def _without_operator(own: FunctionType) -> FunctionType:
    """Copy a ``forward``; torch's check for functions that are overridden says yes in the copy."""
    overrides = _Module(torch.overrides, has_torch_function=lambda _: True)
    names = own.__globals__ | {"torch": _Module(torch, overrides=overrides)}
    copy = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy


class _Module:
    """Proxy of a Python module with some names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


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
    # The MLP's norm, matrices and biases come first, then the mask and its type.
    mask, mask_type = (*others[6:], None, None)[:2]
    source, lengths = _padded(source)
    if norm_first:
        source = F.layer_norm(source, (dim,), norm_weight, norm_bias, eps)
    return _call(source, dim, heads, weight, bias, mask, mask_type, lengths)


def _padded(source: Tensor) -> tuple[Tensor, Tensor | None]:
    """Pad sequences of different lengths to a batch, and return their lengths."""
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
        if mask_type == 1:  # padding mask, (B, L)
            hidden = hidden[:, None, None, :]
    if hidden is None:
        seen = None
    elif is_batch(hidden):  # its data cannot be read
        seen = dense(~hidden)
    else:
        seen = reduce_mask(~hidden, (len(source), heads), length, length).mask
    return Call(query=query, key=key, scoring=Scoring(mask=seen))
