"""Masks that hide some keys from some queries, or shift their scores."""

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
    """Hide some keys from some queries; their weight goes to the other keys.

    The memory is two integers per row for each run of adjacent keys, even if they are in the middle
    of a query's interval (attention knockout: Geva et al. 2023, arXiv:2304.14767).

    Args:
        keys: an integer, a slice or integers; negative ones count from the end S.
        queries: likewise, by position among the keys, as in `causal`; None means all. Positions
            without a query are allowed.
        heads: likewise, numbered 0 … H − 1; None means all.

    Raises:
        TypeError: for an index of the wrong type.
        ValueError: for a slice with a step below 1.
        IndexError: when the mask is used, for a key or a head that does not exist.

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
        by: the number, which gets no gradient; −inf hides the keys.
        keys: as for `hide`.
        queries: as for `hide`.
        heads: as for `hide`.

    Raises:
        TypeError: for a number or an index of the wrong type.
        ValueError: for NaN and for numbers beyond the range of float32; and as `hide`.
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
