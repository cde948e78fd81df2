"""Numbers of links, and their means by kind.

Axes: M links, K kinds; what follows is the numbers' own, such as N layers and H heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard._shapes import Float, Int

__all__ = ["LinkGroups", "LinkValues"]

_DEVIATIONS = 1.96  # standard errors that hold a normal mean in 95 of 100 cases


@dataclass(frozen=True)
class LinkGroups:
    """Which links are of one kind, and which of one text.

    Attributes:
        kinds: the kind of each link.
        texts: the number of each link's text.
    """

    kinds: tuple[str, ...]
    texts: tuple[int, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many links each kind has; the kinds in the order of their first links."""
        return dict(Counter(self.kinds))

    def of_each_kind(self) -> Iterator[list[int]]:
        """The numbers of the links of each kind."""
        for kind in self.counts:
            yield [number for number, other in enumerate(self.kinds) if other == kind]

    def join(self, others: Sequence[LinkGroups]) -> LinkGroups:
        """These links, then those of others, whose texts are other texts."""
        kinds, texts = list(self.kinds), list(self.texts)
        for other in others:
            first = max(texts, default=-1) + 1
            kinds += other.kinds
            texts += [first + text for text in other.texts]
        return LinkGroups(tuple(kinds), tuple(texts))


@dataclass(frozen=True, eq=False)
class LinkValues:
    """A number for each link, or an array of them: ``(M, ...)``; NaN where a link has none.

    Attributes:
        values: the numbers, in float64 on the CPU.
        groups: the kinds and texts of the links.

    Example:
        >>> import regard, torch
        >>> from types import SimpleNamespace
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(tokens=["Ann", " and", " Ben", ":", " Ann"]) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> copy = SimpleNamespace(kind="copy", decided=(13, 16), deciding=[(0, 3)], decoys=[])
        >>> deciding = regard.lens.against(recording, [copy]).deciding
        >>> deciding.mean.shape, deciding.groups.counts
        (torch.Size([1, 1, 2]), {'copy': 1})
    """

    values: Float[Tensor, "M *rest"]
    groups: LinkGroups

    @cached_property
    def mean(self) -> Float[Tensor, "K *rest"]:
        """The mean over the links of each kind, ``(K, ...)``; NaN where no link has a number."""
        return self._of_kinds(lambda values, _: values.nanmean(dim=0))

    @cached_property
    def interval(self) -> Float[Tensor, "K *rest"]:
        """Half of the 95 % interval of the mean, ``(K, ...)``: 1.96 standard errors.

        Links of one text are not independent, so texts are what varies: the variance is that of
        clusters (Liang and Zeger 1986, Biometrika 73, equation 4, for a mean). Of a single text its
        links are taken for independent. NaN where fewer than two are left.
        """
        return self._of_kinds(_interval)

    def _of_kinds(self, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        texts = torch.tensor(self.groups.texts, dtype=torch.int64, device=self.values.device)
        rows = [
            reduce(self.values[numbers], texts[numbers]) for numbers in self.groups.of_each_kind()
        ]
        return torch.stack(rows) if rows else self.values.new_zeros(0, *self.values.shape[1:])


def _interval(values: Float[Tensor, "m *rest"], texts: Int[Tensor, " m"]) -> Float[Tensor, "*rest"]:
    clusters = texts.unique(return_inverse=True)[1]
    if int(clusters.max()) == 0:
        clusters = torch.arange(len(values), device=values.device)
    present = values.isnan().logical_not()
    deviations = torch.where(present, values - values.nanmean(dim=0), 0)
    sums = values.new_zeros(int(clusters.max()) + 1, *values.shape[1:])
    counts = sums.clone().index_add_(0, clusters, present.to(values.dtype))
    sums.index_add_(0, clusters, deviations)
    number = (counts > 0).sum(dim=0)
    variance = sums.square().sum(dim=0) * number / (number - 1)
    error = variance.sqrt() / present.sum(dim=0)
    return torch.where(number > 1, _DEVIATIONS * error, torch.nan)
