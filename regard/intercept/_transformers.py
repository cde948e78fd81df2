"""`regard` as an attention implementation of `transformers`, and its use by a model.

Models whose implementation is "eager", "flex_attention" or a flash kernel never call SDPA. They
call whatever is registered under the name in their configuration; here that is `attention`, which
a recording sees like any other caller.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard._contexts import is_batch
from regard._extras import needing
from regard.attention import attention
from regard.errors import RecordError
from regard.intercept._configurations import NAME, calls_unseen, naming_regard, own_name
from regard.intercept._lazy_mask import LazyMask
from regard.intercept._mask_interface import mask_interface
from regard.intercept._mask_reduction import reduce_mask
from regard.intercept._supported import require_replaceable
from regard.masks import Mask, causal, dense

# Arguments that change the weights in some model and have no place in `attention`.
_UNKNOWN = ("cache", "head_mask", "layer_head_mask", "sinks", "block_indices")
# They add whatever tensor they get to the scores, and without one hide nothing.
_ADDING = ("eager", "flex_attention")


def use_in_transformers() -> None:
    """Register ``regard`` with `transformers`: for ``model.set_attn_implementation("regard")``.

    The model then computes its attention with `regard.attention`, and a recording sees the calls.
    `record` does this by itself for a model that needs it.

    It works for every class whose file lets its attention be replaced, which
    ``set_attn_implementation`` needs. A class with attention of its own (Bloom, MPT, LED, ...)
    keeps it; if it was loaded with ``attn_implementation="regard"``, its first call raises a
    `RecordError`.

    Raises:
        ImportError: without transformers, which the extra ``transformers`` brings.

    Example:
        >>> import regard, torch
        >>> from transformers import GPT2Config, GPT2Model
        >>> shape = dict(n_layer=1, n_head=2, n_embd=6, vocab_size=11, n_positions=7)
        >>> model = GPT2Model(GPT2Config(**shape, bos_token_id=None, eos_token_id=None)).eval()
        >>> from regard.record import use_in_transformers
        >>> use_in_transformers()
        >>> model.set_attn_implementation("regard")
        >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 6])
    """
    with needing("transformers"):
        from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, mask_interface)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Mask | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as the models of `transformers` call it.

    Inside a block it stands in for another implementation, and reads arguments as that one does.

    Args:
        module: the calling layer.
        query: ``(B, H, L, D)``, after rotary.
        key: ``(B, G, S, D)``, after the cache.
        value: ``(B, G, S, Dv)``.
        attention_mask: None, one that `mask_interface` made, or a tensor of the model's own.
        scaling: factor on the scores; None is 1/√D.
        dropout: probability of zeroing a weight.
        is_causal: with no mask, hide later keys; None asks the layer. In place of "eager" and
            "flex_attention" nothing is hidden.
        softcap: as for `attention`.
        s_aux: a sink of each head, ``(H,)``.
        position_bias: added to the scores, broadcastable to ``(B, H, L, S)``.
        indices: keys that each query may see, ``(B, L, k)``; None: all that the mask lets it see.
        others: arguments of other kernels; ignored as "sdpa" does.

    Returns:
        context ``(B, L, H, Dv)``, and None in place of the weights.

    Raises:
        RecordError: for an argument that changes the weights in a way `attention` does not know,
            or if weights are to be returned.
    """
    own = own_name(getattr(module, "config", None))
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise RecordError(
                f"{type(module).__name__} passes {name}, which regard's attention does not know; "
                "take its weights with attn_implementation='eager' and output_attentions=True"
            )
    if others.get("output_attentions"):
        raise RecordError(
            "output_attentions=True asks for weights that regard does not write down; leave it out "
            "and take recording[layer]"
        )
    if isinstance(attention_mask, Tensor) and not isinstance(attention_mask, LazyMask):
        attention_mask = _as_read(attention_mask, own, query, has_sink=s_aux is not None)
    mask, uniform = _mask(attention_mask, query, key)
    if uniform is not None:
        query = query.masked_fill(uniform[..., None], 0)
    if attention_mask is None and own not in _ADDING and query.shape[-2] > 1:
        if is_causal is None:
            is_causal = bool(getattr(module, "is_causal", False))
        mask = causal(offset=0) if is_causal else None
    if indices is not None:
        seen = indices.new_zeros((*indices.shape[:-1], key.shape[-2]), dtype=torch.bool)
        listed = dense(seen.scatter(-1, indices.long(), True)[:, None])  # noqa: FBT003 - torch's
        mask = listed if mask is None else mask & listed
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[-2]]
    context = attention(
        query,
        key,
        value,
        mask=mask,
        scale=None if scaling is None else float(scaling),
        softcap=softcap,
        bias=position_bias,
        sink=s_aux,
        dropout=dropout,
    )
    return context.transpose(1, 2).contiguous(), None


