"""Sums over documents that do not depend on their order, and estimates clustered by document.

A shard of a corpus sums its own documents, and the shards' sums are added. So that the last digit
does not depend on how the corpus was divided, every number is rounded once to a multiple of 2⁻⁴⁴
and summed as an integer.

A difference between two atlases of one corpus is paired: both read the same documents, so what a
document does to both cancels. That needs numbers of each by document, which would grow with the
corpus. So the sums are kept by `GROUPS` groups of documents besides, the same in every atlas.

Axes: N heads of all layers, w numbers a document, p = w·(w + 1)/2 products of two of them, G groups
of documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import Error

__all__ = ["GROUPS", "DocumentSums", "ExactSum", "products", "variance"]

GROUPS = 32
"""Groups of documents whose sums are kept: document n belongs to group n mod 32."""

_UNITS = (2.0**36, 2.0**-4, 2.0**-44)
_BITS = 40  # by which each unit is above the next
_LARGEST = 2.0**89  # beyond it a sum may not fit


class ExactSum:
    """A sum of tensors of one shape, in integers: the same in any order.

    Each term is rounded to a multiple of 2⁻⁴⁴, and written as three integers: multiples of 2³⁶, of
    2⁻⁴ and of 2⁻⁴⁴. The sum is exact while it is below 2⁹⁸.

    >>> total = ExactSum()
    >>> for value in (0.1, 1e9, -1e9):
    ...     total.add(torch.tensor([value], dtype=torch.float64))
    >>> total.value
    tensor([0.1000], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._parts: Int[Tensor, "3 ..."] | None = None

    @classmethod
    def of(cls, parts: Int[Tensor, "3 ..."]) -> Self:
        """Take the integers of another sum."""
        total = cls()
        total._parts = parts
        return total

    @property
    def parts(self) -> Int[Tensor, "3 ..."]:
        """The integers, the largest first. At least one tensor must have been added.

        Equal sums have equal integers.
        """
        assert self._parts is not None, "nothing was added"
        return self._parts

    @property
    def value(self) -> Float[Tensor, "..."]:
        """The sum in float64."""
        high, middle, low = self.parts
        # Rounded rather than cut, so that no large numbers of different signs cancel.
        up = (low >> (_BITS - 1)) & 1
        middle, low = middle + up, low - (up << _BITS)
        up = (middle >> (_BITS - 1)) & 1
        high, middle = high + up, middle - (up << _BITS)
        below = middle.double() * _UNITS[1] + low.double() * _UNITS[2]
        return high.double() * _UNITS[0] + below

    def add(self, values: Float[Tensor, "..."]) -> None:
        """Add a tensor, in float64.

        Raises:
            Error: for numbers that are not finite, or above 2⁸⁹.
        """
        rest = values.double().cpu()
        if not bool(rest.isfinite().all()):
            raise Error("a document's numbers are not finite: the model's outputs are damaged")
        if bool((rest.abs() > _LARGEST).any()):
            raise Error(
                f"a document's numbers reach {float(rest.abs().max()):.1e}: too large to sum"
            )
        integers = []
        for unit in _UNITS[:-1]:
            whole = (rest / unit).trunc()
            rest = rest - whole * unit  # exact: it drops the leading digits
            integers.append(whole.long())
        integers.append((rest / _UNITS[-1]).round().long())
        self.merge(ExactSum.of(torch.stack(integers)))

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        high, middle, low = other.parts if self._parts is None else self._parts + other.parts
        middle = middle + (low >> _BITS)
        high = high + (middle >> _BITS)
        below = 2**_BITS - 1
        self._parts = torch.stack([high, middle & below, low & below])


class DocumentSums:
    """Sums of each head's numbers over documents, and of their products for the variance.

    Each document gives, under some names, numbers ``(N, w)``. Under the names that it gives in
    `clustered`, the products of each two numbers are summed too, and the numbers by groups.
    """

    def __init__(self) -> None:
        self.documents = 0
        self._counts: dict[str, int] = {}
        self._first: dict[str, ExactSum] = {}
        self._second: dict[str, ExactSum] = {}
        self._groups: dict[str, ExactSum] = {}

    def add(
        self,
        number: int,
        clustered: Mapping[str, Float[Tensor, "N w"]],
        plain: Mapping[str, Float[Tensor, "N w"]],
    ) -> None:
        """Add the document of a number."""
        self.documents += 1
        for name, values in (*clustered.items(), *plain.items()):
            self._first.setdefault(name, ExactSum()).add(values)
            self._counts[name] = self._counts.get(name, 0) + 1
        for name, values in clustered.items():
            self._second.setdefault(name, ExactSum()).add(products(values))
            self._groups.setdefault(f"{number % GROUPS}.{name}", ExactSum()).add(values)

    def merge(self, other: DocumentSums) -> None:
        """Add the sums over other documents."""
        self.documents += other.documents
        for kind, theirs in other._totals.items():
            for name, total in theirs.items():
                self._totals[kind].setdefault(name, ExactSum()).merge(total)
        for name, count in other._counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    @property
    def _totals(self) -> dict[str, dict[str, ExactSum]]:
        return {"first": self._first, "second": self._second, "group": self._groups}

    def count(self, name: str) -> int:
        """Return the number of documents that gave numbers under a name."""
        return self._counts.get(name, 0)

    def __contains__(self, name: str) -> bool:
        return name in self._first

    def __getitem__(self, name: str) -> Float[Tensor, "N w"]:
        return self._first[name].value

    def second(self, name: str) -> Float[Tensor, "N w w"]:
        """Return the sums of the products, as symmetric matrices."""
        packed = self._second[name].value
        width = self._first[name].parts.shape[-1]
        row, column = torch.triu_indices(width, width, device="cpu")
        full = packed.new_zeros(*packed.shape[:-1], width, width)
        full[..., row, column] = packed
        full[..., column, row] = packed
        return full

    def groups(self, name: str) -> list[int]:
        """Return the groups of documents that gave numbers under a name."""
        return [group for group in range(GROUPS) if f"{group}.{name}" in self._groups]

    def by_group(self, name: str) -> Float[Tensor, "G N w"]:
        """Return the sums over each of those groups."""
        return torch.stack([self._groups[f"{group}.{name}"].value for group in self.groups(name)])

    def tensors(self) -> dict[str, Tensor]:
        """Return the integers by name, for a file."""
        sums = {
            f"{kind}.{name}": total.parts.contiguous()
            for kind, totals in self._totals.items()
            for name, total in totals.items()
        }
        counts = {
            f"count.{name}": torch.tensor(count, device="cpu")
            for name, count in self._counts.items()
        }
        return sums | counts

    @classmethod
    def of(cls, documents: int, tensors: Mapping[str, Tensor]) -> Self:
        """Restore what `tensors` returned."""
        sums = cls()
        sums.documents = documents
        for name, parts in tensors.items():
            kind, _, own = name.partition(".")
            if kind == "count":
                sums._counts[own] = int(parts)
            else:
                sums._totals[kind][own] = ExactSum.of(parts)
        return sums


def products(values: Float[Tensor, "N w"]) -> Float[Tensor, "N p"]:
    """Return the products of each two numbers, the upper triangle row by row.

    >>> products(torch.tensor([[2.0, 3.0]]))
    tensor([[4., 6., 9.]])
    """
    row, column = torch.triu_indices(values.shape[-1], values.shape[-1], device=values.device)
    return values[..., row] * values[..., column]


def variance(
    second: Float[Tensor, "N w w"], weights: Float[Tensor, "N w"], documents: int
) -> Float[Tensor, " N"]:
    """Return the variance of a sum over documents of ⟨weights, numbers⟩, clustered by document.

    Documents are taken as drawn independently: Σ ⟨weights, numbers⟩² over them, times D/(D − 1), if
    the weights are such that the sum is 0 (Cameron and Miller 2015, "A Practitioner's Guide to
    Cluster-Robust Inference", section II). NaN for fewer than two documents.
    """
    if documents < 2:
        return weights.new_full(weights.shape[:1], torch.nan)
    squares = (weights[:, None] @ second @ weights[..., None]).flatten()
    return squares.clamp_min(0) * documents / (documents - 1)
