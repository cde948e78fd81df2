"""What an atlas reads of one layer over one window: sums over its rows, and rows for examples.

Axes: H heads of the layer, T tokens, C classes of tokens, b bins of distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.lens.head_atlas import headvis
from regard.lens.head_atlas.examples import AFTER, BEFORE, LINKS, Examples
from regard.lens.head_atlas.token_classes import CLASSES, token_classes
from regard.lens.naming.evidence import Tally
from regard.lens.naming.separators import is_separator
from regard.lens.naming.tallies import Tallier, TextTallies
from regard.pattern import Pattern
from regard.pattern.readouts import Max, Offsets, Received

__all__ = ["BINS", "CONTROLS", "DISTANCES", "KINDS", "LISTS", "LayerReading", "WindowTokens"]

KINDS = {"first": "first token", "separator": "separator", "other": "other"}
"""Kinds of keys on which heads rest: the end of the column's name, and in words."""
LISTS = ("moved", "received", "effect")
"""Lists of the strongest places."""
CONTROLS = ("uniform", "others", "shuffled")
"""Controls of a relation, whose sums stand behind queries and share; one that it lacks is 0."""
BINS = 10
"""Of the histogram of each row's largest weight."""
DISTANCES = (0, *(2**power for power in range(24)))
"""Least distance of each bin of the profile, in tokens."""


class WindowTokens:
    """The tokens of a window, as its layers need them.

    Args:
        ids: their ids.
        names: their texts.
        document: number of the document.
        start: the window's first token in it.
        device: of the patterns that are read.
    """

    def __init__(
        self,
        ids: Sequence[int],
        names: Sequence[str],
        *,
        document: int,
        start: int,
        device: torch.device,
    ) -> None:
        self.ids = list(ids)
        self.document = document
        self.start = start
        numbers = torch.tensor(self.ids, device="cpu").unique(return_inverse=True)[1]
        marks = torch.tensor([is_separator(name) for name in names], device="cpu")
        self.tallier = Tallier(numbers.to(device), int(numbers.max()) + 1, marks.to(device))
        place = {name: number for number, name in enumerate(CLASSES)}
        self.classes: Int[Tensor, " T"] = torch.tensor(
            [place[name] for name in token_classes(names)], device="cpu"
        )
        """Index of each token's class."""
        self.kinds: Int[Tensor, " T"] = torch.where(marks, 1, 2)
        """Index of each token's kind, were it a sink."""
        self.kinds[0] = 0

        own = torch.tensor(self.ids, device="cpu")
        around = torch.nn.functional.pad(own, (1, 1), value=-1)
        self.triples: Int[Tensor, "T 3"] = torch.stack([around[:-2], own, around[2:]], dim=-1)
        """Ids of the token before each, its own, and the one behind; −1 for none."""

    def __len__(self) -> int:
        return len(self.ids)

    def windows(
        self, position: Int[Tensor, "H k"], *, turned: bool
    ) -> tuple[Int[Tensor, "H k"], Int[Tensor, "H k W"]]:
        """Return the first index and the ids of the tokens around positions; −1 for none.

        Args:
            position: in the window.
            turned: whether more tokens stand behind a position than before it.
        """
        before, after = (AFTER, BEFORE) if turned else (BEFORE, AFTER)
        first = (position - before).clamp(min=0)
        place = first[..., None] + torch.arange(BEFORE + 1 + AFTER, device="cpu")
        inside = (place <= position[..., None] + after) & (place < len(self))
        ids = self.triples[:, 1][place.clamp(max=len(self) - 1)]
        return first, torch.where(inside, ids, -1)

    def by_class(self, values: Float[Tensor, "H t"]) -> Float[Tensor, "H C"]:
        """Sum values of the first t tokens by their class."""
        values = values.cpu().double()
        place = self.classes[: values.shape[-1]].expand(values.shape)
        return values.new_zeros(len(values), len(CLASSES)).scatter_add_(1, place, values)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerReading:
    """One layer over one window.

    Attributes:
        index: the layer's.
        heads: indices of its heads.
        clustered: numbers of each head whose products are summed too, by name.
        plain: likewise, without products.
        best: of each list, each head's best place; value −∞ where it is not better than asked.
        sampled: the sampled rows, one after another.
    """

    index: int
    heads: Sequence[int]
    clustered: Mapping[str, Float[Tensor, "H w"]]
    plain: Mapping[str, Float[Tensor, "H w"]]
    best: Mapping[str, Examples]
    sampled: Examples

    @classmethod
    def of(
        cls,
        pattern: Pattern,
        tokens: WindowTokens,
        *,
        index: int,
        heads: Sequence[int],
        norm: Float[Tensor, "H T"] | None,
        effects: Float[Tensor, "H T"] | None,
        lowest: Mapping[str, Float[Tensor, " H"]],
        sampled: Sequence[int],
    ) -> LayerReading:
        """Read a pattern.

        Args:
            pattern: the layer's, ``(H, T, T)``.
            tokens: the window's, two or more.
            index: the layer's.
            heads: indices of its heads.
            norm: ‖v W‖ of each key; None if W is not known.
            effects: of each head at each position; None if they are not measured here.
            lowest: of each list, the value above which a place is better than those known.
            sampled: rows of the uniform sample.
        """
        length = len(tokens)
        text = tokens.tallier.of_text(
            pattern,
            Pattern.read,
            also=(Max(), Offsets(length)),
            whole=headvis.readouts(length),
            uniform=(Offsets(length), Received()),
        )
        pattern = text.pattern
        rest = _rest(tokens, text)
        moved = None
        if norm is not None:
            beside = norm.to(pattern.dtype).masked_fill(text.sinks, 0)
            moved = (pattern @ beside[..., None])[..., 0]
        rows = _Rows(pattern, tokens, text.sinks, norm, rest.sum(-1), moved, effects)
        largest: Tensor = text.also[0]
        saved = None if effects is None else (-effects).nan_to_num(nan=-torch.inf)
        values = {"moved": moved, "received": text.received, "effect": saved}
        rows_read = torch.full((len(heads), 1), length - 1.0, dtype=torch.float64, device="cpu")
        ids = torch.tensor(tokens.ids, device=pattern.device)
        metrics = headvis.metrics(pattern, ids, text.whole)
        clustered = {f"relation.{name}": _sums(tally) for name, tally in text.tallies.items()}
        if moved is not None:
            total = moved.double().sum(-1, keepdim=True).cpu()
            clustered["moved"] = torch.cat([rows_read + 1, total], dim=-1)
        return cls(
            index=index,
            heads=heads,
            clustered=clustered,
            plain={
                "rows": rows_read,
                "headvis": torch.stack([metrics[name] for name in headvis.SUMS], dim=-1).cpu(),
                "rest": rest[:, 1:].double().sum(1).cpu(),
                "histogram": _histogram(largest),
                **_profiles(text),
                **_classes(tokens, text, rest.sum(-1), moved),
            },
            best={
                name: rows.best(own, lowest[name], of_key=name == "received")
                for name, own in values.items()
                if own is not None
            },
            sampled=rows.sampled(sampled, largest),
        )


