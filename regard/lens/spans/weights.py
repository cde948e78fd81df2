"""Weights of each head on spans of a text: deciding words and control words, or passages.

Axes: M spans, K kinds, N layers, H heads, R rows, S keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._arguments import Indices, check_indices, chosen
from regard._display import show
from regard._shapes import Float, Int
from regard.errors import RecordError
from regard.intercept import last_logits, takes_logits_to_keep
from regard.lens.sink_keys import READOUTS, sinks_of_readings
from regard.lens.spans.links import Link, Span, TokenLink, place_links
from regard.lens.spans.passages import Passage, check_spans, require_apart
from regard.lens.targets import Answer, Logit, LogProbability
from regard.pattern.readout import Readout
from regard.pattern.readouts import Received
from regard.record import Recording, read_while_running
from regard.record.layer import Layer, Tokens, require_one_run
from regard.record.readings import LayerReadings, read_layer

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ENOUGH",
    "SINKS",
    "SpanValues",
    "SpanWeights",
    "link_weights",
    "passage_readouts",
    "passage_weights",
    "read_passages",
    "select",
    "share_out",
]

Target = Answer | LogProbability | Logit

ENOUGH = 8
"""Minimum number of spans of a kind for which tables name the head with the largest weight."""
SINKS, ELSEWHERE = "sinks", "elsewhere"
"""The kinds of tokens outside all passages."""

_NUMBERS = 2**22  # maximum number of weights read at a time
_DEVIATIONS = 1.96  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True, eq=False)
class SpanValues:
    """A number or an array of numbers for each span, ``(M, ...)``; NaN where a span has none.

    Attributes:
        values: the numbers, in float64 on the CPU.
        kinds: the kind of each span; each passage is a kind of its own.
        texts: index of each span's text.

    Example:
        >>> import torch
        >>> from regard.lens import SpanValues
        >>> values = SpanValues(torch.tensor([1.0, 3.0, 5.0]), ("copy", "copy", "rhyme"), (0, 1, 1))
        >>> values.counts, values.mean
        ({'copy': 2, 'rhyme': 1}, tensor([2., 5.]))
    """

    values: Float[Tensor, "M *rest"]
    kinds: tuple[str, ...]
    texts: tuple[int, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return the number of spans of each kind, in the order of their first spans."""
        return dict(Counter(self.kinds))

    @cached_property
    def mean(self) -> Float[Tensor, "K *rest"]:
        """Return the mean over the spans of each kind, ``(K, ...)``; NaN if none has a number."""
        return self._of_kinds(lambda values, _: values.nanmean(dim=0))

    @cached_property
    def interval(self) -> Float[Tensor, "K *rest"]:
        """Return half the width of the mean's 95 % interval, ``(K, ...)``: 1.96 standard errors.

        Spans of one text are not independent, so the variance is clustered by text (Liang and Zeger
        1986, Biometrika 73, equation 4, for a mean). The spans of a single text are treated as
        independent. NaN for fewer than two clusters.
        """
        return self._of_kinds(_interval)

    def of_same_spans(self, values: Float[Tensor, "M *others"]) -> SpanValues:
        """Return other values of the same spans."""
        return SpanValues(values, self.kinds, self.texts)

    @classmethod
    def merge(cls, parts: Sequence[SpanValues]) -> SpanValues:
        """Concatenate the spans of several parts, each of other texts."""
        kinds: list[str] = []
        texts: list[int] = []
        for part in parts:
            first = max(texts, default=-1) + 1
            kinds += part.kinds
            texts += [first + text for text in part.texts]
        return cls(torch.cat([part.values for part in parts]), tuple(kinds), tuple(texts))

    def _of_kinds(self, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        texts = torch.tensor(self.texts, dtype=torch.int64, device=self.values.device)
        places = [[n for n, own in enumerate(self.kinds) if own == kind] for kind in self.counts]
        rows = [reduce(self.values[numbers], texts[numbers]) for numbers in places]
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


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanWeights:
    """Weights of each head on spans of a text; made by `link_weights` and `passage_weights`.

    For links, the spans are the deciding words, compared with decoys and control words. For
    passages, they are the passages, each of a kind of its own, and two more: the sinks and all
    other tokens, so that the weights of each head sum to 1. Their controls are the weights on the
    same passages under a neutral question.

    Attributes:
        spans: weight on a span: ``(M, N, H)`` by span, its mean ``(K, N, H)`` by kind.
        decoys: weight on a decoy; NaN for spans without one.
        controls: weight on a control word: it neither decides nor is a decoy nor has the text of
            one of them, and is at half to twice the distance of a deciding word; a word for a word,
            a mark for a mark, never the text's first token. For passages, the weight on the same
            passage in the neutral run. NaN for spans without one.
        keys: the tokens of each span, ``(start, stop)`` per word; empty for other tokens.
        layers: indices of the layers.
        heads: indices of the heads; weights are NaN where a layer lacks a head.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 9, 6))
        >>> answer = regard.lens.Answer(slice(7, 9))
        >>> weights = regard.lens.passage_weights(recording, [(1, 3), (3, 6)], answer, sinks=())
        >>> weights.spans.kinds, weights.keys[-2:]
        (('1–2', '3–5', 'sinks', 'elsewhere'), ((), ()))
        >>> weights.mean.sum().round(decimals=4)
        tensor(1., dtype=torch.float64)
    """

    spans: SpanValues
    decoys: SpanValues
    controls: SpanValues
    keys: tuple[tuple[Span, ...], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of spans of each of the K kinds, in order."""
        return self.spans.counts

    @property
    def mean(self) -> Float[Tensor, " K"]:
        """Return the mean weight on a span of each kind over the heads of all layers."""
        return self.spans.mean.flatten(1).nanmean(dim=-1)

    @property
    def difference(self) -> Float[Tensor, " K"]:
        """Return the mean over all heads of the weight minus its control; NaN without controls."""
        return (self.spans.mean - self.controls.mean).flatten(1).nanmean(dim=-1)

    @classmethod
    def merge(cls, parts: Iterable[SpanWeights]) -> SpanWeights:
        """Concatenate the spans of several texts, read by models with the same heads.

        Raises:
            ValueError: for no parts, and for different layers or heads.

        Example:
            >>> import regard
            >>> regard.lens.SpanWeights.merge([])
            Traceback (most recent call last):
            ValueError: parts is empty; give at least one SpanWeights
        """
        every = list(parts)
        if not every:
            raise ValueError("parts is empty; give at least one SpanWeights")
        first = every[0]
        for other in every:
            if (other.layers, other.heads) != (first.layers, first.heads):
                raise ValueError(
                    f"parts have layers {first.layers} of heads {first.heads} and layers "
                    f"{other.layers} of heads {other.heads}; merge those of the same heads"
                )
        return cls(
            spans=SpanValues.merge([part.spans for part in every]),
            decoys=SpanValues.merge([part.decoys for part in every]),
            controls=SpanValues.merge([part.controls for part in every]),
            keys=tuple(keys for part in every for keys in part.keys),
            layers=first.layers,
            heads=first.heads,
        )

    def against(self, control: SpanWeights) -> SpanWeights:
        """Return these weights with those of another run on the same spans as their controls.

        Raises:
            ValueError: for other layers, heads or spans.
        """
        own, other = ((w.layers, w.heads, w.counts.keys()) for w in (self, control))
        if own != other:
            raise ValueError(
                f"control has layers {control.layers} of heads {control.heads} and "
                f"{len(control.counts)} kinds of spans, but these weights have layers "
                f"{self.layers} of heads {self.heads} and {len(self.counts)}; read both alike"
            )
        return replace(self, controls=self.spans.of_same_spans(control.spans.values))

    def frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row per kind and head."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [list(self.counts), self.layers, self.heads], names=["kind", "layer", "head"]
        )
        columns = {
            "weight": self.spans.mean,
            "interval": self.spans.interval,
            "decoys": self.decoys.mean,
            "controls": self.controls.mean,
        }
        numbers = {name: values.flatten().numpy() for name, values in columns.items()}
        frame = pd.DataFrame(numbers, index=index).reset_index()
        frame.insert(1, "spans", frame["kind"].map(self.counts))
        return frame

    def _repr_html_(self) -> str:
        html: str = show("span_weights_html", self)
        return html

    def __repr__(self) -> str:
        text: str = show("span_weights_text", self)
        return text


def link_weights(
    recording: Recording, links: Iterable[Link], *, text: str | None = None
) -> SpanWeights:
    """Read each head's weights on the words that decide other words, with decoys and controls.

    For each link one row is read: of the query that predicts the decided word's first token. The
    weight of a word is the sum over its tokens; of several deciding words, decoys or control
    words of a link, the mean is taken.

    Args:
        recording: a recording of one text, with its tokens.
        links: objects with a ``kind``, and character spans of the ``decided`` word, the
            ``deciding`` words and ``decoys``, such as those of a `regard.gpt.stories.Story`.
        text: the text that the spans refer to, if the tokens contain more, or as a check.

    Returns:
        The weights on deciding words, decoys and control words, per kind of link and head of
        self-attention.

    Raises:
        RecordError: if the tokens are not known, or for several texts or runs, other kinds of
            attention, or rows that were not recorded.
        TypeError: for an object that is not a link.
        ValueError: for spans beyond the tokens, or a text that the tokens do not contain.

    Example:
        >>> import regard, torch
        >>> from types import SimpleNamespace
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(tokens=["Ann", " and", " Ben", ":", " Ann"]) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> copy = SimpleNamespace(kind="copy", decided=(13, 16), deciding=[(0, 3)], decoys=[])
        >>> weights = regard.lens.link_weights(recording, [copy])
        >>> torch.equal(weights.spans.mean[0, 0], recording[0][0, :, 3, 0].double())
        True
    """
    layers = require_one_run(recording.of_kind().layers, "link_weights")
    tokens: Tokens | None = recording.tokens
    if tokens is None:
        raise RecordError(
            "links are placed by what the tokens spell, which is not known; record with "
            "record(model, tokens=tokenizer), or give the strings"
        )
    for layer in layers:
        _require_one_text(layer, "links", len(tokens[0]))
    placed = place_links(tokens[0], links, text)
    heads = tuple(sorted({head for layer in layers for head in layer.heads}))
    size = 3, len(placed), len(layers), len(heads)
    values = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
    for row, layer in enumerate(layers):
        values[:, :, row, [heads.index(head) for head in layer.heads]] = _of_links(layer, placed)
    spans = SpanValues(values[0], tuple(link.kind for link in placed), (0,) * len(placed))
    return SpanWeights(
        spans=spans,
        decoys=spans.of_same_spans(values[1]),
        controls=spans.of_same_spans(values[2]),
        keys=tuple(link.deciding for link in placed),
        layers=tuple(layer.index for layer in layers),
        heads=heads,
    )


def _of_links(layer: Layer, links: Sequence[TokenLink]) -> Float[Tensor, "3 M H"]:
    """Return the mean weight on a deciding word, a decoy and a control word of each link."""
    pattern = layer.pattern if layer.pattern.ndim == 3 else layer.pattern[0]
    heads, _, keys = pattern.shape
    rows = [_row_of(layer, link.query) for link in links]
    result = torch.full((3, len(links), heads), torch.nan, dtype=torch.float64, device="cpu")
    size = max(_NUMBERS // max(heads * keys, 1), 1)
    for first in range(0, len(links), size):
        some = slice(first, first + size)
        weights = pattern[:, rows[some]].double().cpu()  # (H, R, S)
        for number, link in enumerate(links[some]):
            for place, words in enumerate((link.deciding, link.decoys, link.controls)):
                if words:
                    own = [key for word in words for key in range(*word)]
                    sums = weights[:, number, own].sum(dim=-1)
                    result[place, first + number] = sums / len(words)
    return result


def _row_of(layer: Layer, query: int) -> int:
    try:
        return layer.rows.index(query)
    except ValueError:
        raise RecordError(
            f"query {query}, which predicts a token that is asked for, was not recorded in "
            f"{layer.name or 'a layer'}; record all rows"
        ) from None


def _require_one_text(layer: Layer, what: str, keys: int | None = None) -> None:
    batch = 1 if layer.pattern.ndim == 3 else len(layer.pattern)
    if (
        batch != 1
        or layer.kind != "self"
        or layer.pattern.shape[-1] != (keys or layer.pattern.shape[-1])
    ):
        raise RecordError(
            f"{what} are those of one text that attends to itself, but {layer.name or 'a layer'} "
            f"was recorded as {layer.pattern!r}, kind {layer.kind!r}; record one text at a time"
        )


def passage_weights(
    recording: Recording,
    spans: Sequence[Span | Passage],
    target: Target,
    *,
    layers: Indices | None = None,
    heads: Indices | None = None,
    sinks: Sequence[int] | None = None,
    neutral: tuple[Recording, Target] | None = None,
) -> SpanWeights:
    """Sum the weights of the queries that predict an answer over each passage of a text.

    What each key receives from those queries is read, in memory O(S). A passage that a model looks
    at need not be one that it needs: `regard.lens.effects` measures that, over the same passages.

    Some passages get more weight than others whatever is asked. A second run over the same
    document, in which both question and answer are replaced by a neutral text such as ``N/A``, says
    how much: ``difference`` is the weight less that. It is a definition of our own.

    Args:
        recording: a recording of one text.
        spans: the passages, ``(start, stop)`` in tokens, or those of `regard.lens.split_passages`.
        target: the answer; weights are means over the queries that predict it.
        layers: the layers of self-attention to read; None is all.
        heads: the heads of each layer; None is all.
        sinks: keys whose weight is listed separately. None finds them by the selected heads, as
            `regard.lens.sinks` does, up to the end of the last passage.
        neutral: a recording of the neutral run, whose tokens are the same up to the end of the last
            passage, and the neutral answer in it.

    Returns:
        The weight on each passage without the sinks; then on the sinks, a sink logit included; and
        on all other tokens, such as a question. With `neutral`, its weights as controls.

    Raises:
        RecordError: for several texts or runs, other kinds of attention, or rows that were
            not recorded.
        TypeError: for arguments of the wrong type.
        ValueError: for spans that overlap or hold no token before the answer, and for a neutral run
            that is known to have other tokens there or has other layers or heads.
        IndexError: for layers or heads that were not recorded.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record() as recording:
        ...     _ = layer(torch.randn(1, 9, 6))
        >>> answer = regard.lens.Answer(slice(7, 9))
        >>> weights = regard.lens.passage_weights(recording, [(1, 3), (3, 6)], answer)
        >>> rows = recording[0][0, :, 6:8, 1:3].double()  # each predicts the token after it
        >>> torch.allclose(weights.spans.values[0, 0], rows.sum(-1).mean(-1))
        True
    """
    if neutral is not None:
        some: dict[str, Any] = {"layers": layers, "heads": heads}
        weights = passage_weights(recording, spans, target, sinks=sinks, **some)
        tokens, others = recording.tokens, neutral[0].tokens
        if tokens is not None and others is not None:
            _require_same_start(tokens[0], others[0], weights)
        own = [first for first, _ in weights.keys[-2]]
        return weights.against(passage_weights(neutral[0], spans, neutral[1], sinks=own, **some))
    recorded = require_one_run(recording.of_kind().layers, "passage_weights")
    for layer in recorded:
        _require_one_text(layer, "passages")
        if sinks is None and len(layer.rows) < layer.pattern.shape[-1]:
            raise RecordError(
                "sinks are found by the weights of all queries, but only some were recorded; "
                "record all rows, or name the sinks, such as sinks=()"
            )
    queries = target.queries(min((layer.pattern.shape[-1] for layer in recorded), default=0))
    passages = check_spans(spans, queries[0] + 1, "spans")
    require_apart(passages, "spans")
    table = select([len(layer.heads) for layer in recorded], (layers, heads))
    readings = []
    for place, _ in table:
        rows = _row_of(recorded[place], queries[0]), _row_of(recorded[place], queries[1] - 1) + 1
        readings.append(read_layer(recorded[place], passage_readouts(rows, sinks)))
    return share_out(readings, passages, queries, heads=[own for _, own in table], sinks=sinks)


def _require_same_start(tokens: Sequence[Any], others: Sequence[Any], weights: SpanWeights) -> None:
    """Reject a neutral run over another document."""
    stop = max(span[1] for (span,) in weights.keys[:-2])
    if tokens[:stop] != others[:stop]:
        raise ValueError(
            "neutral has other tokens up to the end of the last passage; run it over the same "
            "document, and replace what follows"
        )


def read_passages(
    model: nn.Module,
    ids: Int[Tensor, " T"],
    spans: Sequence[Span | Passage],
    target: Target,
    *,
    sinks: Sequence[int] | None = None,
    neutral: tuple[Int[Tensor, " t"], Target] | None = None,
) -> SpanWeights:
    """Read the weights on passages while a model runs; see `passage_weights`.

    Args:
        model: a causal model.
        ids: the text, ``(T,)``.
        spans: as for `passage_weights`.
        target: likewise.
        sinks: likewise.
        neutral: the text of the neutral run, and the neutral answer in it.
    """
    if neutral is not None:
        weights = read_passages(model, ids, spans, target, sinks=sinks)
        _require_same_start(ids.tolist(), neutral[0].tolist(), weights)
        own = [first for first, _ in weights.keys[-2]]
        return weights.against(read_passages(model, neutral[0], spans, neutral[1], sinks=own))
    queries = target.queries(len(ids))
    passages = check_spans(spans, queries[0] + 1, "spans")
    require_apart(passages, "spans")
    last = last_logits(1) if takes_logits_to_keep(model) else {}
    with (
        torch.inference_mode(),
        read_while_running(model, *passage_readouts(queries, sinks)) as readings,
    ):
        model(ids[None], **last)
    return share_out(readings.of_kind().layers, passages, queries, sinks=sinks)


def passage_readouts(
    rows: Span, sinks: Sequence[int] | None = None
) -> tuple[Readout[Any, Any], ...]:
    """Return the readouts for `share_out`: of the answer's rows, and of all rows to find sinks."""
    own = Received(queries=slice(*rows))
    return (own, *READOUTS) if sinks is None else (own,)


def share_out(
    layers: Sequence[LayerReadings],
    passages: Sequence[Passage],
    queries: Span,
    *,
    heads: Sequence[Sequence[int]] | None = None,
    sinks: Sequence[int] | None = None,
) -> SpanWeights:
    """Sum what keys received over passages.

    Args:
        layers: the results of `passage_readouts`, of a recording or of `read_while_running`.
        passages: checked passages that do not overlap.
        queries: start and stop of the queries that predict the answer.
        heads: positions of the selected heads in each layer; None is all.
        sinks: as for `passage_weights`.
    """
    places = [range(len(layer.heads)) for layer in layers] if heads is None else heads
    looks = []
    for layer, own in zip(layers, places, strict=True):
        received = layer.results[0].flatten(0, -2)[list(own)].double().cpu()
        looks.append(received / (queries[1] - queries[0]))
    if sinks is None:
        end = max(passage.tokens[1] for passage in passages)
        sinks = [k for k in sinks_of_readings(layers, 1, heads=places).keys if k < end]
    own_heads = [[layer.heads[at] for at in own] for layer, own in zip(layers, places, strict=True)]
    every = tuple(sorted({head for numbers in own_heads for head in numbers}))
    size = len(passages) + 2, len(looks), len(every)
    table = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
    owners = _owners(passages, sinks, looks[0].shape[-1])
    for row, (received, numbers) in enumerate(zip(looks, own_heads, strict=True)):
        shares = received.new_zeros(len(numbers), len(table)).index_add_(1, owners, received)
        shares[:, -2] += (1 - shares.sum(dim=-1)).clamp_min(0)  # the weight of a sink logit
        table[:, row, [every.index(head) for head in numbers]] = shares.T
    kinds = (*map(str, passages), SINKS, ELSEWHERE)
    values = SpanValues(table, kinds, (0,) * len(kinds))
    none = values.of_same_spans(torch.full_like(table, torch.nan))
    tokens = [(passage.tokens,) for passage in passages]
    return SpanWeights(
        spans=values,
        decoys=none,
        controls=none,
        keys=(*tokens, tuple((key, key + 1) for key in sinks), ()),
        layers=tuple(layer.index for layer in layers),
        heads=every,
    )


def _owners(passages: Sequence[Passage], sinks: Sequence[int], keys: int) -> Int[Tensor, " S"]:
    """Return the index of each key's passage, then of sinks and other tokens."""
    owners = torch.full((keys,), len(passages) + 1, device="cpu")
    for number, passage in enumerate(passages):
        owners[slice(*passage.tokens)] = number
    owners[list(sinks)] = len(passages)
    return owners


def select(
    heads: Sequence[int], only: tuple[Indices | None, Indices | None]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the positions of the selected layers, in order, and of the heads in each.

    Args:
        heads: the number of heads of each layer.
        only: the layers and the heads to select; None is all.

    Raises:
        IndexError: for layers or heads that do not exist.
        ValueError: if none is selected.
    """
    some, own = check_indices("layers", only[0]), check_indices("heads", only[1])
    places = sorted({*chosen(some, len(heads), "layers")})
    table = [(place, tuple(sorted({*chosen(own, heads[place], "heads")}))) for place in places]
    if not any(numbers for _, numbers in table):
        raise ValueError(f"layers={only[0]!r} and heads={only[1]!r} name no head")
    return table
