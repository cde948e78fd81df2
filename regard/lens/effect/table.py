"""What became of a number: a table of effects, labelled.

Axes: N layers, H heads, K spans of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from regard._display import show
from regard._shapes import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

Method = Literal["ablation", "gradient"]
Place = tuple[int, int]
"""A layer and a head, or the first key of a span and one past its last."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one head, or one span of keys, does to the number.

    Attributes:
        name: the head's layer and number, such as ``2·0``, or the keys and what they read.
        place: the head's layer and number; or the span's first key and one past its last.
        value: the number without it − the number as it is.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> effects = regard.lens.effects(layer, {"x": x}, lambda y: y[:, -1].norm(dim=-1))
        >>> (effect,) = effects.largest(1)
        >>> effect.value == effects.values[effect.place]
        tensor(True)
    """

    name: str
    place: Place
    value: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Check:
    """Approximate effects beside the true ones.

    Attributes:
        approximate: the effects that were largest by gradient.
        true: those of the same heads by ablation.
        rank_correlation: Spearman's, between both; NaN where either has one value alone.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> effects = regard.lens.effects(
        ...     layer, lambda layer: layer(x), lambda y: y[:, -1].norm(dim=-1), method="gradient"
        ... )
        >>> check = effects.check(2)
        >>> [one.name for one in check.approximate] == [one.name for one in check.true]
        True
    """

    approximate: tuple[Effect, ...]
    true: tuple[Effect, ...]
    rank_correlation: float

    def __repr__(self) -> str:
        lines = ["head  approximate       true"]
        for one, other in zip(self.approximate, self.true, strict=True):
            lines.append(f"{one.name:<5} {one.value:>11.4f} {other.value:>10.4f}")
        return "\n".join([*lines, f"rank correlation: {self.rank_correlation:.2f}"])


@dataclass(frozen=True, eq=False, kw_only=True)
class Effects:
    """What a number loses or gains by each head, or by each span of keys; `effects` makes it.

    Attributes:
        values: the number without it − the number as it is: ``(N, H)`` over heads, NaN where a
            layer has fewer or no gradient came back; ``(K,)`` else. On the CPU, in float64.
        unchanged: the number as it is.
        target: what the number is.
        over: ``"heads"``, ``"keys"`` or ``"spans"``.
        method: ``"ablation"``, or ``"gradient"`` for the linear approximation of it.
        axes: names of the axes of `values`.
        labels: for each axis, the numbers of layers and heads, or the names of the spans.
        places: for each entry of `values`, row by row, its layer and head, or its first key and one
            past its last.
        without_all: over spans, the number with all of them hidden − as it is.
        hidden_from: the first query that spans are hidden from, and one past the last that the
            number needs; None where each is hidden from all after itself.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> effects = regard.lens.effects(layer, {"x": x}, lambda y: y[:, -1].norm(dim=-1))
        >>> effects.values.shape, effects.labels
        (torch.Size([1, 2]), ((0,), (0, 1)))
    """

    values: Float[Tensor, "N H"] | Float[Tensor, " K"]
    unchanged: float
    target: str
    over: Literal["heads", "keys", "spans"]
    method: Method
    axes: tuple[str, ...]
    labels: tuple[tuple[int, ...] | tuple[str, ...], ...]
    places: tuple[Place, ...]
    without_all: float | None = None
    hidden_from: Place | None = None
    _ablate: Callable[[Sequence[Place]], Float[Tensor, " K"]] | None = field(
        default=None, repr=False
    )

    def largest(self, count: int) -> list[Effect]:
        """The effects of largest magnitude, the largest first.

        Args:
            count: most of them.
        """
        flat = self.values.flatten()
        order = flat.abs().nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
        present = int(flat.isnan().logical_not().sum())
        return [self._entry(number) for number in order[: min(count, present)].tolist()]

    def check(self, count: int) -> Check:
        """Ablate the heads that are largest by gradient, and compare.

        Args:
            count: how many, at least 2.

        Raises:
            ValueError: for effects that are not approximated, or were pickled or copied, which
                leaves the model behind; and for fewer than 2 heads.
        """
        if self.method != "gradient":
            raise ValueError(
                "these effects are those of ablation, not approximate; check(...) is for "
                "method='gradient'"
            )
        if self._ablate is None:
            raise ValueError(
                "these effects were pickled or copied, which leaves the model behind that "
                "check(...) runs; call it before, or regard.lens.effects(...) again"
            )
        if count < 2:
            raise ValueError(f"count must be at least 2 to compare an order, but is {count}")
        approximate = self.largest(count)
        true = self._ablate([effect.place for effect in approximate])
        return Check(
            approximate=tuple(approximate),
            true=tuple(
                Effect(name=effect.name, place=effect.place, value=value)
                for effect, value in zip(approximate, true.tolist(), strict=True)
            ),
            rank_correlation=_spearman(
                torch.tensor(
                    [effect.value for effect in approximate], dtype=torch.float64, device="cpu"
                ),
                true,
            ),
        )

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a head or a span of keys."""
        import pandas as pd

        columns = ("layer", "head") if self.over == "heads" else ("first", "stop")
        frame = pd.DataFrame(self.places, columns=list(columns))
        if self.over != "heads":
            frame["name"] = list(self.labels[0])
        frame["effect"] = self.values.flatten().numpy()
        return frame

    def plot(self) -> Figure:
        """Draw them: a cell a head, or a bar a span of keys; two-sided colours, 0 in the middle.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ImportError: without matplotlib, which the extra ``plot`` brings.
        """
        figure: Figure = show("plot_effects", self)
        return figure

    def _repr_html_(self) -> str:
        html: str = show("effects_html", self)
        return html

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what was measured, without the model."""
        return vars(self) | {"_ablate": None}

    def __repr__(self) -> str:
        sizes = " × ".join(
            f"{axis} {size}" for axis, size in zip(self.axes, self.values.shape, strict=True)
        )
        about = ", approximate" if self.method == "gradient" else ""
        return f"Effects({sizes}{about}; {self.target}: {self.unchanged:.4g})"

    def _entry(self, number: int) -> Effect:
        place = self.places[number]
        name = f"{place[0]}·{place[1]}" if self.over == "heads" else str(self.labels[0][number])
        return Effect(name=name, place=place, value=float(self.values.flatten()[number]))


def _spearman(one: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, of which equal values share a mean."""
    ranks = torch.stack([_ranks(one), _ranks(other)])
    if (ranks == ranks[:, :1]).all(dim=-1).any():
        return float("nan")
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    below = (values < values[:, None]).sum(dim=-1)
    equal = (values == values[:, None]).sum(dim=-1)
    return below + (equal - 1) / 2.0
