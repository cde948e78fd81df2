"""The scores and roles of heads, over the texts of a batch.

Axes: B batch, H heads of a layer, T tokens of one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Int
from regard.errors import RecordError
from regard.lens.naming.evidence import Means, Score, itself, lead, mean_of, nearness
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.roles import Evidence, PatternScores, Role, role_of
from regard.lens.naming.separators import is_separator
from regard.lens.naming.tallies import Read, Tallier
from regard.lens.texts import extent, part_of, texts_of
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.layer import Layer, Tokens, require_one_run
from regard.record.readings import bar

__all__ = ["SCORE_OF", "head_of", "score_heads"]

SCORE_OF: Mapping[Role, tuple[str, Score]] = {
    Role.INDUCTION: ("induction", lead),
    Role.DUPLICATE: ("duplicate_token", lead),
    Role.PREVIOUS: ("previous_token", lead),
    Role.NEXT: ("next_token", lead),
    Role.CURRENT: ("current_token", lead),
    Role.SEPARATOR: ("separator", lead),
    Role.FIRST: ("first_token", lead),
    Role.SPREAD: ("spread", itself),
    Role.LOCAL: ("distance", nearness),
}
"""For each role, the name of its tallies and the function that scores them."""


class _Text(NamedTuple):
    """One sequence of a layer; of its tokens the numbers and the separators, if they are known."""

    pattern: Pattern
    ids: Int[Tensor, " T"] | None
    separators: Bool[Tensor, " T"] | None
    start: int = 0
    """Number of padding tokens before it."""


class _Words(NamedTuple):
    """The tokens of a sequence as numbers, and the separators among them."""

    ids: Int[Tensor, " T"]
    separators: Bool[Tensor, " T"]


def score_heads(
    layers: Sequence[Layer],
    names: Tokens | None,
    *,
    progress: bool | None = None,
    read: Read = Pattern.read,
) -> Heads:
    """Score every head of some layers and name it, as `heads` does for a recording.

    All output that names heads takes the names from here.

    Args:
        layers: the layers.
        names: their tokens, if known.
        progress: whether to show a progress bar.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """
    scores: list[HeadScores] = []
    words = None if names is None else list(_numbered_words(names))
    with bar(len(layers), progress=progress) as advance:
        for layer in layers:
            texts = [_without_padding(text) for text in _texts(layer, words)]
            scores += _of_layer(layer, texts, read)
            advance(1)
    return Heads(scores)


def _of_layer(layer: Layer, texts: Sequence[_Text], read: Read) -> list[HeadScores]:
    known = texts[0].ids is not None
    tokens = _numbered(texts)
    count = 1 + max((int(ids.max()) for ids in tokens if len(ids)), default=0)
    found = [
        Tallier(ids, count, text.separators).of_text(text.pattern, read)
        for text, ids in zip(texts, tokens, strict=True)
        if len(ids) > 1
    ]
    tallies = [one.tallies for one in found]
    sinks: list[tuple[int, ...]] | list[None] = [None] * len(layer.heads)
    if len(texts) == len(found) == 1:
        rows, start = found[0].sinks, texts[0].start
        sinks = [tuple((start + row.nonzero().flatten()).tolist()) for row in rows]
    means = {
        name: mean_of([one[name] for one in tallies if name in one])
        for name in (*(name for name, _ in SCORE_OF.values()), "entropy", "resting")
        if any(name in one for one in tallies)
    }
    evidence = {
        role: means[name].evidence(score)
        for role, (name, score) in SCORE_OF.items()
        if name in means
    }
    return [
        head_of(
            layer.index,
            head,
            sinks[place],
            _pattern_scores(means, place, known=known),
            {role: own for role, heads in evidence.items() if (own := heads[place]) is not None},
        )
        for place, head in enumerate(layer.heads)
    ]


def head_of(
    layer: int,
    head: int,
    sinks: tuple[int, ...] | None,
    scores: PatternScores,
    evidence: Mapping[Role, Evidence],
) -> HeadScores:
    """Name a head by the evidence for each role."""
    role, undecided = role_of(evidence)
    shown = undecided if role.is_open else role
    rests_on = None if shown is None else evidence.get(shown)
    about = {} if rests_on is None else vars(rests_on)
    tested = [one.p_value for one in evidence.values() if one.p_value is not None]
    if tested:
        own = None if rests_on is None else rests_on.p_value
        # One of several relations: the smallest of so many p-values (Bonferroni).
        about = about | {"p_value": min(1.0, len(tested) * (min(tested) if own is None else own))}
    if rests_on is None and evidence:
        about = {**about, "queries": max(one.queries for one in evidence.values())}
    return HeadScores(
        layer=layer,
        head=head,
        role=role,
        undecided=undecided,
        sinks=sinks,
        **about,
        **vars(scores),
    )


def _pattern_scores(means: Mapping[str, Means], head: int, *, known: bool) -> PatternScores:
    """Return the scores of one head."""
    values: dict[str, Any] = {}
    for name, mean in means.items():
        queries = int(mean.queries[head].sum())
        if name in ("induction", "duplicate_token"):
            values[f"{name}_queries"] = queries
            for control in ("others", "shuffled"):
                total = float(mean.controls[control][head].sum())
                values[f"{name}_{control}"] = total if queries else None
        values[name] = float(mean.share[head].sum()) if queries else None
    if known:
        values = {"induction_queries": 0, "duplicate_token_queries": 0} | values
    return PatternScores(**values)


def _numbered(texts: Sequence[_Text]) -> list[Int[Tensor, " T"]]:
    """Return the token numbers of each text; distinct numbers if tokens are not known."""
    lengths = [text.pattern.shape[-1] for text in texts]
    first = [sum(lengths[:place]) for place in range(len(lengths))]
    return [
        torch.arange(start, start + length, device=text.pattern.device)
        if text.ids is None
        else text.ids
        for text, start, length in zip(texts, first, lengths, strict=True)
    ]


def _numbered_words(names: Tokens) -> Iterator[_Words]:
    """Yield the numbers of each sequence's tokens, and which of them are separators."""
    numbers = {name: number for number, name in enumerate(sorted({n for t in names for n in t}))}
    separates = torch.tensor([is_separator(name) for name in numbers], device="cpu")
    for text in names:
        ids = torch.tensor([numbers[name] for name in text], device="cpu")
        yield _Words(ids, separates[ids])


