"""A pattern as a linear operator: its products with matrices, exact, without being written out.

Axes: B batch, H query heads, L queries, S keys; M rows or N columns of the other factor.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard._tensors import matmul_alone
from regard.backends import choose_checked, run
from regard.inputs import Problem
from regard.pattern.index import Index
from regard.pattern.internal_readouts import LeftProduct
from regard.pattern.readable import Readable
from regard.pattern.singular_values import singular_values


class Factor(Readable):
    """A matrix ``(..., L, S)`` that is known by its products, of which torch's ``@`` makes use."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """``(..., L, S)``."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the results."""

    @abstractmethod
    def __matmul__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Average x with the weights of each row."""

    @abstractmethod
    def __rmatmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Sum the rows with the coefficients y."""

    def singular_values(self, k: int) -> Float[Tensor, "*b k"]:
        """Find the k largest singular values of each head's weights, largest first: ``(B, H, k)``.

        By products with the pattern and its transpose alone, in a block Krylov space that grows
        until each value is known to 1e-5 of the largest (1e-11 in float64): Musco and Musco 2015,
        arXiv:1504.05477, algorithm 2, with residuals for the next block. Memory is
        O((L + S)·(k + 8)·rounds).

        Raises:
            ValueError: if k is below 1. Above min(L, S), all are given.

        Example:
            >>> import regard, torch
            >>> x = torch.zeros(5, 1)
            >>> regard.Pattern(x, x).singular_values(2).round(decimals=3)  # all 1/5
            tensor([1., 0.])
        """
        return singular_values(
            lambda x: self @ x, lambda y: y @ self, self.shape, k, self.dtype, self.device
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let ``tensor @ pattern`` come here; no other torch function takes a pattern."""
        cure = "write its weights down with dense(), those of all layers with recording.dense()"
        return matmul_alone(Factor, function, types, args, kwargs, cure)


class LinearOperator(Factor):
    """The weights of an attention, ``(B, H, L, S)``, that multiply from either side."""

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """The attention whose weights these are, its tensors laid out as ``(B, H, L, D)``."""

    @property
    @abstractmethod
    def logsumexp(self) -> Float[Tensor, "*b L"]:
        """Log-sum-exp of each row."""

    @abstractmethod
    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Take a part: lazy if only batch and heads are picked, else exact weights."""

    @abstractmethod
    def dense(self, *, limit: int | None = ...) -> Float[Tensor, "*b L S"]:
        """Write all weights down, unless they take more bytes than the limit."""

    @abstractmethod
    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> LinearOperator:
        """Keep a range of queries and a range of keys."""

    @abstractmethod
    def at(self, queries: Int[Tensor, " l"]) -> LinearOperator:
        """Keep only the queries of an index."""

    @abstractmethod
    def sees(self, query: int, key: int) -> bool:
        """Whether any of the heads lets a query see a key."""

    @abstractmethod
    def visible_keys(self) -> slice:
        """The smallest range of keys that holds all that any query sees."""

    @property
    def shape(self) -> torch.Size:
        """``(B, H, L, S)``, with the leading dimensions of the query."""
        return torch.Size((*self.problem.leading, self.problem.queries, self.problem.keys))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights: float64 for a float64 query, else float32."""
        return self.problem.exact_dtype

    @property
    def device(self) -> torch.device:
        """Device of query, key and the results."""
        return self.problem.query.device

    def __matmul__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Average x with the weights of each row.

        Args:
            x: ``(S,)``, or ``(..., S, N)`` with leading dimensions that broadcast to the pattern's.
        """
        if not isinstance(x, torch.Tensor):
            return NotImplemented
        columns = x[:, None] if x.ndim == 1 else x
        _check_operand(self, x, columns, -2)
        spread = columns.expand(*self.problem.leading, *columns.shape[-2:]).to(self.dtype)
        value = spread.reshape(*self.problem.heads, *columns.shape[-2:])
        problem = replace(self.problem.cast(self.dtype), value=value)
        with torch.no_grad():
            context = problem.restore(run(problem, choose_checked(problem))[0])
        return context[..., 0] if x.ndim == 1 else context

    def __rmatmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Sum the rows of the pattern with the coefficients y.

        Args:
            y: ``(L,)``, or ``(..., M, L)`` with leading dimensions that broadcast to the pattern's.
        """
        if not isinstance(y, torch.Tensor):
            return NotImplemented
        rows = y[None] if y.ndim == 1 else y
        _check_operand(self, y, rows, -1)
        spread = rows.expand(*self.problem.leading, *rows.shape[-2:]).to(self.dtype)
        batch, heads = self.problem.heads
        product = self._tensor(LeftProduct(spread.reshape(batch * heads, *rows.shape[-2:])))
        return product[..., 0, :] if y.ndim == 1 else product


def _check_operand(pattern: LinearOperator, x: Tensor, matrix: Tensor, axis: int) -> None:
    """Raise `ValueError` unless an operand, as a matrix, fits a pattern.

    Args:
        pattern: the other factor.
        x: the operand.
        matrix: the operand as a matrix.
        axis: that of the matrix which is summed over: −2 takes the pattern's S, −1 its L.
    """
    leading = pattern.shape[:-2]
    letter, size = ("S", pattern.shape[-1]) if axis == -2 else ("L", pattern.shape[-2])
    try:
        fits = torch.broadcast_shapes(matrix.shape[:-2], leading) == leading
    except RuntimeError:
        fits = False
    if matrix.ndim < 2 or matrix.shape[axis] != size or not fits:
        raise ValueError(
            f"an operand of shape {tuple(x.shape)} does not fit {pattern!r}: it needs "
            f"{letter}={size} and leading dimensions that broadcast to {tuple(leading)}"
        )
    if x.device != pattern.device:
        raise ValueError(f"the operand is on {x.device}, the pattern on {pattern.device}")