def _as_read(mask: Tensor, own: str | None, query: Tensor, *, has_sink: bool) -> Tensor:
    """A mask of the caller's as the implementation that is replaced reads it.

    Args:
        mask: broadcastable to ``(B, H, L, S)``.
        own: the name of the implementation.
        query: ``(B, H, L, D)``.
        has_sink: whether rows have another logit, beside which a row of the lowest number vanishes.

    Raises:
        RecordError: for integers that are not added, and for rows that "eager" makes NaN.
    """
    if own == "flex_attention":
        mask = mask[:, :1]  # it reads the first head's
    if own in _ADDING and not mask.is_floating_point():
        return mask.to(query.dtype)  # True is 1: it hides nothing
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise RecordError(
            f"attention_mask has dtype {mask.dtype}; give a matrix of bool, True where a key may "
            "be seen, or of floats, which are added to the scores"
        )
    if torch.compiler.is_compiling() or is_batch(mask):
        return mask
    if has_sink:
        return mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -torch.inf)
    if own == "eager" and bool((mask == -torch.inf).all(dim=-1).any()):
        raise RecordError(
            "attention_mask has rows of -inf alone, which 'eager' attention makes NaN; give each "
            "query a key that it may see, or hide keys by torch.finfo(dtype).min"
        )
    return mask


def _mask(
    mask: Tensor | Mask | None, query: Tensor, key: Tensor
) -> tuple[Mask | None, Tensor | None]:
    """Read the model's mask, and the queries whose rows it makes uniform."""
    if mask is None or isinstance(mask, Mask):
        return mask, None
    if mask.shape[-1] > key.shape[-2]:
        mask = mask[..., : key.shape[-2]]
    if torch.compiler.is_compiling() or is_batch(mask):  # which have no numbers to read
        return dense(mask), None
    reduction = reduce_mask(mask, query.shape[:-2], query.shape[-2], key.shape[-2])
    return reduction.mask, reduction.uniform


@contextmanager
def replace_attention(model: nn.Module) -> Iterator[None]:
    """Let a model of `transformers` compute with ``regard`` wherever it would not call SDPA.

    On this thread alone, which is the one that sees calls.

    Raises:
        RecordError: for a model that does not let its attention be replaced.
    """
    configs = _configs(model)
    if configs:
        use_in_transformers()
    with naming_regard(configs):
        yield


def _configs(model: nn.Module) -> list[Any]:
    """The configurations, each once, that name an implementation which never calls SDPA."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if not hasattr(config, "_attn_implementation_internal") or not _is_configurable(module):
            continue
        for part in _with_parts(config):
            name = own_name(part)
            if name is not None and calls_unseen(name):
                configs.setdefault(id(part), part)
                require_replaceable(module, name)
    return list(configs.values())


def _is_configurable(module: nn.Module) -> bool:
    """Whether a module, or the file that defines it, knows attention implementations."""
    kind = type(module)
    return hasattr(kind, "_can_set_attn_implementation") or hasattr(
        sys.modules.get(kind.__module__), "ALL_ATTENTION_FUNCTIONS"
    )


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", ()):
        part = getattr(config, name, None)
        if part is not None:
            yield from _with_parts(part)
