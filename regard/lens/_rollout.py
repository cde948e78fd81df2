"""Attention rollout for one position: a vector taken through all layers.

Axes: B batch, H heads, L = S positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.layer import require_one_run


def _rollout_of(
    patterns: Sequence[Pattern], *, query: int | None, source: int | None, residual: float
) -> Float[Tensor, "B S"]:
    """Take one row or one column of the rollout through some patterns."""
    if (query is None) == (source is None):
        raise ValueError(
            f"rollout follows one position: give query=, a target, or source=, but got "
            f"query={query}, source={source}"
        )
    if isinstance(residual, bool) or not isinstance(residual, (int, float)):
        raise TypeError(f"residual must be a number, but is {residual!r}")
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must lie in [0, 1], but is {residual}")
    _check_square(patterns)
    first = patterns[0]
    vector = torch.zeros(len(first), first.shape[-1], dtype=first.dtype, device=first.device)
    vector[:, _place("query" if source is None else "source", query, source, first)] = 1
    for pattern in reversed(patterns) if source is None else patterns:
        mixed = _through(vector, pattern, rows=source is None)
        vector = residual * vector + (1 - residual) * mixed
    return vector


def _through(vector: Tensor, pattern: Pattern, *, rows: bool) -> Float[Tensor, "B S"]:
    """Multiply by a layer's weights, averaged over its heads."""
    if rows:
        result: Tensor = vector[:, None, None] @ pattern  # (B, H, 1, S)
    else:
        result = (pattern @ vector[:, None, :, None]).transpose(-1, -2)  # (B, H, 1, L)
    return result[..., 0, :].mean(1)


def _check_square(patterns: Sequence[Pattern]) -> None:
    if not patterns:
        raise ValueError("there is no layer to follow attention through")
    for pattern in patterns:
        square = pattern.ndim == 4 and pattern.shape[-2] == pattern.shape[-1]
        if not square or pattern.shape[::3] != patterns[0].shape[::3]:
            shapes = sorted({tuple(p.shape) for p in patterns})
            raise ValueError(
                f"rollout needs layers of (B, H, L, L) over the same positions, but they are "
                f"{shapes}; record all rows, from the prompt on"
            )


def _place(name: str, query: int | None, source: int | None, pattern: Pattern) -> int:
    position = query if source is None else source
    if isinstance(position, bool) or not isinstance(position, int):
        raise TypeError(f"{name} must be an integer, but is {position!r}")
    size = pattern.shape[-1]
    if not -size <= position < size:
        raise IndexError(f"{name}={position} is out of range: there are {size} positions")
    return position


def rollout(
    recording: Recording,
    query: int | None = None,
    *,
    source: int | None = None,
    residual: float = 0.5,
) -> Float[Tensor, "B S"]:
    """Follow attention through all layers: attention rollout.

    Each layer's weights, averaged over heads, are mixed with the identity, which stands for the
    residual stream: ``A' = residual·I + (1 − residual)·A``. Rollout is the product
    ``A'_n ··· A'_1`` (Abnar and Zuidema 2020, arXiv:2005.00928, equation 1, with residual 0.5).
    One row or column of it takes a vector through the layers; no L × L product is made.

    Args:
        recording: its layers must be square and over the same positions.
        query: a target position, negative from the end; the result is its row of the rollout, the
            share of each source position.
        source: instead of `query`, a source position; the result is its column, its share in each
            target position.
        residual: weight of the residual stream, in [0, 1].

    Returns:
        ``(B, S)``; a row sums to 1 if every query sees a key.

    Raises:
        ValueError: unless exactly one position is given, and for layers that are not square.
        RecordError: if several runs were recorded.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> model = torch.nn.Sequential(layer, layer)
        >>> with regard.record(model) as recording:
        ...     _ = model(torch.randn(1, 5, 6))
        >>> regard.lens.rollout(recording, query=-1).sum().round(decimals=4)
        tensor(1.)
    """
    patterns = [layer.pattern for layer in require_one_run(recording.of_kind().layers, "rollout")]
    return _rollout_of(patterns, query=query, source=source, residual=residual)
