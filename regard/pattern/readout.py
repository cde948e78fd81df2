"""What a readout is: a reduction of a pattern that any number of others share a pass with.

Axes: N heads numbered through, L queries, S keys; a block has n heads, R rows, C columns.
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
    """What a readout needs to know of the pattern before the first block."""

    leading: tuple[int, ...]
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device
    group: int | None = None
    """How many heads after one another share a key head; None if they were picked one by one."""

    @property
    def heads(self) -> int:
        """Number of heads, batch entries counted apart."""
        return torch.Size(self.leading).numel()

    def along(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Lengths of axes that are named ``query`` or ``key``."""
        lengths = {"query": self.queries, "key": self.keys}
        return tuple(lengths[axis] for axis in axes)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Make a result's worth of zeros, ``(N, *shape)``, in float64 by default."""
        return torch.zeros(self.heads, *shape, dtype=dtype or torch.float64, device=self.device)

    def restore(self, result: Tensor) -> Tensor:
        """Give ``(N, ...)`` its leading dimensions back; fractions come in the pattern's dtype."""
        dtype = self.dtype if result.is_floating_point() else result.dtype
        return result.to(dtype).reshape((*self.leading, *result.shape[1:]))

    def grouped(self) -> Sizes:
        """Of a result with one entry for each key head.

        Raises:
            ValueError: if heads were picked, or there is no axis of them.
        """
        if self.group is None:
            raise ValueError(
                "grouped=True needs all heads that share a key, but this pattern is of picked "
                "heads; read the whole pattern, then index the result"
            )
        return replace(self, leading=(*self.leading[:-1], self.leading[-1] // self.group))


class Tile(NamedTuple):
    """A rectangle of a pattern, read as a pattern of its own: some queries against some keys.

    Positions are those in the whole sequence; a state holds the queries, or the keys, of one rank.
    """

    local_queries: slice
    """Where its queries lie in a state along queries."""
    queries: slice
    """Their positions."""
    local_keys: slice
    """Where its keys lie in a state along keys."""
    keys: slice
    """Their positions."""
    problem: Problem
    length: int | None = None
    """Queries of the whole sequence; None while it still grows."""


class Readout(ABC, Generic[State, Result]):
    """One reduction of a pattern, for `Pattern.read`.

    A class has to give `add`. Where its result is one number for each query or each key, summed or
    set in float64, the rest follows from `axes`.

    Example:
        >>> import regard, torch
        >>> class Squares(regard.readouts.Readout):  # of a query: the sum of its squared weights
        ...     axes = ("query",)
        ...     def add(self, state, block):
        ...         state[block.heads, block.rows] += block.weights.square().sum(-1)
        >>> query = torch.zeros(1, 3, 4)  # so that every query shares its weight equally
        >>> _, pattern = regard.attention_with_pattern(query, query, query, mask=regard.causal())
        >>> pattern.read(Squares())[0]
        tensor([[1.0000, 0.5000, 0.3333]])
    """

    kind: ClassVar[Kind | None] = None
    """Which of the kernels' reductions it is; None: it is streamed."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the result's axes, those of batch and head left out."""
        return ()

    @property
    def title(self) -> str:
        """Its name among the readings of a recording."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def is_linear(self) -> bool:
        """Whether the result is linear in the weights: of their mean, it is the mean of results."""
        return False

    def begin(self, sizes: Sizes) -> State:
        """Make what is accumulated into; what no block touches keeps these values."""
        return cast("State", sizes.zeros(*sizes.along(self.axes)))

    @abstractmethod
    def add(self, state: State, block: WeightBlock) -> None:
        """Take one block in."""

    def finish(self, state: State, sizes: Sizes) -> Result:
        """Turn what was accumulated into the result."""
        return cast("Result", sizes.restore(cast("Tensor", state)))

    def restricted(self, queries: int) -> tuple[Readout[Any, Any], Int[Tensor, "l"]] | None:  # noqa: ARG002 - for those that leave some out
        """Say what to read of which queries instead, with the same result; None reads of all."""
        return None

    # By kernels

    def kernel_spec(self, sizes: Sizes) -> KernelSpec | None:
        """Say how the kernels compute it; None, as for readouts of your own, has it streamed."""
        if self.kind is None:
            return None
        return KernelSpec(kind=self.kind, shape=sizes.along(self.axes))

    @property
    def has_kernel(self) -> bool:
        """Whether kernels can compute it."""
        return self.kind is not None or type(self).kernel_spec is not Readout.kernel_spec

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Result:
        """Turn what the kernels computed into the result."""
        (result,) = tensors
        return cast("Result", sizes.restore(result))

    # Over several ranks, or several calls of a model

    def of_tile(self, state: State, tile: Tile) -> tuple[Readout[Any, Any], ...]:  # noqa: ARG002 - for those that depend on it
        """Say what to read of a tile, in which rows and columns count from the tile's first."""
        return (self,)

    def merge(self, state: State, tile: Tile, results: tuple[Any, ...]) -> None:
        """Take in the results of what `of_tile` names; a class without it is read in one process.

        By `axes`, a state lies with the queries of a rank, or is one tensor ``(N, ..., S)`` that
        travels with the keys, or, with neither among them, is reduced over all ranks; the latter
        two by `reduction`.
        """
        raise NotImplementedError

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """How the states of several ranks become one, where `axes` names no queries."""
        return "sum"

    @property
    def is_mergeable(self) -> bool:
        """Whether its class says how to merge the results of tiles."""
        return type(self).merge is not Readout.merge

    # While a model runs

    @property
    def depends_on_length(self) -> bool:
        """Whether what it reads of a row depends on how many queries or keys there are in all.

        Those are not known while a pattern still grows.
        """
        return False

    def within(self, keys: int) -> Readout[State, Result]:  # noqa: ARG002 - for those that number keys
        """Say what to read while there are only so many keys, for one that names keys by number.

        Keys that are not there have no weight yet. One that names no others is returned itself.
        """
        return self


def check_readout(readout: object) -> None:
    """Check that an argument is a readout.

    Raises:
        TypeError: if it is not.
    """
    if not isinstance(readout, Readout):
        raise TypeError(f"{readout!r} is not a readout; regard.pattern.readouts has them")
