"""`regard` as an attention implementation of `transformers`, and its use by a model.

Models whose implementation is "eager", "flex_attention" or a flash kernel never call SDPA. They
call the function registered under the name in their configuration; here that is `attention`, whose
calls are recorded like any other. Its masks are row intervals rather than matrices.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._contexts import is_batch
from regard._extras import needing
from regard.attention import attention
from regard.errors import RecordError
from regard.intercept._lazy_mask import LazyMask, lazy_mask
from regard.intercept._mask_reduction import reduce_function, reduce_mask
from regard.intercept._transformers_models import (
    NAME,
    calls_unseen,
    naming_regard,
    own_name,
    require_mask_interface,
    require_replaceable,
)
from regard.masks import Mask, causal, dense, padding

if TYPE_CHECKING:
    from regard.intercept._lazy_mask import LazyMask


# Arguments that change the weights in some model and that `attention` does not support.
_UNKNOWN = ("cache", "head_mask", "layer_head_mask", "sinks", "block_indices")
# Implementations that add any mask tensor to the scores, and hide nothing without one.
_ADDING = ("eager", "flex_attention")


def use_in_transformers() -> None:
    """Register ``regard`` with `transformers`: for ``model.set_attn_implementation("regard")``.

    The model then computes its attention with `regard.attention`, and a recording sees the calls.
    `record` does this by itself for a model that needs it.

    It works for every class whose file lets its attention be replaced, which
    ``set_attn_implementation`` needs. A class with its own attention code (Bloom, MPT, LED, ...)
    keeps it; if it was loaded with ``attn_implementation="regard"``, its first call raises a
    `RecordError`.

    Raises:
        ImportError: without transformers, which the extra ``transformers`` installs.

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
    """Attention function with the interface of `transformers`.

    Inside a block it replaces another implementation, and interprets arguments as that one does.

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
    """Convert a mask to the meaning it has in the implementation that is replaced.

    Args:
        mask: broadcastable to ``(B, H, L, S)``.
        own: name of the implementation.
        query: ``(B, H, L, D)``.
        has_sink: whether rows have a sink logit, which outweighs a row of the lowest number.

    Raises:
        RecordError: for integer masks that are not added, and for rows that "eager" makes NaN.
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
    """Reduce the model's mask; return it with the queries whose rows it makes uniform."""
    if mask is None or isinstance(mask, Mask):
        return mask, None
    if mask.shape[-1] > key.shape[-2]:
        mask = mask[..., : key.shape[-2]]
    if torch.compiler.is_compiling() or is_batch(mask):  # whose data cannot be read
        return dense(mask), None
    reduction = reduce_mask(mask, query.shape[:-2], query.shape[-2], key.shape[-2])
    return reduction.mask, reduction.uniform


@contextmanager
def replace_attention(model: nn.Module) -> Iterator[None]:
    """Make a model of `transformers` compute with ``regard`` wherever it would not call SDPA.

    This applies only on the current thread.

    Raises:
        RecordError: for a model whose attention cannot be replaced.
    """
    configs = _configs(model)
    if configs:
        use_in_transformers()
    with naming_regard(configs):
        yield


def _configs(model: nn.Module) -> list[Any]:
    """Return the distinct configurations that name an implementation that never calls SDPA."""
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
    """Return whether a module, or the file that defines it, supports attention implementations."""
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


def mask_interface(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    *,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,  # noqa: ARG001 - the interface's
) -> LazyMask | Mask | None:
    """Mask function with the interface of `transformers`, registered under ``regard``.

    Args:
        batch_size: B.
        q_length: L.
        kv_length: S.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: returns whether a key is visible, given batch, head, query and key.
        attention_mask: True for tokens, False for padding, ``(B, ≥ S)``.
        allow_is_bidirectional_skip: whether None may stand for a mask that hides nothing.
        use_vmap: whether the mask function takes one index at a time.
        device: the device of the mask.
        config: the configuration of the model.
        others: arguments of other implementations' masks.

    Returns:
        None only if every key may be seen; a `Mask` to a model that is being compiled.

    Raises:
        RecordError: for a model that computes its own attention.
    """
    from transformers import masking_utils

    compiling = torch.compiler.is_compiling()
    if not compiling:  # when compiling, the mask is no tensor, and adding it raises
        require_mask_interface(config)
    everything: Any = masking_utils.bidirectional_mask_function
    only_earlier: Any = masking_utils.causal_mask_function
    device = torch.device(device)
    # A graph can neither read data nor create a tensor subclass.
    first = q_offset if compiling else int(q_offset)
    offset = first - kv_offset
    keep = _keep(attention_mask, kv_length, kv_offset)
    if keep is not None and not compiling and bool(keep.all()):
        keep = None
    if mask_function is everything:
        if keep is None and allow_is_bidirectional_skip:
            return None
        mask = Mask(offset=offset)
    elif mask_function is None or mask_function is only_earlier:
        mask = causal(offset=offset)
    else:
        evaluate = partial(
            masking_utils.sdpa_mask,
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        if compiling:
            mask = replace(dense(evaluate(q_length=q_length, q_offset=first)), offset=offset)
        else:
            mask = reduce_function(
                lambda start, count: evaluate(q_length=count, q_offset=int(first) + start),
                (batch_size, 1),
                q_length,
                kv_length,
            )
            mask = replace(mask, offset=int(offset))
    if keep is not None:
        mask = mask & (dense(keep[:, None, None, :]) if compiling else _padding(keep))
    return mask if compiling else lazy_mask(mask, (batch_size, 1, q_length, kv_length), device)


def _keep(attention_mask: Tensor | None, keys: int, first: int) -> Tensor | None:
    """Crop the padding mask to the keys."""
    if attention_mask is None:
        return None
    missing = first + keys - attention_mask.shape[-1]
    keep = torch.nn.functional.pad(attention_mask.bool(), (0, max(missing, 0)))
    return keep[:, first : first + keys]


def _padding(keep: Tensor) -> Mask:
    try:
        return padding(keep)
    except ValueError:  # padding between tokens
        return dense(keep[:, None, None, :])
