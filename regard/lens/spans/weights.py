"""Weights on spans of a text, head by head: deciding words beside control words, and passages.

Axes: M spans, K kinds, N layers, H heads, R rows, S keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._arguments import Indices, check_indices, chosen
from regard._display import show
from regard._shapes import Float, Int
from regard.errors import RecordError
from regard.lens.spans.links import Link, Span, TokenLink, place_links
from regard.lens.spans.passages import Passage, check_spans, require_apart
from regard.lens.targets import Answer, Logit, LogProbability
from regard.pattern.readouts import Received
from regard.record import Recording
from regard.record.layer import Layer, Tokens, require_one_run
from regard.record.readings import LayerReadings, read_layer

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ENOUGH",
    "FIRST_TOKEN",
    "SINKS",
    "SpanValues",
    "SpanWeights",
    "link_weights",
    "passage_readouts",
    "passage_weights",
    "select",
    "share_out",
    "weigh_passages",
]

ENOUGH = 8
"""Fewest spans of a kind of which tables say which head looks most."""
FIRST_TOKEN, SINKS, ELSEWHERE = "first token", "sinks", "elsewhere"
"""The kinds of what does not lie on a passage."""

_NUMBERS = 2**22  # weights that are read at a time
_DEVIATIONS = 1.96  # standard errors that hold a normal mean in 95 of 100 cases
_SINK = 0.3  # mean weight above which a key is a sink: Gu et al. 2024, arXiv:2410.10781, section 3


@dataclass(frozen=True, eq=False)
class SpanValues:
    """A number for each span, or an array of them: ``(M, ...)``; NaN where a span has none.

    Attributes:
        values: the numbers, in float64 on the CPU.
        kinds: the kind of each span; a passage is a kind of its own.
        texts: the number of each span's text.

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
        """How many spans each kind has; the kinds in the order of their first spans."""
        return dict(Counter(self.kinds))

    @cached_property
    def mean(self) -> Float[Tensor, "K *rest"]:
        """The mean over the spans of each kind, ``(K, ...)``; NaN where no span has a number."""
        return self._of_kinds(lambda values, _: values.nanmean(dim=0))

    @cached_property
    def interval(self) -> Float[Tensor, "K *rest"]:
        """Half of the 95 % interval of the mean, ``(K, ...)``: 1.96 standard errors.

        Spans of one text are not independent, so texts are what varies: the variance is that of
        clusters (Liang and Zeger 1986, Biometrika 73, equation 4, for a mean). Of a single text its
        spans are taken for independent. NaN where fewer than two are left.
        """
        return self._of_kinds(_interval)

    def of_same_spans(self, values: Float[Tensor, "M *others"]) -> SpanValues:
        """Other numbers of the same spans."""
        return SpanValues(values, self.kinds, self.texts)

    @classmethod
    def merge(cls, parts: Sequence[SpanValues]) -> SpanValues:
        """Join the spans of several parts, whose texts are different texts."""
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
    """How much each head looks at spans of a text; `link_weights` and `passage_weights` make it.

    Of links the spans are the deciding words, beside decoys and control words. Of passages they are
    the passages, each of a kind of its own, and after them three more: the text's first token, the
    sinks, and everything else, so that the weights of each head add up to 1.

    Attributes:
        spans: weight on a span: ``(M, N, H)`` by span, its mean ``(K, N, H)`` by kind.
        decoys: on a decoy; NaN for spans without one.
        controls: on a control word: one that neither decides nor is a decoy nor reads like one of
            them, at half to twice the distance of a deciding word; a word for a word and a mark for
            a mark, and never the text's first token. NaN for spans without one.
        keys: the tokens of each span, ``(first, stop)`` a word; none of what lies elsewhere.
        layers: numbers of the layers.
        heads: numbers of the heads; NaN where a layer does not have one.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 9, 6))
        >>> answer = regard.lens.Answer(slice(7, 9))
        >>> weights = regard.lens.passage_weights(recording, [(1, 3), (3, 6)], answer, sinks=())
        >>> weights.spans.kinds, weights.keys[-2:]
        (('1–2', '3–5', 'first token', 'sinks', 'elsewhere'), ((), ()))
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
        """How many spans there are of each of the K kinds, in their order."""
        return self.spans.counts

    @property
    def mean(self) -> Float[Tensor, " K"]:
        """On a span of each kind, the mean over the heads of all layers."""
        return self.spans.mean.flatten(1).nanmean(dim=-1)

    @classmethod
    def merge(cls, parts: Iterable[SpanWeights]) -> SpanWeights:
        """Join the spans of several texts, which a model with the same heads has read.

        Raises:
            ValueError: for none, and for other layers or heads.

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

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a kind and head."""
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
    """Compare where heads look with what is known of a text: which words decide which.

    Of each link one row is read: of the query that predicts the decided word's first token. The
    weight of a word is the sum over its tokens; where several words decide a link, or are its
    decoys, or its control words, it is the mean over them.

    Args:
        recording: of one text, with its tokens.
        links: such as those of a `regard.gpt.stories.Story`: anything with a ``kind``, the
            character spans of the ``decided`` word, the ``deciding`` words and ``decoys``.
        text: the text that the spans are of, if the tokens spell more; or to check them.

    Returns:
        The weight on deciding words, on decoys and on control words, for each kind of link and
        each head of self-attention.

    Raises:
        RecordError: if the tokens are not known, or for several texts or runs, other kinds of
            attention or rows that were not recorded.
        TypeError: for an object that is not a link.
        ValueError: for spans that the tokens do not reach, or a text that they do not spell.

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
    """The mean weight on a deciding word, a decoy and a control word of each link."""
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
    target: Answer | LogProbability | Logit,
    *,
    layers: Indices | None = None,
    heads: Indices | None = None,
    sinks: Sequence[int] | None = None,
) -> SpanWeights:
    """Share out the weights of the queries that predict an answer among the passages of a text.

    What each key receives of those queries is read, in memory O(S). What a model looked at need not
    be what it needed: `regard.lens.effects` measures that, over the same passages.

    Args:
        recording: of one text.
        spans: the passages, ``(first, stop)`` in tokens, or those of `regard.lens.split_passages`.
        target: the answer; the queries that predict it are read, and means are over them.
        layers: the layers of self-attention to read; all by default.
        heads: the heads of each; likewise.
        sinks: keys that are shown apart, as is the first token. By default they are found:
            keys up to the last passage's end whose mean weight, over all queries from them on
            and over all these heads, is above 0.3 (the threshold of a head's sink in Gu et
            al. 2024, arXiv:2410.10781, section 3).

    Returns:
        The weight on each passage without the first token and the sinks; then on the first token,
        where heads rest that have nothing to look at; on the sinks, a sink logit among them; and on
        all other tokens, such as a question.

    Raises:
        RecordError: for several texts or runs, other kinds of attention, or rows that were
            not recorded.
        TypeError: for arguments of another kind.
        ValueError: for spans that overlap or hold no token before the answer.
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
    recorded = require_one_run(recording.of_kind().layers, "passage_weights")
    return weigh_passages(recorded, spans, target, only=(layers, heads), sinks=sinks)


def weigh_passages(
    layers: Sequence[Layer],
    spans: Sequence[Span | Passage],
    target: Answer | LogProbability | Logit,
    *,
    only: tuple[Indices | None, Indices | None] = (None, None),
    sinks: Sequence[int] | None = None,
) -> SpanWeights:
    """Read the weights on passages of recorded layers; `passage_weights` documents it."""
    for layer in layers:
        _require_one_text(layer, "passages")
        if sinks is None and len(layer.rows) < layer.pattern.shape[-1]:
            raise RecordError(
                "sinks are found by the weights of all queries, but only some were recorded; "
                "record all rows, or name the sinks, such as sinks=()"
            )
    queries = target.queries(min((layer.pattern.shape[-1] for layer in layers), default=0))
    passages = check_spans(spans, queries[0] + 1, "spans")
    require_apart(passages, "spans")
    table = select([len(layer.heads) for layer in layers], only)
    readings = []
    for place, _ in table:
        rows = _row_of(layers[place], queries[0]), _row_of(layers[place], queries[1] - 1) + 1
        readings.append(read_layer(layers[place], passage_readouts(rows, sinks)))
    return share_out(readings, passages, queries, heads=[own for _, own in table], sinks=sinks)


def passage_readouts(rows: Span, sinks: Sequence[int] | None = None) -> tuple[Received, ...]:
    """The readouts that `share_out` needs: of some rows, and of all where sinks are to be found."""
    own = Received(queries=slice(*rows))
    return (own, Received()) if sinks is None else (own,)


def share_out(
    layers: Sequence[LayerReadings],
    passages: Sequence[Passage],
    queries: Span,
    *,
    heads: Sequence[Sequence[int]] | None = None,
    sinks: Sequence[int] | None = None,
) -> SpanWeights:
    """Share out what keys received among passages.

    Args:
        layers: the results of `passage_readouts`, of a recording or while a model ran.
        passages: checked, and apart from each other.
        queries: the first query that predicts the answer, and one past the last.
        heads: the places of the heads that are meant in each layer; None is all.
        sinks: as for `passage_weights`.
    """
    places = [range(len(layer.heads)) for layer in layers] if heads is None else heads
    looks, given = [], []
    for layer, own in zip(layers, places, strict=True):
        results = [
            result.reshape(-1, result.shape[-1])[list(own)].double().cpu()
            for result in layer.results
        ]
        looks.append(results[0] / (queries[1] - queries[0]))
        given += results[1:]
    if sinks is None:
        sinks = _find_sinks(torch.cat(given), max(passage.tokens[1] for passage in passages))
    own_heads = [[layer.heads[at] for at in own] for layer, own in zip(layers, places, strict=True)]
    every = tuple(sorted({head for numbers in own_heads for head in numbers}))
    size = len(passages) + 3, len(looks), len(every)
    table = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
    owners = _owners(passages, sinks, looks[0].shape[-1])
    for row, (received, numbers) in enumerate(zip(looks, own_heads, strict=True)):
        shares = received.new_zeros(len(numbers), len(table)).index_add_(1, owners, received)
        shares[:, -2] += (1 - shares.sum(dim=-1)).clamp_min(0)  # of a sink that is not a key
        table[:, row, [every.index(head) for head in numbers]] = shares.T
    kinds = (*map(str, passages), FIRST_TOKEN, SINKS, ELSEWHERE)
    values = SpanValues(table, kinds, (0,) * len(kinds))
    none = values.of_same_spans(torch.full_like(table, torch.nan))
    tokens = [(passage.tokens,) for passage in passages]
    return SpanWeights(
        spans=values,
        decoys=none,
        controls=none,
        keys=(*tokens, ((0, 1),), tuple((key, key + 1) for key in sinks), ()),
        layers=tuple(layer.index for layer in layers),
        heads=every,
    )


def _find_sinks(given: Float[Tensor, "H S"], end: int) -> list[int]:
    """The keys before an end, but the first, that all queries from them on rest on."""
    following = torch.arange(given.shape[-1], 0, -1, device=given.device)
    resting = (given.mean(dim=0) / following)[:end]
    return [key for key in (resting > _SINK).nonzero().flatten().tolist() if key > 0]


def _owners(passages: Sequence[Passage], sinks: Sequence[int], keys: int) -> Int[Tensor, " S"]:
    """The passage that each key belongs to; after them the first token, sinks, and the rest."""
    owners = torch.full((keys,), len(passages) + 2, device="cpu")
    for number, passage in enumerate(passages):
        owners[slice(*passage.tokens)] = number
    owners[list(sinks)] = len(passages) + 1
    owners[0] = len(passages)
    return owners


def select(
    heads: Sequence[int], only: tuple[Indices | None, Indices | None]
) -> list[tuple[int, tuple[int, ...]]]:
    """The places of the layers that are meant, in order, and of the heads in each.

    Args:
        heads: how many each layer has.
        only: the layers and the heads that are meant; None is all.

    Raises:
        IndexError: for layers or heads that there are not.
        ValueError: if none is meant.
    """
    some, own = check_indices("layers", only[0]), check_indices("heads", only[1])
    places = sorted({*chosen(some, len(heads), "layers")})
    table = [(place, tuple(sorted({*chosen(own, heads[place], "heads")}))) for place in places]
    if not any(numbers for _, numbers in table):
        raise ValueError(f"layers={only[0]!r} and heads={only[1]!r} name no head")
    return table
