"""The cached result of the checks, for calls with the same shapes, strides and dtypes.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.native import library, objection
from regard.backends.native._arguments import Arguments, pointers, repointed
from regard.inputs import Scoring, check


class Plan(NamedTuple):
    """A checked call, whose tensors the kernels read in place."""

    numbers: bytes
    """The packed problem, with placeholders for pointers and threads."""
    attend: Callable[..., int]
    """The library function that replaces them and computes the context."""
    shape: tuple[int, ...]
    """Shape of the context."""
    like_query: bool
    """Whether the context has the layout of the query, which torch allocates faster."""
    tables: list[Tensor]
    """Tables of the mask, kept alive because `numbers` has their addresses."""
    saved: list[Tensor]
    """The tensors that a checked call saves for backward after query, key and value."""

    def new_context(self, query: Float[Tensor, "*b L D"]) -> Float[Tensor, "*b L Dv"]:
        """Allocate the context."""
        return torch.empty_like(query) if self.like_query else query.new_empty(self.shape)

    def of(self, query: Tensor, key: Tensor, value: Tensor) -> bytes:
        """Pack the problem of these tensors."""
        return repointed(self.numbers, *pointers(query, key, value))


def make_plan(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Plan | None:
    """Check a call; wrong arguments raise the usual errors.

    Returns:
        None if the kernels do not support it, or would have to copy tensors.
    """
    problem = check(query, key, value, scoring)
    in_place = all(
        one.data_ptr() == other.data_ptr() and (one.stride(-1) == 1 or one.shape[-1] <= 1)
        for one, other in zip(
            (problem.query, problem.key, problem.value), (query, key, value), strict=True
        )
        if other is not None and one is not None
    )
    of_heads = ((problem.alibi, scoring.alibi), (problem.sink, scoring.sink))
    in_place = in_place and all(
        one.data_ptr() == other.data_ptr() and other.dtype == torch.float32
        for one, other in of_heads
        if other is not None and one is not None
    )
    loaded = library.load()
    if loaded is None or objection(problem) is not None or not in_place:
        return None
    arguments = Arguments.of(problem)
    numbers, kept = arguments.pack()
    shape = (*query.shape[:-1], value.shape[-1])
    return Plan(
        numbers=numbers,
        attend=loaded.regard_attend,
        shape=shape,
        like_query=shape == query.shape and query.is_contiguous(),
        tables=[tensor for tensor in kept if not tensor.is_floating_point()],
        saved=[tensor for tensor in arguments[3:] if isinstance(tensor, Tensor)],
    )
