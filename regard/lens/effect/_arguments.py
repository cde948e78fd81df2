"""The arguments of `effects`, checked, and the blocks that a text is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from regard._arguments import check_whole, is_whole
from regard.lens.effect._table import Method, Over, Place
from regard.record import Recording

_BLOCKS = 64  # most blocks of keys that a text is cut into


def check_arguments(over: Any, method: Any, by: Any, spans: Any, batch_size: Any) -> None:
    """Check what needs no model.

    Raises:
        TypeError: for a batch size that is not a number.
        ValueError: for anything else.
    """
    for name, value, choices in (
        ("over", over, get_args(Over)),
        ("method", method, get_args(Method)),
    ):
        if value not in choices:
            listed = " or ".join(map(repr, choices))
            raise ValueError(f"{name} must be {listed}, but is {value!r}")
    if not isinstance(by, Recording) and by not in ("zero", "mean"):
        raise ValueError(f"by must be 'zero', 'mean' or a Recording, but is {by!r}")
    if over == "keys" and method == "gradient":
        raise ValueError(
            "method='gradient' approximates the ablation of heads; over='keys' needs "
            "method='ablation'"
        )
    if over == "keys" and by != "zero":
        raise ValueError(f"by={by!r} ablates heads; over='keys' hides keys: leave by out")
    if over == "heads" and spans is not None:
        raise ValueError("spans are blocks of keys: give over='keys' with them")
    if batch_size is not None:
        check_whole(batch_size, "batch_size")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}")


def blocks_of(length: int) -> list[Place]:
    size = -(-length // _BLOCKS)
    return [(first, min(first + size, length)) for first in range(0, length, size)]


def checked_spans(spans: Sequence[Place], length: int) -> list[Place]:
    blocks = [tuple(span) if isinstance(span, (tuple, list)) else (span,) for span in spans]
    for block in blocks:
        if len(block) != 2 or not all(map(is_whole, block)):
            raise TypeError(f"spans must be pairs of whole numbers (first, stop), but hold {block}")
        first, stop = block
        if not 0 <= first < stop <= length:
            raise ValueError(
                f"spans: ({first}, {stop}) is not a span of keys; it must hold 0 ≤ first < stop ≤ "
                f"{length}, the number of tokens"
            )
    if not blocks:
        raise ValueError("spans is empty; leave it out to take each token")
    return [(block[0], block[1]) for block in blocks]


def block_name(block: Place, tokens: tuple[str, ...] | None) -> str:
    """A block's name: where it is, and what its tokens are called."""
    first, stop = block
    where = str(first) if stop == first + 1 else f"{first}–{stop - 1}"
    return where if tokens is None else f"{where} {''.join(tokens[first:stop])}"