def _rest(tokens: WindowTokens, text: TextTallies) -> Float[Tensor, "H T 3"]:
    """Return each row's share on sinks by kind."""
    size = *text.sinks.shape, len(KINDS)
    rest = torch.zeros(size, dtype=text.entropy.dtype, device=text.sinks.device)
    for key, weights in text.on_sinks.items():
        rest[..., tokens.kinds[key]] += weights
    return rest


def _sums(tally: Tally) -> Float[Tensor, "H 5"]:
    """Return the sums of a tally over all tokens: queries, share, and each of `CONTROLS`."""
    share = tally.share.sum(-1)
    controls = [
        tally.controls[name].sum(-1) if name in tally.controls else torch.zeros_like(share)
        for name in CONTROLS
    ]
    return torch.stack([tally.queries.sum(-1), share, *controls], dim=-1).cpu()


def _histogram(largest: Float[Tensor, "H T"]) -> Float[Tensor, "H bins"]:
    """Count rows by their largest weight, but for the first row, which has no choice."""
    place = (largest[:, 1:].double() * BINS).long().clamp(0, BINS - 1).cpu()
    counts = torch.zeros(len(place), BINS, dtype=torch.float64, device="cpu")
    return counts.scatter_add_(1, place, torch.ones(place.shape, dtype=torch.float64, device="cpu"))


def _profiles(text: TextTallies) -> dict[str, Float[Tensor, "H b"]]:
    """Sum weight by distance, in bins, beside the sinks and of a uniform head."""
    length = text.sinks.shape[-1]
    # The mean at a distance is over the queries that see such a key.
    seen = (~text.sinks).double().cumsum(-1).flip(-1).cpu()
    distance = torch.arange(length, device="cpu").clamp(max=DISTANCES[-1])
    place = torch.searchsorted(torch.tensor(DISTANCES, device="cpu"), distance, right=True) - 1

    def binned(means: Float[Tensor, "H T"]) -> Float[Tensor, "H b"]:
        sums = means.double().cpu() * seen
        empty = torch.zeros(len(sums), len(DISTANCES), dtype=torch.float64, device="cpu")
        return empty.scatter_add_(1, place.expand(sums.shape), sums)

    return {"profile": binned(text.also[1]), "profile_uniform": binned(text.uniform[0])}


