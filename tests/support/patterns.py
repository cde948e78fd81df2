"""Patterns under every mask and option, at any size, and everything that can be read of them."""

import math

import torch

import regard
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Max, Offsets, Received, TopK

SUMMED = (Received(), Offsets(70), Image(13, 11), Image(1, 2), Image(1000, 1000))
BY_ROW = (Max(), Entropy(), Distance(), Mass(slice(3, 40, 3)))
READOUTS = (TopK(5), *BY_ROW, *SUMMED)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(results):
    return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]


def everything(pattern, readouts=READOUTS):
    """All results as tensors with leading dimensions, but for the positions of the strongest."""
    top, *others = pattern.read(*readouts)
    *_, queries, keys = pattern.shape
    rows = normal(3, queries, seed=9).to(pattern.dtype)
    chosen = [keys - 1, 0, keys // 2, keys // 3, keys // 3]
    return {
        "TopK": top.weights,
        **{repr(r): result for r, result in zip(readouts[1:], others, strict=True)},
        "logsumexp": pattern.logsumexp,
        "weights": pattern.dense(),
        "columns": pattern[..., :, chosen],
        "a stretch": pattern[..., queries // 2, keys // 4 : keys // 2 + 1],
        "rows @ pattern": rows @ pattern,
    }


def masks(queries, keys, entries=slice(None), heads=6):
    """Masks of two entries: one that both share, or one each."""
    index = torch.arange(keys)
    keep = torch.stack([index >= keys // 3, index < keys - keys // 4])[entries]
    ids = torch.stack([index // 50, index // (keys // 2 + 1)])[entries]
    dense = normal(2, 1, queries, keys, seed=3) > -1
    bias = normal(1, heads, queries, keys, seed=4).masked_fill(~dense[:1], -math.inf)
    dense = dense[entries]
    return {
        "none": {},
        "causal": {"mask": regard.causal()},
        "window": {"mask": regard.causal() & regard.window(37)},
        "padding": {"mask": regard.causal() & regard.padding(keep)},
        "documents": {"mask": regard.documents(ids)},
        "early": {"mask": regard.causal(offset=-20), "sink": normal(heads, seed=5)},
        "dense": {"mask": regard.causal() & regard.dense(dense)},
        "bias": {"bias": bias, "scale": -0.3},
        "alibi": {"alibi": 0.5 ** torch.arange(1, heads + 1), "softcap": 3.0},
    }


NAMES = list(masks(1, 1))


def inputs(queries, keys, dtype=torch.float32, heads=6, groups=2):
    """Two entries of six heads, of which three share a key, by default."""
    query, key = normal(2, heads, queries, 19), normal(2, groups, keys, 19, seed=1)
    return query.to(dtype), key.to(dtype)
