"""Masks that change the scores of some keys for some queries: what hides a key amid others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from regard._arguments import check_indices
from regard.masks._mask import Mask
from regard.masks.spans import ScoreChange

__all__ = ["add_to_scores", "hide"]

_LARGEST = torch.finfo(torch.float32).max


def hide(
    keys: int | slice | Sequence[int],
    queries: int | slice | Sequence[int] | None = None,
    *,
    heads: int | slice | Sequence[int] | None = None,
) -> Mask:
    """Hide some keys from some queries; the other keys share their weight.

    What it takes is two integers a row for each run of adjacent keys, also where they lie amid
    those that a query sees (attention knockout: Geva et al. 2023, arXiv:2304.14767).

    Args:
        keys: an integer, a slice or integers; negative ones count from the end S.
        queries: likewise, by position, as `causal` compares them with keys; None is all. Positions
            at which no query sits are allowed.
        heads: likewise, numbered 0 … H − 1; None is all.

    Raises:
        TypeError: for an index of another kind.
        ValueError: for a slice that does not go forward.
        IndexError: where the mask is used, for a key or a head that does not exist.

    Example:
        >>> import regard
        >>> mask = regard.causal() & regard.masks.hide(1, queries=slice(2, None))
        >>> mask.visible(4, 4).int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    """
    return _mask(-math.inf, keys, queries, heads)


def add_to_scores(
    by: float,
    keys: int | slice | Sequence[int],
    queries: int | slice | Sequence[int] | None = None,
    heads: int | slice | Sequence[int] | None = None,
) -> Mask:
    """Add a number to the scores of some keys, after softcap and bias; see `hide`.

    Args:
        by: the number, without a gradient; −inf hides the keys.
        keys: as for `hide`.
        queries: as for `hide`.
        heads: as for `hide`.

    Raises:
        TypeError: for a number or an index of another kind.
        ValueError: for NaN and for numbers that float32 does not hold; and as `hide`.
        IndexError: as `hide`.
    """
    if isinstance(by, bool) or not isinstance(by, (int, float)):
        raise TypeError(f"by must be a number, but is {type(by).__name__}")
    if not (by == -math.inf or abs(by) <= _LARGEST):
        raise ValueError(f"by must be −inf or within ±{_LARGEST:.3g}, but is {by}")
    return _mask(float(by), keys, queries, heads)


def _mask(added: float, keys: object, queries: object, heads: object) -> Mask:
    checked = check_indices("keys", keys)
    if checked is None:
        raise TypeError(
            "keys must be an integer, a slice or integers, but is None; for all keys "
            "pass slice(None)"
        )
    change = ScoreChange(
        added, checked, check_indices("queries", queries), check_indices("heads", heads)
    )
    return Mask(score_changes=(change,))
