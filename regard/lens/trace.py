"""`trace`: what an answer took from each token of a text, directly and through tokens between.

The queries that predict an answer look at its document, and at what stands between: a question, a
line of thought, the answer's own tokens. What they take from those was taken from the document
before. So what falls on a token between is propagated, a stated number of times, to where it
itself looked or moved from.

Everything is a product of a vector with lazy patterns, of the queries after the document alone: in
memory as much as the keys and values of the text take, O(L·D) a layer.

Axes: N layers, H heads, L tokens, R queries after the document, A tokens of an answer, n hops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard._arguments import check_whole
from regard._shapes import Float, Int
from regard.errors import Error
from regard.lens._kept import Keep, norms
from regard.lens.sink_keys import mean_weights_of, sinks_of_layers
from regard.lens.spans.links import Span
from regard.lens.spans.passages import check_spans
from regard.lens.targets import Answer
from regard.lens.toward import PlacedModel, require_placed, toward
from regard.pattern import Pattern
from regard.pattern.weighted import WeightedPattern
from regard.record import read_layers, record, token_names
from regard.record.layer import require_one_run

__all__ = ["Deletion", "Trace", "deletion", "log_probability", "trace"]

_FIRST, _LAST = 0.01, 0.5  # parts of the document's tokens that are deleted first and last


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """What an answer took from each token of a text; made by `trace`.

    Attributes:
        shares: by measure, ``(n + 1, L)`` in float64: row h is what is on each token after h hops.

            - ``attention``: the weight, a mean over the answer's tokens and all heads.
            - ``difference``: that less the one under a neutral question and answer, of the tokens
              up to the end of the document; NaN elsewhere.
            - ``moved``: weight times length of the value behind W_O, summed over all heads, as a
              share of all that the query moves; a mean over the answer's tokens.
            - ``toward``: what heads add from the token to the answer's logits, with its sign.
        missing: measures that the model does not allow, and why.
        document: start and stop of the document, in tokens.
        answer: start and stop of the answer.
        sinks: the keys on which heads rest, as of `sinks`.
        tokens: the tokens of the text.

    Example:
        >>> import regard, torch
        >>> model = regard.models.open()
        >>> ids = torch.tensor(model.read("Tom had a red kite. Tom wanted the red kite").ids)
        >>> found = regard.lens.trace(model, ids, regard.lens.Answer(slice(-1, None)), (0, 6))
        >>> found.shares["moved"].shape, list(found.shares)
        (torch.Size([2, 11]), ['attention', 'moved', 'toward'])
        >>> found.shares["moved"].sum(-1).round(decimals=4)
        tensor([1., 1.], dtype=torch.float64)
    """

    shares: Mapping[str, Float[Tensor, "n+1 L"]]
    document: Span
    answer: Span
    sinks: tuple[int, ...]
    tokens: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def hops(self) -> int:
        """The number of hops."""
        return len(next(iter(self.shares.values()))) - 1

    def ranked(self, measure: str, hops: int = -1) -> list[int]:
        """Return the tokens of the document without the sinks, the one with most first.

        Args:
            measure: one of `shares`.
            hops: after how many hops; by default after all.
        """
        share, sinks = self.shares[measure][hops], frozenset(self.sinks)
        order = share[slice(*self.document)].argsort(descending=True, stable=True)
        return [at for at in (order + self.document[0]).tolist() if at not in sinks]

    def between(self, measure: str, hops: int = -1) -> float:
        """Return what is left on the tokens between the document and the answer's end."""
        return float(self.shares[measure][hops, self.document[1] :].sum())


