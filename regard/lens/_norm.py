"""A norm as a linear map with one scale per position, found by what it makes of a few vectors.

Axes: R positions, E model dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard._shapes import Float


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearNorm:
    """A norm of any class: y = scale · gain · x + bias, x centred or not, one scale a position.

    A class says none of it by itself: the gain of Gemma's is one plus its weight.
    """

    gain: Float[Tensor, " E"]
    bias: Float[Tensor, " E"]
    centres: bool
    """Whether it subtracts the mean of x, as LayerNorm does."""

    @classmethod
    @torch.no_grad()
    def of(cls, norm: nn.Module, width: int) -> LinearNorm:
        """Find the parts, in float64 on the CPU.

        Vectors of mean 0, of size 1 and far above epsilon, are multiplied by the gain alone, and
        shifted by the bias.

        Args:
            norm: takes and returns ``(1, E)``.
            width: E.
        """
        sign = torch.ones(width, dtype=torch.float64, device="cpu")
        sign[1::2] = -1
        if width % 2:
            sign[-3:] = sign.new_tensor([1.0, 1.0, -2.0])  # an odd number of signs has no mean 0
        like, size = next(norm.parameters(), sign), 1024.0

        def apply(x: Tensor) -> Tensor:
            made: Tensor = norm((size * x).to(like)[None])
            return made[0].double().cpu()

        scaled = sign / sign.square().mean().sqrt()
        up, down = apply(sign), apply(-sign)
        moved = (apply(sign + 1) - up).abs().max() > 0.1 * (up - down).abs().max()
        return cls(gain=(up - down) / 2 / scaled, bias=(up + down) / 2, centres=not bool(moved))

    def scales(self, x: Float[Tensor, "R E"], y: Float[Tensor, "R E"]) -> Float[Tensor, "R 1"]:
        """Return the scale at each position, of what the norm took and gave there."""
        inner = self.gain * self._centred(x)
        size = inner.square().sum(-1, keepdim=True)
        return ((y - self.bias) * inner).sum(-1, keepdim=True) / size.clamp(min=1e-300)

    def carried_back(self, direction: Float[Tensor, "R E"]) -> Float[Tensor, "R E"]:
        """Return what reads from x what the direction reads from y, but for scale and bias."""
        return self._centred(direction * self.gain)

    def _centred(self, x: Float[Tensor, "R E"]) -> Float[Tensor, "R E"]:
        return x - x.mean(-1, keepdim=True) if self.centres else x