def _classes(
    tokens: WindowTokens,
    text: TextTallies,
    rest: Float[Tensor, "H T"],
    moved: Float[Tensor, "H T"] | None,
) -> dict[str, Float[Tensor, "H C"]]:
    sums = {
        "class_queries": torch.ones_like(rest),
        "class_rest": rest,
        "class_entropy": text.entropy,
        "class_keys": text.received,
        "class_keys_uniform": text.uniform[1],
    }
    if moved is not None:
        sums["class_moved"] = moved
    return {name: tokens.by_class(values) for name, values in sums.items()}


@dataclass(frozen=True, eq=False)
class _Rows:
    """Makes examples of the rows and columns of a pattern."""

    pattern: Pattern
    tokens: WindowTokens
    sinks: Bool[Tensor, "H T"]
    norm: Float[Tensor, "H T"] | None
    rest: Float[Tensor, "H T"]
    moved: Float[Tensor, "H T"] | None
    effects: Float[Tensor, "H T"] | None

    def best(
        self, values: Float[Tensor, "H T"], lowest: Float[Tensor, " H"], *, of_key: bool
    ) -> Examples:
        """Return each head's best place, if its value is above the lowest."""
        most, place = values.double().cpu().max(-1)
        position = place[:, None]
        weights = torch.zeros(*values.shape, device="cpu")
        norm = weights.clone()
        better = most > lowest
        for head in better.nonzero().flatten().tolist():
            at = int(place[head])
            if of_key:
                weights[head] = self.pattern[head, :, at].cpu()
            else:
                weights[head] = self.pattern[head, at].masked_fill(self.sinks[head], 0).cpu()
            if self.norm is not None:
                norm[head] = (self.norm[head, at] if of_key else self.norm[head]).cpu()
        value = torch.where(better, most, -torch.inf)[:, None]
        return self._examples(position, value, weights[:, None], norm[:, None], turned=of_key)

    def sampled(self, rows: Sequence[int], largest: Float[Tensor, "H T"]) -> Examples:
        """Return some rows of all heads, whose value is their largest weight."""
        if not rows:
            return Examples.empty(len(largest), 0)
        position = torch.tensor(rows, device="cpu").expand(len(largest), -1)
        value = largest.double().cpu().gather(1, position)
        weights = self.pattern[:, list(rows)].masked_fill(self.sinks[:, None], 0).cpu()
        norm = torch.zeros(1, 1, 1, device="cpu") if self.norm is None else self.norm[:, None].cpu()
        return self._examples(position, value, weights, norm.expand(weights.shape), turned=False)

    def _examples(
        self,
        position: Int[Tensor, "H k"],
        value: Float[Tensor, "H k"],
        weights: Float[Tensor, "H k T"],
        norm: Float[Tensor, "H k T"],
        *,
        turned: bool,
    ) -> Examples:
        """Return examples of rows, or of columns, by their weights."""
        tokens = self.tokens
        top = weights.topk(min(LINKS, len(tokens)))
        some = top.values > 0
        index = torch.where(some, top.indices, 0)
        carried = top.values * norm.gather(-1, index)
        if self.norm is None:
            carried = torch.full_like(carried, torch.nan)
        unknown = torch.full(position.shape, torch.nan, dtype=torch.float64, device="cpu")
        numbers = [
            unknown if own is None else own.cpu().double().gather(1, position)
            for own in (self.rest, self.moved, None, self.effects)
        ]
        first, ids = tokens.windows(position, turned=turned)
        pad = (0, LINKS - some.shape[-1])

        def padded(values: Tensor, by: float) -> Tensor:
            return torch.nn.functional.pad(values, pad, value=by)

        near = torch.where(some[..., None], tokens.triples[index], -1)
        return Examples(
            value=value,
            document=torch.full_like(position, tokens.document),
            position=tokens.start + position,
            start=tokens.start + first,
            window=ids,
            link_position=padded(torch.where(some, tokens.start + index, -1), -1),
            link_weight=padded(torch.where(some, top.values.double(), torch.nan), torch.nan),
            link_moved=padded(torch.where(some, carried.double(), torch.nan), torch.nan),
            link_tokens=torch.nn.functional.pad(near, (0, 0, *pad), value=-1),
            numbers=torch.stack(numbers, dim=-1),
        )
