"""One attention head with trainable matrices, in its textbook form.

Axes: T positions, C channels in (d_in), D channels out (d_out).
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
    """One head: ``softmax(mask((x Wq)(x Wk)ᵀ / √d_out)) @ (x Wv)``, without biases.

    Args:
        d_in: channels of the input, C.
        d_out: channels of query, key, value and context, D; may differ from d_in.
        mask: the keys that each query may see, as for `regard.attention`; None for all.
        dropout: probability of zeroing a weight, in training only.

    Attributes:
        query, key, value: the parameters, matrices ``(d_in, d_out)`` used as x @ query. They are
            initialized from a normal distribution with standard deviation 1/√d_in, which preserves
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
        self, d_in: int, d_out: int, *, mask: Mask | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if d_in < 1 or d_out < 1:
            raise ValueError(f"d_in and d_out must be at least 1, but are {d_in} and {d_out}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), but is {dropout}")
        check_mask(mask)
        self.mask = mask
        self.dropout = dropout
        deviation = 1 / math.sqrt(d_in)
        self.query = nn.Parameter(torch.randn(d_in, d_out) * deviation)
        self.key = nn.Parameter(torch.randn(d_in, d_out) * deviation)
        self.value = nn.Parameter(torch.randn(d_in, d_out) * deviation)

    @classmethod
    def of(
        cls,
        query: Float[Tensor, "C D"],
        key: Float[Tensor, "C D"],
        value: Float[Tensor, "C D"],
        *,
        mask: Mask | None = None,
        dropout: float = 0.0,
    ) -> Head:
        """Make a head from three matrices, which are copied.

        Raises:
            ValueError: if the matrices do not share one shape ``(d_in, d_out)``.

        Example:
            >>> import torch
            >>> from regard.nn import Head
            >>> Head.of(torch.eye(3), torch.eye(3), torch.eye(3))
            Head(d_in=3, d_out=3, mask=None, dropout=0.0)
        """
        shapes = [tuple(matrix.shape) for matrix in (query, key, value)]
        if query.ndim != 2 or len(set(shapes)) > 1:
            raise ValueError(
                f"query, key and value must be matrices of one shape (d_in, d_out), not {shapes}"
            )
        head = cls(*query.shape, mask=mask, dropout=dropout)
        for name, matrix in (("query", query), ("key", key), ("value", value)):
            setattr(head, name, nn.Parameter(matrix.detach().clone()))
        return head

    def forward(
        self, x: Float[Tensor, "*b T C"], source: Float[Tensor, "*b S C"] | None = None
    ) -> Float[Tensor, "*b T D"]:
        """Attend from x to source, which is x itself by default.

        Args:
            x: ``(T, C)`` or ``(B, T, C)``: input of the queries.
            source: ``(S, C)`` or ``(B, S, C)``: input of keys and values.

        Raises:
            ValueError: if the number of channels is not d_in.
        """
        return attention(
            *self._project(x, source),
            mask=self.mask,
            dropout=self.dropout if self.training else 0.0,
        )

    def with_pattern(
        self, x: Float[Tensor, "*b T C"], source: Float[Tensor, "*b S C"] | None = None
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
        d_in = self.query.shape[0]
        for name, tensor in (("x", x), ("source", source)):
            if tensor.ndim < 2 or tensor.shape[-1] != d_in:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, but this head takes (T, {d_in}) or "
                    f"(B, T, {d_in})"
                )
        return x @ self.query, source @ self.key, source @ self.value

    def extra_repr(self) -> str:
        """Describe sizes and options."""
        d_in, d_out = self.query.shape
        return f"d_in={d_in}, d_out={d_out}, mask={self.mask}, dropout={self.dropout}"