def trace(
    model: PlacedModel,
    ids: Int[Tensor, " L"],
    answer: Answer,
    document: Span,
    *,
    hops: int = 1,
    neutral: tuple[Int[Tensor, " l"], Answer] | None = None,
) -> Trace:
    """Measure what an answer took from each token of a document, and through tokens between.

    Let e be the row of shares after no hop, zero but on the tokens after the document, the answer's
    own among them. A hop adds e P in place of e, where row m of P says where token m took from: its
    weights, as a mean over all heads, for `attention` and `difference`; what its heads moved, as
    shares of the sum, for `moved` and `toward`. So a hop keeps the sum of all shares. To take the
    answer to such tokens, and those to the text, is the recursive attribution of FlashTrace (Pan et
    al. 2026, arXiv:2602.01914); with its own measure in place of the weights it would be theirs.
    These measures, and their rows' own shares as P, are a definition of our own. Tokens of the
    document propagate nothing.

    Two forward passes, and one for the neutral text.

    Args:
        model: a `regard.models.LanguageModel` with a next token.
        ids: document, what stands between, and the answer.
        answer: the answer, tokens at the end of the text.
        document: start and stop of the document, in tokens, before the answer.
        hops: how often shares are propagated.
        neutral: ids that are the same up to the document's end, with a neutral text in place of
            what follows, and the neutral answer in them, as for `passage_weights`; None leaves out
            the measure ``difference``.

    Raises:
        Error: for weights that are not finite.
        RecordError: for attention that cannot be recorded.
        TypeError: for arguments of the wrong type.
        ValueError: for a document that reaches into the answer, fewer than no hops, and a neutral
            text with another document.

    Example:
        >>> import regard, torch
        >>> model = regard.models.open()
        >>> text = "Tom had a red kite and a blue drum. Tom wanted the red kite"
        >>> read = model.read(text)
        >>> answer = regard.lens.Answer(slice(len(read) - 1, len(read)))
        >>> found = regard.lens.trace(model, torch.tensor(read.ids), answer, (0, 10), hops=2)
        >>> [found.tokens[at] for at in found.ranked("toward", 0)[:2]]  # directly
        [' kite', ' drum']
    """
    require_placed(model)
    if not isinstance(answer, Answer):
        raise TypeError(
            f"answer must be a regard.lens.Answer, such as Answer(slice(-2, None)), but is "
            f"{answer!r}"
        )
    check_whole(hops, "hops")
    if hops < 0:
        raise ValueError(f"hops must be at least 0, but is {hops}")
    queries = answer.queries(len(ids))
    ((start, stop),) = (part.tokens for part in check_spans([document], queries[0] + 1, "document"))
    if neutral is not None and neutral[0][:stop].tolist() != ids[:stop].tolist():
        raise ValueError(
            "neutral has other tokens up to the end of the document; give the same document, and "
            "replace what follows"
        )
    missing: dict[str, str] = {}
    try:
        keep = [norms(model)]
    except (TypeError, Error) as error:
        keep, missing["moved"] = [], str(error)
    run = _Run(model, ids, answer, stop, keep=keep, finds_sinks=True)
    shares = {"attention": run.propagated(run.weights(run.direct), hops, run.weights)}
    if neutral is not None:
        other = _Run(model, *neutral, stop)
        weights = other.propagated(other.weights(other.direct), hops, other.weights)
        shares["difference"] = torch.full_like(shares["attention"], torch.nan)
        shares["difference"][:, :stop] = shares["attention"][:, :stop] - weights[:, :stop]
    if "moved" in missing:
        missing["toward"] = missing["moved"]
    else:
        shares["moved"] = run.propagated(run.moved(run.direct), hops, run.moved)
        try:
            added = toward(model, ids, answer).sources.sum((0, 1))
            shares["toward"] = run.propagated(added, hops, run.moved)
        except Error as error:
            missing["toward"] = str(error)
    if not bool(shares["attention"].isfinite().all()):
        raise Error("the weights of the answer's tokens are not finite: those of the model are not")
    return Trace(
        shares=shares,
        missing=missing,
        document=(start, stop),
        answer=(queries[0] + 1, queries[1] + 1),
        sinks=run.sinks,
        tokens=tuple(token_names(model.tokenizer, ids.tolist())),
    )


