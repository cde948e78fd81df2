"""Attention functions with one fault each, and the area that it is found in."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def tails(query, key, value, is_causal=False, scale=None):
    """Leave the keys behind the last whole tile of 64 out of the denominator."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(hidden, -torch.inf)
    scores = (scores - scores.amax(-1, keepdim=True)).exp()
    whole = key.shape[-2] // 64 * 64 or key.shape[-2]
    return scores @ value / scores[..., :whole].sum(-1, keepdim=True)


def one_off(query, key, value, is_causal=False, scale=None):
    """Let each query see the next key too."""
    see = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    see = see.tril(1) if is_causal else see
    return scaled_dot_product_attention(query, key, value, see, scale=scale)


def scaled_twice(query, key, value, is_causal=False, scale=None):
    """Apply a scale that is given to the query, and hand it on."""
    query = query if scale is None else query * scale
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)


def mean_of_empty(query, key, value, attn_mask=None):
    """Hide keys by the lowest number, so that a row without keys becomes a mean."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        attn_mask = torch.zeros(attn_mask.shape).to(query).masked_fill(~attn_mask, lowest)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1) @ value


def swallows(query, key, value, is_causal=False):
    """Turn NaN into numbers."""
    key, value = key.nan_to_num(), value.nan_to_num()
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def contiguous_alone(query, key, value, is_causal=False):
    """Read memory as if it were contiguous."""
    query, key, value = (
        t if t.is_contiguous() else t.as_strided(t.shape, torch.empty(t.shape).stride())
        for t in (query, key, value)
    )
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def no_maximum(query, key, value):
    """Exponentiate scores as they are."""
    weights = (query @ key.mT * query.shape[-1] ** -0.5).exp()
    return weights @ value / weights.sum(-1, keepdim=True)


def detached(query, key, value):
    """Lose a part of the key's gradient."""
    key = key.detach() / 2 + key / 2
    return scaled_dot_product_attention(query, key, value)


def writes(query, key, value, attn_mask=None):
    """Scale the query in place."""
    query.mul_(query.shape[-1] ** -0.5)
    return scaled_dot_product_attention(query, key, value, attn_mask, scale=1.0)


def not_rescaled(query, key, value, dropout_p=0.0):
    """Drop weights without dividing the others."""
    whole = scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    return whole * (1 - dropout_p)


def drops_results(query, key, value, dropout_p=0.0):
    """Drop and scale, but each weight kept by another factor."""
    whole = scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    return whole * torch.where(torch.rand(whole.shape) < 0.5, 0.5, 1.5) if dropout_p else whole


def mixes(query, key, value):
    """Let each sequence see the mean of a batch, where there are many queries."""
    context = scaled_dot_product_attention(query, key, value)
    shared = context - context.mean(0, keepdim=True) * 1e-3
    return shared if len(query) > 1 and query.shape[-2] > 100 else context


def restless(query, key, value):
    """Add noise."""
    return scaled_dot_product_attention(query, key, value) * (1 + 1e-3 * torch.randn(()))


FIRST = {  # the simplest area that each differs in
    tails: "lengths",
    one_off: "causal",
    scaled_twice: "scale",
    mean_of_empty: "fully masked rows",
    swallows: "NaN and ∞",
    contiguous_alone: "strides",
    no_maximum: "large scores",
    detached: "gradients",
    writes: "inputs unchanged",
    not_rescaled: "dropout",
    drops_results: "dropout",
    mixes: "lengths",
    restless: "plain",
}