def _texts(layer: Layer, words: Sequence[_Words] | None) -> list[_Text]:
    """Return each sequence of the batch."""
    texts = texts_of(layer, "heads are scored")
    if words is None:
        return [_Text(text, None, None) for text in texts]
    length = layer.pattern.shape[-1]
    if len(words) not in (1, len(texts)) or any(len(one.ids) != length for one in words):
        raise RecordError(
            f"tokens names {len(words)} sequence(s) of {sorted({len(one.ids) for one in words})} "
            f"positions, but {layer.name or 'a layer'} attended over {len(texts)} of "
            f"{length}; record one run at a time"
        )
    every = list(words) * len(texts) if len(words) == 1 else words
    return [_Text(text, *own) for text, own in zip(texts, every, strict=True)]


def _without_padding(text: _Text) -> _Text:
    start, stop = extent(text.pattern)
    ids, separators = (
        None if one is None else one[start:stop].to(text.pattern.device)
        for one in (text.ids, text.separators)
    )
    return _Text(part_of(text.pattern, start, stop), ids, separators, start)


def heads(recording: Recording, *, progress: bool | None = None) -> Heads:
    """Score each head and name its role, against controls.

    A head is named after a relation, such as ``induction``, if it puts more weight on its
    targets than each control does: a uniform head, its own other queries, the text in
    shuffled order. The weight is that beside the keys on which the head rests, by the rule of
    `regard.lens.sinks`; what rests there is a share of its own, `HeadScores.resting`.
    `regard.lens.naming.roles` defines roles and controls, and `HeadScores` the scores.
    Exact and deterministic, in memory O(L); scores on repeats and separators need tokens. A text
    need not show what a head does: `regard.lens.probe` runs a model on one that does.

    Args:
        recording: the recording of one run of a model.
        progress: whether to show a progress bar; None shows it on a terminal.

    Raises:
        RecordError: if only some rows or several runs were recorded, or if tokens do not fit the
            sequences.

    Example:
        >>> import regard, torch
        >>> tokens = [*"abcdefghij", *"abcdefghij"]
        >>> follows = torch.eye(20).roll(9, 0) * 50  # what came after the token's copy
        >>> keys = torch.eye(20)[None, None]
        >>> with regard.record(tokens=tokens) as recording:
        ...     _ = regard.attention(follows[None, None], keys, keys, mask=regard.causal())
        >>> (head,) = regard.lens.heads(recording)
        >>> print(head.role, head.evidence)
        induction 1.00 ± 0.00 over 10 queries
    """
    layers = require_one_run(recording.of_kind().layers, "heads")
    return score_heads(layers, recording.tokens, progress=progress)
