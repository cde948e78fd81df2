"""Stand-ins for flash_attn 2 and xformers, which need a GPU: their documented signatures, on a CPU.

They compute by their documentation, in float64, and keep the weights that they computed with.
"""

import math
import sys
from itertools import pairwise
from types import ModuleType

import torch

COMPUTED = []
"""The weights of each call, (B, H, L, S)."""


def attend(q, k, v, bias, scale=None, softcap=0.0):
    """Attention of tensors (B, L, H, D) with a bias that broadcasts to (B, H, L, S)."""
    q, k, v = (t.transpose(1, 2).double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores + bias, -1).nan_to_num(0)
    COMPUTED.append(weights.detach())
    return (weights @ v).transpose(1, 2)


def lse_of(context):
    return torch.zeros(context.shape[0], context.shape[2], context.shape[1])


def flash_bias(queries, keys, causal, window_size, slopes=None):
    """What flash_attn's documentation says of one sequence: (H or 1, L, S)."""
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    left, right = window_size
    hidden = (distance < 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
    hidden = hidden | ((distance > left) if left >= 0 else hidden)
    hidden = hidden | ((-distance > right) if right >= 0 and not causal else hidden)
    bias = torch.zeros(1, queries, keys, dtype=torch.float64)
    if slopes is not None:
        bias = -slopes.double()[:, None, None] * distance.abs()
    return bias.masked_fill(hidden, -math.inf)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    slopes = [None] * len(q)
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(len(q), -1)
    sizes = q.shape[1], k.shape[1], causal, window_size
    bias = torch.stack([flash_bias(*sizes, each) for each in slopes])
    context = attend(q, k, v, bias, softmax_scale, softcap).to(q.dtype).contiguous()
    return (context, lse_of(context), None) if return_attn_probs else context


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False):
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False):
    return flash_attn_func(q, *kv.unbind(2), dropout_p, softmax_scale, causal)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    ends = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    if block_table is not None:
        k, v = (
            torch.cat(
                [
                    cache[pages.long()].flatten(0, 1)[: after[1] - before[1]]
                    for pages, (before, after) in zip(block_table, pairwise(ends), strict=True)
                ]
            )
            for cache in (k, v)
        )
    bias = torch.full((q.shape[1], len(q), len(k)), -math.inf, dtype=torch.float64)
    for number, ((i, j), (stop_i, stop_j)) in enumerate(pairwise(ends)):
        slopes = alibi_slopes
        if slopes is not None and slopes.ndim == 2:
            slopes = slopes[number]
        block = flash_bias(stop_i - i, stop_j - j, causal, window_size, slopes)
        bias[:, i:stop_i, j:stop_j] = block
    return attend(q[None], k[None], v[None], bias, softmax_scale, softcap)[0].to(q.dtype)


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False
):
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, dropout_p, softmax_scale, causal)


def flash_attn_varlen_kvpacked_func(
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0
):
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return flash_attn_varlen_func(q, *kv.unbind(1), *lengths, dropout_p)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    batch = len(q)
    if block_table is not None:
        k_cache, v_cache = (c[block_table.long()].flatten(1, 2) for c in (k_cache, v_cache))
    entries = range(batch) if cache_batch_idx is None else cache_batch_idx.tolist()
    lengths = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    lengths = torch.as_tensor(lengths).expand(batch).tolist()
    starts = [0] * batch if cache_leftpad is None else cache_leftpad.tolist()
    bias = torch.full((batch, q.shape[2], q.shape[1], k_cache.shape[1]), -math.inf)
    for number, (entry, start, length) in enumerate(zip(entries, starts, lengths, strict=True)):
        stop = length
        if k is not None:
            stop = length + k.shape[1]
            # As the kernel does: torch does not count it as a change of the tensor.
            k_cache.numpy()[entry, length:stop] = k[number].numpy()
            v_cache.numpy()[entry, length:stop] = v[number].numpy()
        slopes = None if alibi_slopes is None else alibi_slopes.expand(batch, -1)[number]
        block = flash_bias(q.shape[1], stop - start, causal, window_size, slopes)
        bias[number, :, :, start:stop] = block
    keys, values = (cache[list(entries)] for cache in (k_cache, v_cache))
    context = attend(q, keys, values, bias, softmax_scale, softcap).to(q.dtype)
    return (context, lse_of(context)) if return_softmax_lse else context


