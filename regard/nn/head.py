"""One attention head with trainable matrices, in its textbook form.

Axes: T positions, E channels in, D channels out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.attention import attention, attention_with_pattern
from regard.inputs import check_mask
from regard.masks import Mask
from regard.pattern import Pattern

__all__ = ["Head"]


class Head(nn.Module):
    """One head: ``softmax(mask((x Wq)(x Wk)ᵀ / √D)) @ (x Wv)``, without biases.

    Args:
        dim: E, channels of the input.
        head_dim: D, channels of query, key, value and context.
        mask: the keys that each query may see, as for `regard.attention`; None for all.
        dropout: probability of zeroing a weight, in training only.

    Attributes:
        query, key, value: the parameters, matrices ``(E, D)`` used as x @ query. They are
            initialized from a normal distribution with standard deviation 1/√E, which preserves
            the variance of x.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.

    Example:
        >>> import regard, torch
        >>> from regard.nn import Head
        >>> head = Head(3, 2, mask=regard.causal())
        >>> head(torch.rand(6, 3)).shape, head(torch.rand(4, 6, 3)).shape
        (torch.Size([6, 2]), torch.Size([4, 6, 2]))
    """

    def __init__(
        self, dim: int, head_dim: int, *, mask: Mask | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dim < 1 or head_dim < 1:
            raise ValueError(f"dim and head_dim must be at least 1, but are {dim} and {head_dim}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), but is {dropout}")
        check_mask(mask)
        self.mask = mask
        self.dropout = dropout
        deviation = 1 / math.sqrt(dim)
        self.query = nn.Parameter(torch.randn(dim, head_dim) * deviation)
        self.key = nn.Parameter(torch.randn(dim, head_dim) * deviation)
        self.value = nn.Parameter(torch.randn(dim, head_dim) * deviation)

    @classmethod
    def of(
        cls,
        query: Float[Tensor, "E D"],
        key: Float[Tensor, "E D"],
        value: Float[Tensor, "E D"],
        *,
        mask: Mask | None = None,
        dropout: float = 0.0,
    ) -> Head:
        """Make a head from three matrices, which are copied.

        Raises:
            ValueError: if the matrices do not share one shape ``(dim, head_dim)``.

        Example:
            >>> import torch
            >>> from regard.nn import Head
            >>> Head.of(torch.eye(3), torch.eye(3), torch.eye(3))
            Head(dim=3, head_dim=3, mask=None, dropout=0.0)
        """
        shapes = [tuple(matrix.shape) for matrix in (query, key, value)]
        if query.ndim != 2 or len(set(shapes)) > 1:
            raise ValueError(
                f"query, key and value must be matrices of one shape (dim, head_dim), not {shapes}"
            )
        head = cls(*query.shape, mask=mask, dropout=dropout)
        for name, matrix in (("query", query), ("key", key), ("value", value)):
            setattr(head, name, nn.Parameter(matrix.detach().clone()))
        return head

    def forward(
        self, x: Float[Tensor, "*b T E"], source: Float[Tensor, "*b S E"] | None = None
    ) -> Float[Tensor, "*b T D"]:
        """Attend from x to source, which is x itself by default.

        Args:
            x: ``(T, E)`` or ``(B, T, E)``: input of the queries.
            source: ``(S, E)`` or ``(B, S, E)``: input of keys and values.

        Raises:
            ValueError: if the number of channels is not dim.
        """
        return attention(
            *self._project(x, source),
            mask=self.mask,
            dropout=self.dropout if self.training else 0.0,
        )

    def with_pattern(
        self, x: Float[Tensor, "*b T E"], source: Float[Tensor, "*b S E"] | None = None
    ) -> tuple[Float[Tensor, "*b T D"], Pattern]:
        """Compute `forward`, and return the weights as a lazy `regard.Pattern` too.

        Forward hooks of the module do not run, since this is not a call of the module.
        """
        return attention_with_pattern(
            *self._project(x, source),
            mask=self.mask,
            dropout=self.dropout if self.training else 0.0,
        )

    def _project(self, x: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute query ``(B, T, D)``, key and value ``(B, S, D)``."""
        source = x if source is None else source
        dim = self.query.shape[0]
        for name, tensor in (("x", x), ("source", source)):
            if tensor.ndim < 2 or tensor.shape[-1] != dim:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, but this head takes (T, {dim}) or "
                    f"(B, T, {dim})"
                )
        return x @ self.query, source @ self.key, source @ self.value

    def extra_repr(self) -> str:
        """Describe sizes and options."""
        dim, head_dim = self.query.shape
        return f"dim={dim}, head_dim={head_dim}, mask={self.mask}, dropout={self.dropout}"
