"""The base class of readouts: reductions of a pattern that can share one pass over it.

Axes: N = B·H flattened heads, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from regard._shapes import Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.inputs import Problem
from regard.pattern.stream import WeightBlock

State = TypeVar("State")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sizes:
    """Sizes, dtype and device of a pattern, known before the first block."""

    leading: tuple[int, ...]
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device
    group: int | None = None
    """Number of consecutive heads that share a key head; None if heads were selected."""

    @property
    def heads(self) -> int:
        """N, the number of heads in all batch entries."""
        return torch.Size(self.leading).numel()

    def along(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Lengths of axes named ``query`` or ``key``."""
        lengths = {"query": self.queries, "key": self.keys}
        return tuple(lengths[axis] for axis in axes)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate zeros ``(N, *shape)``, in float64 by default."""
        return torch.zeros(self.heads, *shape, dtype=dtype or torch.float64, device=self.device)

    def restore(self, result: Tensor) -> Tensor:
        """Restore the leading dimensions of ``(N, ...)``; cast floats to the pattern's dtype."""
        dtype = self.dtype if result.is_floating_point() else result.dtype
        return result.to(dtype).reshape((*self.leading, *result.shape[1:]))

    def grouped(self) -> Sizes:
        """Return the sizes of a result with one entry per key head.

        Raises:
            ValueError: if heads were selected, or there is no axis of heads.
        """
        if self.group is None:
            raise ValueError(
                "grouped=True needs all heads that share a key, but this pattern is of picked "
                "heads; read the whole pattern, then index the result"
            )
        return replace(self, leading=(*self.leading[:-1], self.leading[-1] // self.group))


class Tile(NamedTuple):
    """A rectangle of a pattern, read as a pattern of its own: a range of queries and one of keys.

    A state holds the queries, or the keys, of one rank.
    """

    local_queries: slice
    """Indices of its queries in the state."""
    queries: slice
    """Positions of its queries in the whole sequence."""
    local_keys: slice
    """Indices of its keys in the state."""
    keys: slice
    """Positions of its keys in the whole sequence."""
    problem: Problem
    length: int | None = None
    """Number of queries of the whole sequence; None while it grows."""


class Readout(ABC, Generic[State, Result]):
    """A reduction of a pattern, for `Pattern.read`.

    A subclass defines `add`. If its result is one number per query or per key, accumulated in
    float64, the defaults of the other methods follow from `axes`.

    Example:
        >>> import regard, torch
        >>> class Squares(regard.readouts.Readout):  # the sum of the squared weights of a query
        ...     axes = ("query",)
        ...     def add(self, state, block):
        ...         state[block.heads, block.rows] += block.weights.square().sum(-1)
        >>> query = torch.zeros(1, 3, 4)  # uniform weights
        >>> _, pattern = regard.attention_with_pattern(query, query, query, mask=regard.causal())
        >>> pattern.read(Squares())[0]
        tensor([[1.0000, 0.5000, 0.3333]])
    """

    kind: ClassVar[Kind | None] = None
    """The kernels' reduction that computes it; None if it is streamed."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the result's axes after batch and heads."""
        return ()

    @property
    def title(self) -> str:
        """Its name in the readings of a recording."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def is_linear(self) -> bool:
        """Whether the result is linear in the weights, so that it commutes with their mean."""
        return False

    def begin(self, sizes: Sizes) -> State:
        """Create the state to accumulate into, with the values of a pattern without weights."""
        return cast("State", sizes.zeros(*sizes.along(self.axes)))

    @abstractmethod
    def add(self, state: State, block: WeightBlock) -> None:
        """Accumulate one block."""

    def finish(self, state: State, sizes: Sizes) -> Result:
        """Turn the state into the result."""
        return cast("Result", sizes.restore(cast("Tensor", state)))

    def restricted(self, queries: int) -> tuple[Readout[Any, Any], Int[Tensor, "l"]] | None:  # noqa: ARG002 - for those that leave some out
        """Return an equivalent readout of some queries, and their indices; None for all queries."""
        return None

    # By kernels

    def kernel_spec(self, sizes: Sizes) -> KernelSpec | None:
        """Describe it for the kernels; None, as for users' readouts, if it is to be streamed."""
        if self.kind is None:
            return None
        return KernelSpec(kind=self.kind, shape=sizes.along(self.axes))

    @property
    def has_kernel(self) -> bool:
        """Whether kernels can compute it."""
        return self.kind is not None or type(self).kernel_spec is not Readout.kernel_spec

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Result:
        """Turn the kernels' output into the result."""
        (result,) = tensors
        return cast("Result", sizes.restore(result))

    # For several ranks, or several calls of a model

    def of_tile(self, state: State, tile: Tile) -> tuple[Readout[Any, Any], ...]:  # noqa: ARG002 - for those that depend on it
        """Return the readouts to take of a tile, with indices relative to its start."""
        return (self,)

    def merge(self, state: State, tile: Tile, results: tuple[Any, ...]) -> None:
        """Merge the results of the readouts of `of_tile` into the state.

        A readout that does not define it can't be taken over several ranks. If `axes` has queries,
        each rank holds the state of its queries. If it has keys, the state is one tensor
        ``(N, ..., S)`` that is passed along with the keys; else it is reduced over all ranks. The
        latter two use `reduction`.
        """
        raise NotImplementedError

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """The reduction over the ranks, if `axes` has no queries."""
        return "sum"

    @property
    def is_mergeable(self) -> bool:
        """Whether its class defines `merge`."""
        return type(self).merge is not Readout.merge

    # While a model runs

    @property
    def depends_on_length(self) -> bool:
        """Whether its result for a row depends on the total numbers of queries or keys.

        They are unknown while a pattern grows.
        """
        return False

    def within(self, keys: int) -> Readout[State, Result]:  # noqa: ARG002 - for those that index keys
        """Return an equivalent readout that indexes none but the first `keys` keys.

        Keys that do not exist yet have weight 0. Returns itself if no index is out of range.
        """
        return self


def check_readout(readout: object) -> None:
    """Check that an argument is a readout.

    Raises:
        TypeError: if it is not.
    """
    if not isinstance(readout, Readout):
        raise TypeError(f"{readout!r} is not a readout; regard.pattern.readouts has them")