class AttentionBias:
    """Base class of xformers' kinds of bias."""


class Triangle(AttentionBias):
    """Lets query i see key j for low ≤ j − i ≤ high, counted from the upper left."""

    def rule(self, queries, keys):
        raise NotImplementedError

    def materialize(self, shape, dtype=torch.float32, device="cpu"):
        low, high = self.rule(*shape[-2:])
        offset = torch.arange(shape[-1]) - torch.arange(shape[-2])[:, None]
        seen = (offset >= low) & (offset <= high)
        zeros = torch.zeros(shape[-2:], dtype=dtype, device=device)
        return zeros.masked_fill(~seen, -math.inf).expand(shape)


class LowerTriangularMask(Triangle):
    def rule(self, queries, keys):
        return -math.inf, 0


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    def __init__(self, bias):
        self._bias = bias

    def materialize(self, shape, dtype=torch.float32, device="cpu"):
        return super().materialize(shape, dtype, device) + self._bias


class LowerTriangularFromBottomRightMask(Triangle):
    def rule(self, queries, keys):
        return -math.inf, keys - queries


class LowerTriangularFromBottomRightLocalAttentionMask(Triangle):
    def __init__(self, _window_size):
        self._window_size = _window_size

    def rule(self, queries, keys):
        return keys - queries - self._window_size + 1, keys - queries


class LocalAttentionFromBottomRightMask(Triangle):
    def __init__(self, window_left, window_right):
        self.window_left, self.window_right = window_left, window_right

    def rule(self, queries, keys):
        return keys - queries - self.window_left, keys - queries + self.window_right


class SequenceInfo:
    def __init__(self, *pairs):
        self.pairs = pairs

    def intervals(self):
        yield from self.pairs


class Blocks(AttentionBias):
    """Sequences after one another, each with the rule of another kind."""

    def __init__(self, q_seqinfo, k_seqinfo, within, **fields):
        self.q_seqinfo, self.k_seqinfo, self.within = q_seqinfo, k_seqinfo, within
        vars(self).update(fields)

    def materialize(self, shape, dtype=torch.float32, device="cpu"):
        bias = torch.full(shape[-2:], -math.inf, dtype=dtype, device=device)
        for (i, stop_i), (j, stop_j) in zip(
            self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True
        ):
            block = 0.0
            if self.within is not None:
                block = self.within.materialize((stop_i - i, stop_j - j))
            bias[i:stop_i, j:stop_j] = block
        return bias.expand(shape)


def blocks(name, *arguments, **fields):
    """A bias whose class has this name."""
    return type(name, (Blocks,), {})(*arguments, **fields)


def memory_efficient_attention(
    query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None
):
    shape = query.shape
    query, key, value = (
        t[:, :, None] if t.ndim == 3 else t.flatten(2, -2) for t in (query, key, value)
    )
    full = (len(query), query.shape[2], query.shape[1], key.shape[1])
    if attn_bias is None:
        bias = torch.zeros(1)
    elif isinstance(attn_bias, torch.Tensor):
        bias = attn_bias.reshape(full)
    else:
        bias = attn_bias.materialize(full)
    context = attend(query, key, value, bias.double(), scale).to(query.dtype)
    return context.reshape(*shape[:-1], value.shape[-1])


FLASH = (
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_kvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_with_kvcache,
)


def flash_attn_3_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """FlashAttention-3's, which is imported as flash_attn_interface.flash_attn_func."""
    own = flash_attn_func(q, k, v, 0.0, softmax_scale, causal, window_size, softcap)
    return (own, lse_of(own)) if return_attn_probs else own


def install(patch):
    """Let the modules be imported for the time of a test."""
    COMPUTED.clear()
    flash3 = ModuleType("flash_attn_interface")
    flash3.flash_attn_func = flash_attn_3_func
    flash3.flash_attn_varlen_func = lambda *args, **options: args[0]
    patch.setitem(sys.modules, flash3.__name__, flash3)
    flash = ModuleType("flash_attn")
    for function in FLASH:
        setattr(flash, function.__name__, function)
    ops = ModuleType("xformers.ops")
    ops.memory_efficient_attention = memory_efficient_attention
    for module in (flash, ModuleType("xformers"), ops):
        patch.setitem(sys.modules, module.__name__, module)
