"""What each head of a model does: scores read off its pattern, and a name.

Axes: B batch, H heads of a layer, T tokens of one text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import torch

from regard._extras import needing
from regard.pattern import Pattern
from regard.pattern.readouts import Distance, Entropy, Mass, Offsets
from regard.record._errors import RecordError
from regard.record.readings import bar
from regard.record.repeats import Controls, Copies, Successors, with_targets
from regard.record.roles import ENOUGH, Figures, Role, role_of

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from regard.record.layer import Layer, Tokens

__all__ = ["HeadScores", "Heads", "even", "figures", "over"]

Read = Callable[..., tuple[Any, ...]]
"""Of a pattern and readouts."""


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """One head's scores, each a mean over queries and over the sequences of the batch.

    Scores are shares of a query's weight, between 0 and 1. Padding counts nowhere, nor does the
    first token of a sequence, which has no choice.
    """

    layer: int
    head: int
    name: str
    """What the head does, in a word: the rule of `roles.role_of`."""
    previous_token: float | None
    """Share on the token before: a positional head (Voita et al. 2019, arXiv:1905.09418)."""
    first_token: float | None
    """Share on the first token, a sink (Xiao et al. 2023, arXiv:2309.17453, section 3.1)."""
    same_token: float | None
    """Share on the query's own position."""
    induction: float | None
    """Share on the tokens that followed earlier copies of the query's token, over the queries that
    have any (Olsson et al. 2022, arXiv:2209.11895, section on prefix matching); None where tokens
    are not known or none repeats. The position before the query's counts as previous only."""
    duplicate_token: float | None
    """Share on earlier copies of the query's token, over the queries that have any (Wang et al.
    2022, arXiv:2211.00593: duplicate token heads); None as for induction."""
    entropy: float | None
    """Entropy of a row, in nats."""
    distance: float | None
    """How far away the weight lies, in tokens."""


