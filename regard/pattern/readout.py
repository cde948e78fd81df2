"""What a readout is: a reduction of a pattern that any number of others share a pass with.

Axes: N heads numbered through, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from regard.backends.kernel_spec import KernelSpec
    from regard.pattern.stream import Block

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

    @property
    def heads(self) -> int:
        """Number of heads, batch entries counted apart."""
        return torch.Size(self.leading).numel()

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Make a result's worth of zeros, ``(N, *shape)``, in float64 unless asked otherwise."""
        return torch.zeros(self.heads, *shape, dtype=dtype or torch.float64, device=self.device)

    def restore(self, result: Tensor) -> Tensor:
        """Give ``(N, ...)`` its leading dimensions back; fractions come in the pattern's dtype."""
        dtype = self.dtype if result.is_floating_point() else result.dtype
        return result.to(dtype).reshape(*self.leading, *result.shape[1:])


class Readout(ABC, Generic[State, Result]):
    """One reduction of a pattern, for `Pattern.read`."""

    @abstractmethod
    def begin(self, sizes: Sizes) -> State:
        """Make what is accumulated into; what no block touches keeps these values."""

    @abstractmethod
    def add(self, state: State, block: Block) -> None:
        """Take one block in."""

    @abstractmethod
    def finish(self, state: State, sizes: Sizes) -> Result:
        """Turn what was accumulated into the result."""

    def kernel_spec(self, sizes: Sizes) -> KernelSpec | None:  # noqa: ARG002 - what its parts need
        """Say how the kernels compute it; None, as for readouts of your own, has it streamed."""
        return None

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Result:
        """Turn what the kernels computed into the result."""
        (result,) = tensors
        return cast("Result", sizes.restore(result))
