"""The texts of a recorded layer: one pattern per sequence of the batch, without padding.

Axes: B batch, H heads of a layer, T tokens of one text.
"""

from __future__ import annotations

import torch

from regard.errors import RecordError
from regard.pattern import Pattern
from regard.record.layer import Layer

__all__ = ["extent", "part_of", "texts_of"]


def texts_of(layer: Layer, what: str) -> list[Pattern]:
    """Return the pattern ``(H, T, T)`` of each sequence of the batch, padding included.

    Args:
        layer: a layer that attends to its own sequence.
        what: what needs whole sequences, for the error: ``"heads are scored"``.

    Raises:
        RecordError: if only some rows were recorded, or rows attend to another sequence.
    """
    pattern = layer.pattern
    if (
        pattern.ndim not in (3, 4)
        or pattern.shape[-2] != pattern.shape[-1]
        or layer.kind == "cross"
    ):
        raise RecordError(
            f"{what} over whole sequences that attend to themselves, but "
            f"{layer.name or 'a layer'} was recorded as {pattern!r}, kind {layer.kind!r}; record "
            "all rows of self-attention, from the prompt on"
        )
    return [pattern] if pattern.ndim == 3 else [pattern[i] for i in range(len(pattern))]


def extent(pattern: Pattern) -> tuple[int, int]:
    """Return start and stop of the tokens of a padded sequence: queries that see themselves."""
    rows = pattern.problem.rows
    index = torch.arange(rows.queries, device=rows.start.device)
    sees = ((rows.start <= index) & (index < rows.stop)).flatten(0, 1).any(0)
    seen = sees.nonzero().flatten()
    if not rows.is_interval or seen.numel() == 0:
        return 0, rows.queries
    return int(seen[0]), int(seen[-1]) + 1


def part_of(pattern: Pattern, start: int, stop: int) -> Pattern:
    """Crop a pattern to the queries and keys of a range, outside which it sees none."""
    if (start, stop) == (0, pattern.shape[-2]):
        return pattern
    part = slice(start, stop)
    return Pattern.of(pattern.problem.crop(part, part), None)
