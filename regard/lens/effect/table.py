"""A labelled table of effects.

Axes: N layers, H heads, K spans of keys or edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from regard._display import show
from regard._shapes import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

Method = Literal["ablation", "gradient"]
Over = Literal["heads", "keys", "spans", "edges", "positions", "both"]
Place = tuple[int, ...]
"""Layer and head; start and stop of a span of keys; layer, head, query and key of an edge; layer
and position; or layer, head and position."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of one head, span of keys, edge of a head, or position on the target.

    Attributes:
        name: layer and head, such as ``2·0``; the keys and their text; head, query and key; or a
            layer, or a head of it, at a position and its token, such as ``2·0 at 7  gave``.
        place: layer and head; start and stop of the span; layer, head, query and key; layer and
            position; or layer, head and position.
        value: the target without it, or with it patched − the unchanged target.

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
    """Approximate effects compared with measured ones.

    Attributes:
        approximate: effects by gradient.
        true: the measured effects of the same heads, spans or edges.
        rank_correlation: Spearman's, between both; NaN if all values of one are equal.
        largest_miss: the largest magnitude of a difference between both; NaN if there is none.

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
    largest_miss: float

    @classmethod
    def of(cls, approximate: Sequence[Effect], measured: Float[Tensor, " K"]) -> Check:
        """Compare approximate effects with what was measured of the same."""
        estimates = [effect.value for effect in approximate]
        values = torch.tensor(estimates, dtype=torch.float64, device="cpu")
        misses = (values - measured).abs()
        return cls(
            approximate=tuple(approximate),
            true=tuple(
                replace(effect, value=value)
                for effect, value in zip(approximate, measured.tolist(), strict=True)
            ),
            rank_correlation=_spearman(values, measured),
            largest_miss=float(misses.max()) if len(misses) else float("nan"),
        )

    def __repr__(self) -> str:
        width = max((len(one.name) for one in self.approximate), default=0)
        lines = [f"{'':<{width}}   estimate   measured"]
        for one, other in zip(self.approximate, self.true, strict=True):
            lines.append(f"{one.name:<{width}} {one.value:>10.3g} {other.value:>10.3g}")
        lines.append(f"largest miss: {self.largest_miss:.3g}")
        return "\n".join([*lines, f"rank correlation: {self.rank_correlation:.2f}"])


@dataclass(frozen=True, eq=False, kw_only=True)
class Effects:
    """The effect of each head, span of keys, edge or position on a target; of `effects` or `patch`.

    Attributes:
        values: the target without it, or with it patched − the unchanged target: ``(N, H)`` over
            heads, NaN if a layer has fewer heads or no gradient reached it; ``(K,)`` over keys,
            spans and edges, of edges the largest estimates, the largest first; ``(N, T)`` over
            positions, ``(N, H, T)`` over both. CPU, float64.
        unchanged: the target without intervention.
        target: description of the target.
        over: ``"heads"``, ``"keys"``, ``"spans"``, ``"edges"``, ``"positions"`` or, for heads at
            positions, ``"both"``.
        method: ``"ablation"``; ``"gradient"`` for the linear approximation of it; ``"patching"``.
        axes: names of the axes of `values`.
        labels: for each axis, the indices of layers and heads, or the names of spans, edges or
            positions.
        places: for each entry of `values`, row by row, its layer and head; its start and stop; its
            layer, head, query and key; or its layer, head if there is one, and position.
        by: what took the place of contexts, or which activation was patched, in words.
        prompts: the prompts whose contexts were resampled.
        by_prompt: the effects by each prompt's contexts, ``(R, N, H)``, of which `values` is the
            mean; None without prompts.
        other: of patching, the target in the run that activations are taken from.
        without_all: over spans, the target with all of them hidden − the unchanged target.
        hidden_from: start and stop of the queries that spans are hidden from; None if each span
            is hidden from all queries after it.
        checks: over edges, the largest estimates and those of edges drawn at random, each beside
            what was measured.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> effects = regard.lens.effects(layer, {"x": x}, lambda y: y[:, -1].norm(dim=-1))
        >>> effects.values.shape, effects.labels
        (torch.Size([1, 2]), ((0,), (0, 1)))
    """

    values: (
        Float[Tensor, "N H"] | Float[Tensor, " K"] | Float[Tensor, "N T"] | Float[Tensor, "N H T"]
    )
    unchanged: float
    target: str
    over: Over
    method: Method | Literal["patching"]
    axes: tuple[str, ...]
    labels: tuple[tuple[int, ...] | tuple[str, ...], ...]
    places: tuple[Place, ...]
    by: str | None = None
    prompts: tuple[str, ...] = ()
    by_prompt: Float[Tensor, "R N H"] | None = None
    other: float | None = None
    without_all: float | None = None
    hidden_from: Place | None = None
    checks: tuple[Check, Check] | None = None
    _ablate: Callable[[Sequence[Place]], Float[Tensor, " K"]] | None = field(
        default=None, repr=False
    )

    def largest(self, count: int) -> list[Effect]:
        """Return the effects of largest magnitude, the largest first.

        Args:
            count: maximum number of effects.
        """
        flat = self.values.flatten()
        order = flat.abs().nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
        present = int(flat.isnan().logical_not().sum())
        return [self._entry(number) for number in order[: min(count, present)].tolist()]

    def measure(self, places: Sequence[Place]) -> Float[Tensor, " K"]:
        """Measure some of the effects that are approximate, with an intervention for each.

        Args:
            places: the place of each; see `places`.

        Returns:
            ``(K,)``, in the order of `places`, CPU, float64.

        Raises:
            ValueError: for effects that are not approximate, or were pickled or copied without the
                model.
        """
        if self.method != "gradient":
            raise ValueError(
                "these effects are those of ablation, not approximate; measure(...) and check(...) "
                "are for method='gradient'"
            )
        if self._ablate is None:
            raise ValueError(
                "these effects were pickled or copied, which leaves the model behind that "
                "measure(...) and check(...) run; call them before, or regard.lens.effects(...) "
                "again"
            )
        return self._ablate(places)

    def check(self, count: int) -> Check:
        """Measure what has the largest effects by gradient, and compare.

        Args:
            count: number of effects, at least 2.

        Raises:
            ValueError: for effects that are not approximate, or were pickled or copied without the
                model; and for a count below 2.
        """
        if count < 2:
            raise ValueError(f"count must be at least 2 to compare an order, but is {count}")
        approximate = self.largest(count)
        return Check.of(approximate, self.measure([effect.place for effect in approximate]))

    def frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row per head, span of keys, edge or position."""
        import pandas as pd

        columns = {
            "keys": ("first", "stop"),
            "spans": ("first", "stop"),
            "edges": ("layer", "head", "query", "key"),
        }.get(self.over, self.axes)
        frame = pd.DataFrame(list(self.places), columns=list(columns))
        if self.over != "heads":
            names = list(self.labels[-1])
            frame["name"] = names * (len(frame) // max(len(names), 1))
        frame["effect"] = self.values.flatten().numpy()
        return frame

    def plot(self) -> Figure:
        """Draw a cell per head or position, or a bar per span or edge, coloured around 0.

        Of heads at positions, the 24 heads with the largest effects have a row each.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ImportError: without matplotlib, which the extra ``plot`` installs.
        """
        figure: Figure = show("plot_effects", self)
        return figure

    def _repr_html_(self) -> str:
        html: str = show("effects_html", self)
        return html

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the measurements, without the model."""
        return vars(self) | {"_ablate": None}

    def __repr__(self) -> str:
        sizes = " × ".join(
            f"{axis} {size}" for axis, size in zip(self.axes, self.values.shape, strict=True)
        )
        about = {"gradient": ", approximate", "patching": f", {self.by}"}.get(self.method, "")
        own = f"Effects({sizes}{about}; {self.target}: {self.unchanged:.4g})"
        titles = ("the largest estimates, and what was measured", "the same of edges at random")
        shown = [f"{title}:\n{one}" for title, one in zip(titles, self.checks or (), strict=False)]
        return "\n".join([own, *shown])

    def _entry(self, number: int) -> Effect:
        place = self.places[number]
        if self.over in ("keys", "spans", "edges"):
            name = str(self.labels[0][number])
        else:
            name = "·".join(map(str, place if self.over == "heads" else place[:-1]))
            if self.over != "heads":
                label = self.labels[-1][number % len(self.labels[-1])]
                name = f"{'layer ' * (self.over == 'positions')}{name} at {label}"
        return Effect(name=name, place=place, value=float(self.values.flatten()[number]))


def _spearman(one: Tensor, other: Tensor) -> float:
    """Compute Spearman's rank correlation; equal values share their mean rank."""
    ranks = torch.stack([_ranks(one), _ranks(other)])
    if (ranks == ranks[:, :1]).all(dim=-1).any():
        return float("nan")
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    below = (values < values[:, None]).sum(dim=-1)
    equal = (values == values[:, None]).sum(dim=-1)
    return below + (equal - 1) / 2.0
