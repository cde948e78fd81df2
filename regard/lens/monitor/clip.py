"""The factors of QK-clip, which bound a head's largest score.

Axes: H query heads, G key heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.monitor.history import UpdateReading
from regard.record.sites import AttentionKind


@dataclass(frozen=True, eq=False)
class QKClip:
    """The factors on the weights of one layer's queries and keys, by `Monitor.qk_clip`.

    A score is a product of a query and a key, so the product of a head's two factors scales its
    scores: γ = min(1, τ / S_max) (Kimi Team 2025, arXiv:2507.20534, section 2.1). If each query
    head has a key head of its own, both get √γ. A key head that several query heads share gets
    the factor 1, and each of its query heads its γ: so no head is clipped because of another.
    The paper does this for the rotary part of the keys, which all heads share.

    Attributes:
        kind, layer: the layer.
        name: path of the module that attends.
        gamma: γ of each query head, ``(H,)``, float64.
        query: factor on the query weights of each head, and on their bias, ``(H,)``.
        key: factor on the key weights of each key head, and on their bias, ``(G,)``.

    Example:
        >>> import regard, torch
        >>> monitor = regard.Monitor(every=1)
        >>> x = torch.full((1, 2, 3, 4), 2.0, requires_grad=True)  # scores of 8
        >>> with monitor.update():
        ...     regard.attention(x, x, x).sum().backward()
        >>> (clip,) = monitor.qk_clip(tau=2.0)
        >>> clip.gamma.tolist(), clip.query.tolist()
        ([0.25, 0.25], [0.5, 0.5])
    """

    kind: AttentionKind
    layer: int
    name: str
    gamma: Float[Tensor, " H"]
    query: Float[Tensor, " H"]
    key: Float[Tensor, " G"]


def factors(reading: UpdateReading, quantity: str, tau: float) -> Iterator[QKClip]:
    """Yield the factors of each layer with a head above the bound."""
    of_places = reading.values[quantity].split([place.heads for place in reading.places])
    for place, largest in zip(reading.places, of_places, strict=True):
        # Infinity and NaN say nothing about the size of weights; the factor 0 would end the head.
        clipped = (largest > tau) & (largest < math.inf)
        if not clipped.any():
            continue
        gamma = torch.where(clipped, tau / largest, 1.0)
        if place.groups == place.heads:
            query = key = gamma.sqrt()
        else:
            query, key = gamma, gamma.new_ones(place.groups)
        yield QKClip(place.kind, place.layer, place.name, gamma, query, key)