class Heads(Sequence[HeadScores]):
    """The scores of all heads, layer by layer.

    Args:
        scores: of each head.
        repeats: the number of queries that induction and duplicate tokens are measured over; None
            where it is not known.
    """

    def __init__(
        self, scores: Sequence[HeadScores], repeats: tuple[int, int] | None = None
    ) -> None:
        self._scores = tuple(scores)
        self.repeats = repeats

    @overload
    def __getitem__(self, index: int) -> HeadScores: ...
    @overload
    def __getitem__(self, index: slice) -> Heads: ...
    def __getitem__(self, index: int | slice) -> HeadScores | Heads:
        if isinstance(index, slice):
            return Heads(self._scores[index], self.repeats)
        return self._scores[index]

    def __len__(self) -> int:
        return len(self._scores)

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a head.

        Raises:
            ImportError: without pandas, which the extra ``record`` brings.
        """
        with needing("record"):
            import pandas as pd

        return pd.DataFrame([asdict(scores) for scores in self._scores])

    def _repr_html_(self) -> str:
        from regard.view.tables import heads_html

        return heads_html(self)

    def __repr__(self) -> str:
        lines = [f"{'head':>7}  prev first  same  indu  dupl  entropy distance  name"]
        lines += [_line(scores) for scores in self._scores]
        if self.repeats is not None:
            induction, duplicates = map(over, self.repeats)
            lines.append(f"induction: {induction}; duplicate token: {duplicates}")
        return "\n".join(lines)


def over(queries: int, tokens: int | None = None) -> str:
    """Say how many queries a score on repeats rests on, and whether a head is named after them.

    >>> over(0), over(3), over(30, 80)
    ('of no token', 'over 3 tokens, too few to name a head', 'over 30 tokens of 80')
    """
    if queries == 0:
        return "of no token"
    text = f"over {queries} token{'s' if queries > 1 else ''}"
    if tokens is not None:
        text += f" of {tokens}"
    return text if queries >= ENOUGH else f"{text}, too few to name a head"


def read_heads(
    layers: Sequence[Layer],
    names: Tokens | None,
    *,
    progress: bool | None = None,
    read: Read = Pattern.read,
) -> Heads:
    """Score every head of some layers; `Recording.heads` documents it.

    Args:
        layers: those.
        names: their tokens, if known.
        progress: show a bar.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """
    scores: list[HeadScores] = []
    queries = None if names is None else (0, 0)
    with bar(len(layers), progress=progress) as advance:
        for layer in layers:
            texts = [_without_padding(text, ids) for text, ids in _texts(layer, names)]
            measured = [figures(text, ids, read) for text, ids in texts]
            level = [figures(even(text), ids, read) for text, ids in texts]
            for place, head in enumerate(layer.heads):
                own = _mean([text[place] for text in measured])
                flat = _mean([text[place] for text in level])
                scores.append(_scores(layer.index, head, own, role_of(own, flat)))
                if names is not None and own is not None:
                    queries = own.induction_queries, own.same_queries
            advance()
    return Heads(scores, queries)


def figures(
    pattern: Pattern, ids: Int[Tensor, " T"] | None, read: Read = Pattern.read
) -> list[Figures | None]:
    """Measure the heads of one text, ``(H, T, T)``; None for each on a text of one token.

    Args:
        pattern: their weights.
        ids: the tokens, if known.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """
    heads, length, _ = pattern.shape
    if length < 2:
        return [None] * heads
    counted = [] if ids is None else [with_targets(ids, after=after) for after in (False, True)]
    # The shares are read row by row: not where no query has anything to count.
    repeats: tuple[Copies | Successors | Controls, ...] = ()
    if ids is not None and any(one.any() for one in counted):
        repeats = Copies(ids), Successors(ids), Controls(ids)
    first, entropy, distance, offsets, *found = read(
        pattern, Mass(0), Entropy(), Distance(), Offsets(2), *repeats
    )
    same = induction = _Repeats()
    if found:
        *shares, controls = found
        same, induction = map(_Repeats, shares, controls, counted)
    highest = even(pattern).entropy()[:, 1:]
    choice = highest > 0  # of more than one key
    spread = torch.where(choice, entropy[:, 1:] / highest, 0).sum(-1) / choice.sum(-1).clamp(min=1)
    # Offset 0 averages over all T rows; row 0, which counts nowhere, is itself on the first token.
    itself = (offsets[:, 0] * length - first[:, 0]) / (length - 1)
    return [
        Figures(
            previous=float(offsets[head, 1]),
            first=float(first[head, 1:].mean()),
            itself=max(0.0, float(itself[head])),
            induction=induction.share(head),
            induction_control=induction.control(head),
            induction_queries=induction.queries,
            same=same.share(head),
            same_control=same.control(head),
            same_queries=same.queries,
            spread=float(spread[head]),
            entropy=float(entropy[head, 1:].mean()),
            distance=float(distance[head, 1:].mean()),
        )
        for head in range(heads)
    ]


@dataclass(frozen=True, eq=False)
class _Repeats:
    """The weight that queries give to earlier copies, or to what followed them."""

    shares: Float[Tensor, "H T"] | None = None
    controls: Float[Tensor, " H"] | None = None
    counted: Bool[Tensor, " T"] | None = None

    @property
    def queries(self) -> int:
        """How many queries have any such key."""
        return 0 if self.counted is None else int(self.counted.sum())

    def share(self, head: int) -> float | None:
        """Mean over those queries."""
        if self.shares is None or not self.queries:
            return None
        return float(self.shares[head][self.counted].mean())

    def control(self, head: int) -> float | None:
        """What the same keys get from other queries."""
        return float(self.controls[head]) if self.controls is not None and self.queries else None


def even(pattern: Pattern) -> Pattern:
    """The pattern of heads that spread evenly over the keys that this pattern's may see."""
    problem, _ = pattern.parts()
    flat = replace(
        problem,
        query=torch.zeros_like(problem.query[..., :1]),
        key=torch.zeros_like(problem.key[..., :1]),
        rows=replace(problem.rows, bias=_hidden_only(problem.rows.bias)),
        alibi=None,
        sink=None,
    )
    return Pattern.of(flat, None)


