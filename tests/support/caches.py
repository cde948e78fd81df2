"""Key/value caches written by hand, as models have them, and the weights that must come of them.

Weights of a step are held against those of the whole computation; float32 with head dimensions
below 10 keeps errors below 1e-6.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

B, H, D = 2, 3, 4
PROMPT, STEPS = 5, 4
T = PROMPT + STEPS
LOWER = torch.ones(29, 29, dtype=torch.bool).tril()
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def exact(query, key, *, visible=None):
    scores = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    if visible is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~visible, -math.inf), -1).nan_to_num(0)


def close(pattern, weights):
    assert pattern.shape == weights.shape
    torch.testing.assert_close(pattern.dense().double(), weights, rtol=0, atol=1e-6)


class Attend(nn.Module):
    """A layer that is handed query, key and value, so that tests write the cache themselves."""

    def forward(self, query, key, value=None, **options):
        return F.scaled_dot_product_attention(
            query, key, key if value is None else value, **options
        )


class Decoder(nn.Module):
    """Attention to itself, with a cache, and to a source, in either order."""

    def __init__(self, *, cross_first=False):
        super().__init__()
        self.self_attn, self.cross_attn = Attend(), Attend()
        self.cross_first = cross_first

    def forward(self, query, key, source, **options):
        """Read the newest tokens: all keys are given, and the queries of those tokens."""
        past, keys = key.shape[-2] - query.shape[-2], key.shape[-2]
        calls = [
            lambda: self.self_attn(query, key, attn_mask=LOWER[past:keys, :keys]),
            lambda: self.cross_attn(query, source, **options),
        ]
        for call in reversed(calls) if self.cross_first else calls:
            call()


def sequence(length=T):
    return torch.randn(2, B, H, length, D).unbind()


def chunks(*sizes):
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return list(itertools.pairwise(edges))


STEPWISE = chunks(PROMPT, *[1] * STEPS)


def grown(layer, query, key, parts, mask=CAUSAL):
    """Feed a sequence in parts, each of which sees the cache and itself through a mask of all."""
    cache = key[..., :0, :]
    for start, stop in parts:
        cache = torch.cat([cache, key[..., start:stop, :]], dim=-2)
        layer(query[..., start:stop, :], cache, attn_mask=mask[..., start:stop, :stop])


def decoded(model, query, key, source, parts, **options):
    """Let a `Decoder` read a sequence in parts; the source's keys are made anew for each."""
    for start, stop in parts:
        model(query[..., start:stop, :], key[..., :stop, :], source.clone(), **options)


def causal_prompt(layer, query, key, size=PROMPT, **options):
    """Feed a causal prompt, then single steps that see all there is without a mask."""
    layer(query[..., :size, :], key[..., :size, :], is_causal=True, **options)
    for t in range(size, query.shape[-2]):
        layer(query[..., t : t + 1, :], key[..., : t + 1, :], **options)
