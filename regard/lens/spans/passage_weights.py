"""The weight that the queries which predict an answer give to the passages of a text.

Axes: B batch, P passages, N layers, H heads, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._arguments import Indices, check_indices, chosen
from regard._display import show
from regard._shapes import Float, Int
from regard.errors import RecordError
from regard.lens.spans.links import Span
from regard.lens.spans.passages import Passage, check_passages
from regard.pattern.readouts import Received
from regard.record import Recording
from regard.record.layer import Layer, require_one_run
from regard.record.readings import LayerReadings, read_layer

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PassageWeights",
    "answer_span",
    "readouts_of",
    "select",
    "weigh_passages",
    "weights_of",
]

_SINK = 0.3  # mean weight above which a key is a sink: Gu et al. 2024, arXiv:2410.10781, section 3


@dataclass(frozen=True, eq=False, kw_only=True)
class PassageWeights:
    """How much the queries that predict an answer look at each passage; `Recording.passages`.

    A query's weights are shared out among the passages, the text's first token, the sinks and
    everything else, and the shares add up to 1. All are means over the queries that predict the
    answer's tokens: that of each token is the one before it.

    Attributes:
        passages: the P passages, in the order in which they were given.
        answer: the answer's first token, and one past its last.
        shares: on each passage without the first token and the sinks, ``(P, N, H)``.
        first: on the text's first token, where heads rest that have nothing to look at, ``(N, H)``.
        sinks: on the keys of `sink_keys`, and of a model with sink logits on those, ``(N, H)``.
        elsewhere: on all other tokens, such as a question, ``(N, H)``.
        sink_keys: keys other than the first token that every query rests on: see
            `Recording.passages`.
        layers: numbers of the layers.
        heads: numbers of the heads. What a layer does not have is NaN.

    Example:
        >>> import regard, torch
        >>> from regard.gpt import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocab_size=11, context=9, layers=1, heads=2, dim=4)).eval()
        >>> ids = torch.tensor([5, 1, 7, 3, 2, 6, 7])
        >>> effects = regard.lens.passage_effects(model, ids, [(1, 3), (3, 5)], slice(6, 7))
        >>> weights = effects.weights
        >>> weights.shares.shape, [str(passage) for passage in weights.passages]
        (torch.Size([2, 1, 2]), ['tokens 1–2', 'tokens 3–4'])
    """

    passages: tuple[Passage, ...]
    answer: Span
    shares: Float[Tensor, "P N H"]
    first: Float[Tensor, "N H"]
    sinks: Float[Tensor, "N H"]
    elsewhere: Float[Tensor, "N H"]
    sink_keys: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def mean(self) -> Float[Tensor, " P"]:
        """On each passage, the mean over the heads of all layers."""
        return self.shares.flatten(1).nanmean(dim=-1)

    def order(self) -> list[int]:
        """The numbers of the passages, that with most weight first."""
        return self.mean.argsort(descending=True, stable=True).tolist()

    def frame(self) -> pd.DataFrame:
        """Lay the means over all heads out as a pandas data frame, a row a passage."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """What there is of each passage, by name, in numbers and text that JSON can hold."""
        weights = self.mean.tolist()
        rows = []
        for passage, weight in zip(self.passages, weights, strict=True):
            first, stop = passage.tokens
            start_character, stop_character = passage.characters or (None, None)
            rows.append(
                {
                    "first": first,
                    "stop": stop,
                    "start_character": start_character,
                    "stop_character": stop_character,
                    "weight": weight,
                    "text": passage.text,
                }
            )
        return rows

    def _repr_html_(self) -> str:
        html: str = show("passage_weights_html", self)
        return html

    def __repr__(self) -> str:
        text: str = show("passage_weights_text", self)
        return text


def weigh_passages(
    layers: Sequence[Layer],
    spans: Sequence[Span | Passage],
    answer: slice,
    *,
    only: tuple[Indices | None, Indices | None],
    sinks: Sequence[int] | None,
) -> PassageWeights:
    """Read the weights on passages; `Recording.passages` documents it."""
    for layer in layers:
        batch = 1 if layer.pattern.ndim == 3 else len(layer.pattern)
        if batch != 1 or layer.kind != "self":
            raise RecordError(
                "passages are those of one text that attends to itself, but "
                f"{layer.name or 'a layer'} was recorded as {layer.pattern!r}, kind "
                f"{layer.kind!r}; record one text at a time"
            )
        if sinks is None and len(layer.rows) < layer.pattern.shape[-1]:
            raise RecordError(
                "sinks are found by the weights of all queries, but only some were recorded; "
                "record all rows, or name the sinks, such as sinks=()"
            )
    span = answer_span(answer, min((layer.pattern.shape[-1] for layer in layers), default=0))
    passages = check_passages(spans, span[0])
    table = select([len(layer.heads) for layer in layers], only)
    readings = [
        read_layer(layers[place], readouts_of(span, layers[place].rows, sinks))
        for place, _ in table
    ]
    return weights_of(readings, [heads for _, heads in table], passages, span, sinks)


def answer_span(answer: slice, length: int) -> Span:
    """The answer's first token and one past its last, of a text of so many tokens.

    Raises:
        TypeError: for anything but a slice.
        ValueError: for one that holds no token after the first.
    """
    if not isinstance(answer, slice):
        raise TypeError(
            f"answer must be a slice of tokens, such as slice(40, 44), but is {answer!r}"
        )
    numbers = chosen(check_indices("answer", answer), length, "answer")
    if not numbers or numbers[0] < 1 or numbers != tuple(range(numbers[0], numbers[-1] + 1)):
        raise ValueError(
            f"answer={answer!r} must hold adjacent tokens of the text's {length}, none of them the "
            "first, which no query predicts"
        )
    return numbers[0], numbers[-1] + 1


def readouts_of(
    answer: Span, rows: Sequence[int], sinks: Sequence[int] | None
) -> tuple[Received, ...]:
    """What is read of a layer: what keys receive of the answer's queries, and, for sinks, of all.

    Args:
        answer: the answer's tokens.
        rows: the numbers of the queries that there are.
        sinks: the sinks, if they are known.

    Raises:
        RecordError: for queries that there are not.
    """
    try:
        first, last = rows.index(answer[0] - 1), rows.index(answer[1] - 2)
    except ValueError:
        raise RecordError(
            f"the queries {answer[0] - 1} to {answer[1] - 2}, which predict the answer, were not "
            "all recorded; record all rows"
        ) from None
    looks = Received(queries=slice(first, last + 1))
    return (looks,) if sinks is not None else (looks, Received())


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


def weights_of(
    readings: Sequence[LayerReadings],
    places: Sequence[tuple[int, ...]],
    passages: tuple[Passage, ...],
    answer: Span,
    sinks: Sequence[int] | None,
) -> PassageWeights:
    """Share out what the answer's queries give.

    Args:
        readings: of each layer, the results of `readouts_of`.
        places: of each layer, the places of the heads that are meant.
        passages: the passages.
        answer: the answer's tokens.
        sinks: the sinks; None finds them.
    """
    looks = [_of_heads(layer.results[0], own) for layer, own in zip(readings, places, strict=True)]
    end = max(passage.tokens[1] for passage in passages)
    if sinks is None:
        given = torch.cat(
            [_of_heads(layer.results[1], own) for layer, own in zip(readings, places, strict=True)]
        )
        # Of each key, how many queries there are from its own on.
        following = torch.arange(given.shape[-1], 0, -1, device=given.device)
        resting = (given.mean(dim=0) / following)[:end]
        sinks = [key for key in (resting > _SINK).nonzero().flatten().tolist() if key > 0]
    owners = _owners(passages, sinks, looks[0].shape[-1])
    heads = tuple(
        sorted({layer.heads[at] for layer, own in zip(readings, places, strict=True) for at in own})
    )
    size = len(passages) + 3, len(readings), len(heads)
    table = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
    for row, (layer, own, received) in enumerate(zip(readings, places, looks, strict=True)):
        columns = [heads.index(layer.heads[at]) for at in own]
        sums = received.new_zeros(len(own), len(table)).index_add_(1, owners, received)
        shares = sums / (answer[1] - answer[0])
        shares[:, -2] += (1 - shares.sum(dim=-1)).clamp_min(0)  # of a sink that is not a key
        table[:, row, columns] = shares.T
    return PassageWeights(
        passages=passages,
        answer=answer,
        shares=table[:-3],
        first=table[-3],
        sinks=table[-2],
        elsewhere=table[-1],
        sink_keys=tuple(sinks),
        layers=tuple(layer.index for layer in readings),
        heads=heads,
    )


def _of_heads(received: Tensor, places: Sequence[int]) -> Float[Tensor, "H S"]:
    """What the keys receive in some heads, of the one text of a batch."""
    return received.reshape(-1, received.shape[-1])[list(places)].double().cpu()


def _owners(passages: Sequence[Passage], sinks: Sequence[int], keys: int) -> Int[Tensor, " S"]:
    """The passage that each key belongs to; after them the first token, sinks, and the rest."""
    owners = torch.full((keys,), len(passages) + 2, device="cpu")
    for number, passage in enumerate(passages):
        owners[slice(*passage.tokens)] = number
    owners[list(sinks)] = len(passages) + 1
    owners[0] = len(passages)
    return owners


def passages(
    recording: Recording,
    spans: Sequence[Span | Passage],
    answer: slice,
    *,
    layers: Indices | None = None,
    heads: Indices | None = None,
    sinks: Sequence[int] | None = None,
) -> PassageWeights:
    """Share out the weights of an answer's queries among the passages of its context.

    Each token of the answer is predicted by the query before it, and those queries are read:
    what each key receives of them, in memory O(S). What a model looked at need not be what it
    needed: `regard.lens.passage_effects` measures both.

    Args:
        spans: the passages, ``(first, stop)`` in tokens, or those of `regard.lens.split_passages`.
        answer: the answer's tokens, such as ``slice(-4, None)``.
        layers: the layers of self-attention to read; all by default.
        heads: the heads of each; likewise.
        sinks: keys that are shown apart, as is the first token. By default they are found:
            keys up to the last passage's end whose mean weight, over all queries from them on
            and over all these heads, is above 0.3 (the threshold of a head's sink in Gu et
            al. 2024, arXiv:2410.10781, section 3).

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
        >>> weights = regard.lens.passages(recording, [(1, 3), (3, 6)], answer=slice(7, 9))
        >>> weights.shares.shape  # passages, layers, heads
        torch.Size([2, 1, 2])
        >>> rows = recording[0][0, :, 6:8, 1:3].double()  # each predicts the token after it
        >>> torch.allclose(weights.shares[0, 0], rows.sum(-1).mean(-1))
        True
    """
    recorded = require_one_run(recording.of_kind().layers, "passages")
    return weigh_passages(recorded, spans, answer, only=(layers, heads), sinks=sinks)