def _hidden_only(bias: Tensor | None) -> Tensor | None:
    """Keep what an additive mask hides, and add nothing elsewhere."""
    if bias is None:
        return None
    return torch.zeros_like(bias).masked_fill(bias <= torch.finfo(bias.dtype).min, -torch.inf)


def _extent(pattern: Pattern) -> tuple[int, int]:
    """Where the tokens of a padded sequence start and stop: queries that see themselves."""
    rows = pattern.parts()[0].rows
    index = torch.arange(rows.queries, device=rows.start.device)
    sees = ((rows.start <= index) & (index < rows.stop)).flatten(0, 1).any(0)
    seen = sees.nonzero().flatten()
    if not rows.interval or seen.numel() == 0:
        return 0, rows.queries
    return int(seen[0]), int(seen[-1]) + 1


def _cut(pattern: Pattern, start: int, stop: int) -> Pattern:
    """Keep the queries and keys of a range, of a pattern that sees none outside it."""
    problem, _ = pattern.parts()
    if (start, stop) == (0, problem.queries):
        return pattern
    part = slice(start, stop)
    return Pattern.of(problem.window(part, part), None)


def _texts(layer: Layer, names: Tokens | None) -> list[tuple[Pattern, Tensor | None]]:
    """Each sequence of the batch with its tokens, numbered."""
    pattern = layer.pattern
    if pattern.ndim not in (3, 4) or pattern.shape[-2] != pattern.shape[-1]:
        raise RecordError(
            f"heads are scored over whole sequences, but {layer.name or 'a layer'} was recorded "
            f"as {pattern!r}; record all rows, from the prompt on"
        )
    texts = [pattern] if pattern.ndim == 3 else [pattern[i] for i in range(len(pattern))]
    if names is None:
        return [(text, None) for text in texts]
    if len(names) not in (1, len(texts)) or any(len(n) != pattern.shape[-1] for n in names):
        raise RecordError(
            f"tokens names {len(names)} sequence(s) of {sorted({len(n) for n in names})} "
            f"positions, but {layer.name or 'a layer'} attended over {len(texts)} of "
            f"{pattern.shape[-1]}; record one run at a time"
        )
    numbers = {name: number for number, name in enumerate(sorted({n for t in names for n in t}))}
    ids = [torch.tensor([numbers[name] for name in text]) for text in names]
    return list(zip(texts, ids * len(texts) if len(ids) == 1 else ids, strict=False))


def _without_padding(pattern: Pattern, ids: Tensor | None) -> tuple[Pattern, Tensor | None]:
    start, stop = _extent(pattern)
    known = None if ids is None else ids[start:stop].to(pattern.device)
    return _cut(pattern, start, stop), known


def _mean(texts: list[Figures | None]) -> Figures | None:
    """Average the figures of a head over the texts that have any; queries add up."""
    given = [asdict(text) for text in texts if text is not None]
    if not given:
        return None

    def over_texts(name: str) -> Any:
        values = [entry[name] for entry in given if entry[name] is not None]
        if name.endswith("_queries"):
            return sum(values)
        return sum(values) / len(values) if values else None

    return Figures(**{name: over_texts(name) for name in given[0]})


def _scores(layer: int, head: int, figures: Figures | None, role: Role) -> HeadScores:
    def of(name: str) -> float | None:
        return None if figures is None else getattr(figures, name)

    return HeadScores(
        layer=layer,
        head=head,
        name=role.value,
        previous_token=of("previous"),
        first_token=of("first"),
        same_token=of("itself"),
        induction=of("induction"),
        duplicate_token=of("same"),
        entropy=of("entropy"),
        distance=of("distance"),
    )


def _line(scores: HeadScores) -> str:
    def cell(value: float | None, width: int) -> str:
        return f"{'–' if value is None else f'{value:.2f}':>{width}}"

    shares = (
        scores.previous_token,
        scores.first_token,
        scores.same_token,
        scores.induction,
        scores.duplicate_token,
    )
    cells = " ".join(cell(share, 5) for share in shares)
    rest = f"{cell(scores.entropy, 8)} {cell(scores.distance, 8)}"
    return f"{f'{scores.layer}.{scores.head}':>7} {cells} {rest}  {scores.name}"