class _Run:
    """The patterns of the queries after a document, of one run over a text.

    Args:
        model: the model.
        ids: the text.
        answer: the answer in it.
        stop: end of the document; tokens after it propagate what falls on them.
        keep: what is kept of the values: `norms`, if they are known.
        finds_sinks: whether the keys on which heads rest are found, by all queries.
    """

    def __init__(
        self,
        model: PlacedModel,
        ids: Tensor,
        answer: Answer,
        stop: int,
        *,
        keep: Sequence[Keep] = (),
        finds_sinks: bool = False,
    ) -> None:
        first, last = answer.queries(len(ids))
        self._rows = slice(min(stop, first), last)
        self._between = slice(stop, last)
        self.direct = self._none()
        self.direct[first - self._rows.start :] = 1 / (last - first)
        text = ids.to(model.device)
        with torch.no_grad(), ExitStack() as stack:
            rows = range(self._rows.start, last)
            recording = stack.enter_context(record(model.module, rows=rows, keep=keep))
            means = None
            if finds_sinks:
                means = stack.enter_context(read_layers(model.module, mean_weights_of))
            model.logits_at(text, [len(text) - 1])
        self.sinks = sinks_of_layers(means).keys if means else ()
        self._weights, self._moved, self._sums = [], [], self._none()
        for layer in require_one_run(recording.of_kind().layers, "trace"):
            pattern = layer.pattern[0] if layer.pattern.ndim == 4 else layer.pattern
            self._weights.append(pattern)
            if keep:
                norm = layer.kept["norm"]
                moved = pattern.weighted(key=norm[0] if norm.ndim == 3 else norm)
                keys = torch.ones(moved.shape[-1], dtype=moved.dtype, device=moved.device)
                self._sums += (moved @ keys).double().cpu().sum(0)
                self._moved.append(moved)

    def _none(self) -> Float[Tensor, " R"]:
        count = self._rows.stop - self._rows.start
        return torch.zeros(count, dtype=torch.float64, device="cpu")

    def weights(self, share: Float[Tensor, " R"]) -> Float[Tensor, " L"]:
        """Return the weights of the queries, summed by their shares; a mean over all heads."""
        return _product(share, self._weights) / sum(len(pattern) for pattern in self._weights)

    def moved(self, share: Float[Tensor, " R"]) -> Float[Tensor, " L"]:
        """Return what heads move to the queries, each query's as shares of all, summed likewise."""
        return _product(share / torch.where(self._sums > 0, self._sums, 1), self._moved)

    def propagated(
        self, direct: Float[Tensor, " L"], hops: int, once: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "n+1 L"]:
        """Return shares after each hop, from none on; what is on a token between is propagated."""
        found, passing = [direct], direct
        for _ in range(hops):
            share = self._none()
            share[self._between.start - self._rows.start :] = passing[self._between]
            passing = once(share)
            rest = found[-1].clone()
            rest[self._between] = 0
            found.append(rest + passing)
        return torch.stack(found)


def _product(
    share: Float[Tensor, " R"], patterns: Sequence[Pattern | WeightedPattern]
) -> Float[Tensor, " L"]:
    """Return a row times each pattern, summed over all heads."""
    total = torch.zeros(patterns[0].shape[-1], dtype=torch.float64, device="cpu")
    for pattern in patterns:
        row = share.to(pattern.device, pattern.dtype)
        total += (row @ pattern).double().cpu().sum(0)
    return total


@dataclass(frozen=True, eq=False, kw_only=True)
class Deletion:
    """What an answer's log-probability loses as tokens are deleted; made by `deletion`.

    Attributes:
        log_probability: with the whole text, in nats.
        counts: the numbers of tokens that are deleted.
        changes: by the name of an order, the change of the log-probability at each count, in nats;
            ``random`` is the mean over random orders.
        forwards: how many forward passes were made.

    Example:
        >>> import regard, torch
        >>> model = regard.models.open()
        >>> ids = torch.tensor(model.read("Tom had a red kite. Tom wanted the red kite").ids)
        >>> answer = regard.lens.Answer(slice(-1, None))
        >>> lost = regard.lens.deletion(model, ids, answer, {"last first": [3, 2, 1]}, steps=2)
        >>> lost.counts, lost.forwards, list(lost.means)
        ((1, 2), 9, ['last first', 'random'])
    """

    log_probability: float
    counts: tuple[int, ...]
    changes: Mapping[str, Float[Tensor, " K"]]
    forwards: int

    @property
    def means(self) -> dict[str, float]:
        """The mean change over all counts, by order: the lower, the more faithful it is."""
        return {name: float(values.mean()) for name, values in self.changes.items()}


