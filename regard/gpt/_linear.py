"""Linear maps of generation: of one vector a sequence at every step.

Such a map costs what reading its matrix from memory costs. torch's product of a few vectors leaves
much of the bandwidth unused; regard's own kernel does not.

Axis letters: I inputs, O outputs of a map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._contexts import are_plain, must_dispatch
from regard._shapes import Float
from regard.backends import native


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def reset_parameters(self) -> None:
        """Draw initial weights, except on the meta device."""
        if not self.weight.is_meta:  # where torch would load its compiler for nothing
            super().reset_parameters()

    def forward(self, input: Float[Tensor, "*b I"]) -> Float[Tensor, "*b O"]:  # noqa: A002 - nn.Linear's name
        """``input @ weightᵀ + bias``."""
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` that leaves weights on the meta device alone."""

    def reset_parameters(self) -> None:
        """Draw initial weights, except on the meta device."""
        if not self.weight.is_meta:
            super().reset_parameters()


def linear(
    x: Float[Tensor, "*b I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
) -> Float[Tensor, "*b O"]:
    """``x @ weightᵀ + bias``; of a few vectors in inference mode by the kernel for them."""
    if may_use_kernel(x, weight, bias) and native.supports_matvec(x, weight, bias):
        return native.matvec(x, weight, bias)
    return F.linear(x, weight, bias)


def may_use_kernel(*arguments: Any) -> bool:
    """Whether the kernel may compute a product in torch's place.

    Not where gradients may be wanted, nor where something has to see the product or decides how it
    is computed: a graph, a transform, a profile, autocast, a tensor that is more than its memory.
    """
    if must_dispatch() or not torch.is_inference_mode_enabled():
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    return are_plain(*(argument for argument in arguments if argument is not None))
