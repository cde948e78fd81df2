"""A pattern as a linear operator: exact products with matrices, without materializing it.

Axes: B batch, H query heads, L queries, S keys; M rows or N columns of the other factor.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard._tensors import broadcasts_to, matmul_alone
from regard.backends import choose_checked, run
from regard.inputs import Problem
from regard.pattern.index import Index, require_room, spelled_out
from regard.pattern.internal_readouts import LeftProduct, Weights
from regard.pattern.readable import Readable
from regard.pattern.reading import require_numbers
from regard.pattern.readout import Readout
from regard.pattern.singular_values import singular_values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

MYPY = False  # True to mypy, by this name
_LIMIT = 2**30  # maximum bytes of a slice, and of `dense` by default
_CURE = "write its weights down with dense(), those of all layers with recording.dense()"
# What does the work of a tensor's method, for those that other libraries call first.
_INSTEAD = {
    "size": f"its sizes are pattern.shape; for a tensor, {_CURE}",
    "squeeze": f"pattern[0] takes an axis of size 1 away; for a tensor, {_CURE}",
}


class Factor(Readable):
    """A matrix ``(..., L, S)`` defined by its products; supports ``@`` with tensors."""

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
        """Compute the weighted averages of x, ``(..., L, N)`` of ``(..., S, N)``."""

    @abstractmethod
    def __rmatmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Compute linear combinations of the rows, ``(..., M, S)`` of ``(..., M, L)``."""

    @abstractmethod
    def dense(self, *, limit: int | None = _LIMIT) -> Float[Tensor, "*b L S"]:
        """Materialize all weights, ``(..., L, S)``, unless they take more bytes than the limit."""

    def __array__(self, dtype: DTypeLike | None = None, *, copy: bool | None = None) -> np.ndarray:
        """Materialize all weights as an array of NumPy, within the limit of `dense`."""
        if copy is False:
            raise ValueError(
                f"a {type(self).__name__} computes its weights, so that an array of them is always "
                "a copy; expected copy=None or True"
            )
        weights: np.ndarray = self.dense().cpu().numpy()
        return weights if dtype is None else weights.astype(dtype, copy=False)

    if not MYPY:  # it would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Say what to write in place of a tensor's method or attribute."""
            said = f"a {type(self).__name__} has no attribute {name!r}"
            if not name.startswith("_") and hasattr(torch.Tensor, name):
                said += f", since it is not stored as a tensor: {_INSTEAD.get(name, _CURE)}"
            raise AttributeError(said, name=name, obj=self)

    def singular_values(self, k: int) -> Float[Tensor, "*b k"]:
        """Find the k largest singular values of each head's weights, largest first: ``(B, H, k)``.

        The block Krylov method of Musco and Musco 2015, arXiv:1504.05477, algorithm 2, with
        residuals as the next block. It multiplies by the pattern and its transpose only, until the
        error of each value is below 1e-5 of the largest (1e-11 in float64). Memory is
        O((L + S)·(k + 8)·iterations).

        Args:
            k: number of singular values; at most min(L, S) are returned.

        Raises:
            ValueError: if k is below 1.

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
        """Support ``tensor @ pattern``; any other torch function raises an error."""
        return matmul_alone(Factor, function, types, args, kwargs, _CURE)


class LinearOperator(Factor):
    """The weights of an attention, ``(B, H, L, S)``, with products from either side."""

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """The checked arguments of the attention, in the layout ``(B, H, L, D)``."""

    @property
    @abstractmethod
    def logsumexp(self) -> Float[Tensor, "*b L"]:
        """Log-sum-exp of each row, natural logarithm."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Index it: lazy if only batch and heads are indexed, else the exact weights.

        Integers, slices and one ellipsis may be used on any axis, and one list or tensor of
        indices on the queries or on the keys.

        Raises:
            IndexError: for an index out of range, or more indices than axes.
            TypeError: for an index of another type.
            ValueError: if these weights take more than 1 GiB.
        """
        *leading, rows, columns = spelled_out(index, self.ndim)
        pairs = self._pairs()[tuple(leading)]
        whole = slice(None)
        if isinstance(rows, slice) and isinstance(columns, slice) and rows == columns == whole:
            return self._sub(pairs)
        return self._weights(pairs, rows, columns, _LIMIT)

    def dense(self, *, limit: int | None = _LIMIT) -> Float[Tensor, "*b L S"]:
        """Materialize all weights, ``(B, H, L, S)``.

        Args:
            limit: maximum size in bytes; None for no limit.

        Raises:
            ValueError: if the weights take more than that.
        """
        return self._weights(self._pairs(), slice(None), slice(None), limit)

    def _pairs(self) -> Tensor:
        """Return the flat index b·H + h of each batch entry and head, ``(B, H)``."""
        leading = self.shape[:-2]
        return torch.arange(leading.numel(), device="cpu").reshape(leading)

    def _weights(self, pairs: Tensor, rows: Any, columns: Any, limit: int | None) -> Tensor:
        require_numbers(self.problem)
        queries, keys = self.shape[-2:]
        row_index = torch.arange(queries, device="cpu")[rows]
        column_index = torch.arange(keys, device="cpu")[columns]
        size = pairs.numel() * row_index.numel() * column_index.numel() * self.dtype.itemsize
        require_room(size, limit)
        flat_rows, flat_columns = row_index.flatten(), column_index.flatten()
        part = self._sub(pairs).at(flat_rows)
        weights = part._read_weights(flat_columns)  # noqa: SLF001 - its own class
        return weights.reshape((*pairs.shape, *row_index.shape, *column_index.shape))

    def _read_weights(self, columns: Tensor) -> Tensor:
        if columns.numel() > 0:
            within = slice(int(columns.min()), int(columns.max()) + 1)
            if within != slice(0, self.problem.keys):
                return self._read_part((Weights(columns),), within)[0]
        return self.read(Weights(columns))[0]

    @abstractmethod
    def _sub(self, pairs: Tensor) -> LinearOperator:
        """Restrict it to the heads numbered b·H + h; their shape replaces the leading axes."""

    @abstractmethod
    def _read_part(
        self, readouts: tuple[Readout[Any, Any], ...], columns: slice
    ) -> tuple[Any, ...]:
        """Take readouts of a range of keys, of whole rows' weights."""

    @abstractmethod
    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> LinearOperator:
        """Restrict it to a range of queries and a range of keys."""

    @abstractmethod
    def at(self, queries: Int[Tensor, " l"]) -> LinearOperator:
        """Restrict it to the queries with these indices."""

    @abstractmethod
    def to(self, device: str | torch.device) -> LinearOperator:
        """Move it to a device, where readouts are then computed."""

    def sees(self, query: int, key: int) -> bool:
        """Whether any of the heads lets a query see a key."""
        rows = slice(query, query + 1), slice(key, key + 1)
        return bool(self.problem.rows.visible(*rows).any())

    def visible_keys(self) -> slice:
        """The smallest range that contains all keys that any query sees; may be empty."""
        return slice(*self.problem.rows.span(slice(0, self.problem.queries)))

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
        """Compute the weighted averages of x: ``(B, H, L)``, or ``(B, H, L, N)``.

        Args:
            x: ``(S,)``, or ``(..., S, N)`` with leading dimensions that broadcast to the pattern's.

        Raises:
            ValueError: for another shape or device.
        """
        if not isinstance(x, torch.Tensor):
            return NotImplemented
        columns = x[:, None] if x.ndim == 1 else x
        check_operand(self, x, columns, -2)
        spread = columns.expand(*self.problem.leading, *columns.shape[-2:]).to(self.dtype)
        value = spread.reshape(*self.problem.heads, *columns.shape[-2:])
        problem = replace(self.problem.cast(self.dtype), value=value)
        with torch.no_grad():
            context = problem.restore(run(problem, choose_checked(problem))[0])
        return context[..., 0] if x.ndim == 1 else context

    def __rmatmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Compute linear combinations of the rows: ``(B, H, S)``, or ``(B, H, M, S)``.

        Args:
            y: coefficients ``(L,)``, or ``(..., M, L)`` with leading dimensions that broadcast to
                the pattern's.

        Raises:
            ValueError: for another shape or device.
        """
        if not isinstance(y, torch.Tensor):
            return NotImplemented
        rows = y[None] if y.ndim == 1 else y
        check_operand(self, y, rows, -1)
        spread = rows.expand(*self.problem.leading, *rows.shape[-2:]).to(self.dtype)
        batch, heads = self.problem.heads
        product = self._tensor(LeftProduct(spread.reshape(batch * heads, *rows.shape[-2:])))
        return product[..., 0, :] if y.ndim == 1 else product


def check_operand(pattern: LinearOperator, x: Tensor, matrix: Tensor, axis: int) -> None:
    """Raise `ValueError` unless the shape and device of an operand fit a pattern.

    Args:
        pattern: the other factor.
        x: the operand as given.
        matrix: the operand as a matrix.
        axis: the axis of the matrix that is summed over: −2 has length S, −1 has length L.
    """
    leading = pattern.shape[:-2]
    letter, size = ("S", pattern.shape[-1]) if axis == -2 else ("L", pattern.shape[-2])
    fits = broadcasts_to(matrix.shape[:-2], leading)
    if matrix.ndim < 2 or matrix.shape[axis] != size or not fits:
        raise ValueError(
            f"an operand of shape {tuple(x.shape)} does not fit {pattern!r}: it needs "
            f"{letter}={size} and leading dimensions that broadcast to {tuple(leading)}"
        )
    if x.device != pattern.device:
        raise ValueError(f"the operand is on {x.device}, the pattern on {pattern.device}")