def deletion(
    model: PlacedModel,
    ids: Int[Tensor, " L"],
    answer: Answer,
    orders: Mapping[str, Sequence[int]],
    *,
    steps: int = 6,
    draws: int = 3,
    seed: int = 0,
) -> Deletion:
    """Measure what an answer loses as the first tokens of each order are deleted.

    They are taken out of the text, and the model reads what is left, from position 0 on. Counts
    rise from a hundredth to half of the tokens by equal factors. An order is faithful if the
    answer loses more by it than by a random one. FlashTrace's evaluation replaces tokens by the
    padding token instead, in order of the score: `tools/removal_curves.py` has that.

    Args:
        model: a `regard.models.LanguageModel` with a next token.
        ids: the text.
        answer: the answer in it.
        orders: by name, tokens before the answer, the one to delete first first; all the same set.
        steps: number of counts at most.
        draws: number of random orders of these tokens, whose mean is ``random``.
        seed: of those.

    Raises:
        Error: for a log-probability that is not a number.
        ValueError: for orders of different tokens, tokens that are not before the answer, or no
            step or draw.

    Example:
        >>> import regard, torch
        >>> model = regard.models.open()
        >>> ids = torch.tensor(model.read("Tom had a red kite. Tom wanted the red kite").ids)
        >>> answer = regard.lens.Answer(slice(-1, None))
        >>> lost = regard.lens.deletion(model, ids, answer, {"red first": [3, 4, 1, 2]})
        >>> lost.means["red first"] < 0
        True
    """
    for name, number in (("steps", steps), ("draws", draws)):
        check_whole(number, name)
        if number < 1:
            raise ValueError(f"{name} must be at least 1, but is {number}")
    queries = answer.queries(len(ids))
    places = sorted(next(iter(orders.values()), ()))
    once = len(set(places)) == len(places) > 1
    if not once or any(sorted(order) != places for order in orders.values()):
        raise ValueError("orders must hold the same tokens, each once, and at least two of them")
    if not 0 <= places[0] <= places[-1] <= queries[0]:
        raise ValueError(
            f"orders hold tokens from {places[0]} to {places[-1]}, but those before the answer are "
            f"0 to {queries[0]}"
        )
    if "random" in orders:
        raise ValueError('orders has a "random" one, which is the name of those that are drawn')
    generator = torch.Generator(device="cpu").manual_seed(seed)
    drawn = [
        [places[at] for at in torch.randperm(len(places), generator=generator, device="cpu")]
        for _ in range(draws)
    ]
    parts = torch.logspace(0, 1, steps, base=_LAST / _FIRST, dtype=torch.float64, device="cpu")
    counts = sorted({max(1, round(float(part) * _FIRST * len(places))) for part in parts})
    unchanged = log_probability(model, ids, answer)
    every = [*orders.values(), *drawn]
    table = torch.tensor(
        [[log_probability(model, ids, answer, one[:count]) for count in counts] for one in every],
        dtype=torch.float64,
        device="cpu",
    )
    changes = dict(zip(orders, table - unchanged, strict=False))
    changes["random"] = table[len(orders) :].mean(0) - unchanged
    return Deletion(
        log_probability=unchanged,
        counts=tuple(counts),
        changes=changes,
        forwards=1 + table.numel(),
    )


def log_probability(
    model: PlacedModel, ids: Tensor, answer: Answer, gone: Sequence[int] = ()
) -> float:
    """Return the log-probability of an answer in a text without some tokens before it, in nats.

    Raises:
        Error: if it is not a number.
    """
    kept = torch.ones(len(ids), dtype=torch.bool, device="cpu")
    kept[list(gone)] = False
    text = ids.cpu()[kept]
    rows = [at - len(gone) for at in range(*answer.queries(len(ids)))]
    with torch.no_grad():
        logits = model.logits_at(text.to(model.device), rows).double().log_softmax(-1)
    following = text[rows[0] + 1 : rows[-1] + 2].to(logits.device)
    log = float(logits.gather(-1, following[:, None]).sum())
    if math.isnan(log):
        raise Error("the log-probability of the answer is NaN: weights of the model are not finite")
    return log
