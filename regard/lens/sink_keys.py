"""Sink keys: the keys that a head rests on, whatever the query asks for.

Axes: N layers, H heads, S keys, which are the text's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.lens.texts import extent, part_of, texts_of
from regard.pattern import Pattern
from regard.pattern.readouts import Lag, Received
from regard.record import Recording
from regard.record.layer import Layer, require_one_run
from regard.record.readings import LayerReadings

__all__ = [
    "FEW_HEADS",
    "OTHERS",
    "READOUTS",
    "RESTING",
    "Sinks",
    "mean_of_others",
    "mean_weights",
    "mean_weights_of",
    "resting",
    "sinks",
    "sinks_of_layers",
    "sinks_of_readings",
]

RESTING = 0.3
"""A head rests on a key whose mean weight from other queries is above this: ε of Gu et al. 2024."""

OTHERS = 6
"""Fewest other queries of a sink. From so many, a head that spreads evenly gives key 0 a mean of
0.27, and one that looks a fixed distance back gives any key 0.17: less than `RESTING`."""

PART = 0.2
"""Fewest other queries of a sink, as a part of those of the key that most queries see."""

FEW_HEADS = 0.03
"""A key on which at least this part of a model's heads rests is a sink of the model."""

READOUTS = (Received(), Received("mean"), Lag(0))
"""What `sinks_of_readings` needs of each layer, and `mean_weights` of each text."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Sinks:
    """The sink keys of one text, of each head and of the model; made by `sinks`.

    Attributes:
        weights: mean weight that each key gets from the other queries that see it, ``(N, H, S)``;
            NaN where they are fewer than six or than a fifth of those of another key, where none
            gives it any, and for heads that a layer lacks.
        layers: indices of the layers.
        heads: indices of the heads.
        number_of_heads: how many heads of all layers were read.
        tokens: the text's tokens; None if not known.

    Example:
        >>> import regard, torch
        >>> query = torch.ones(2, 9, 1)
        >>> key = torch.zeros(2, 9, 1)
        >>> key[0, 0] = key[1, 2] = 9.0  # one head rests on key 0, the other on key 2
        >>> with regard.record() as recording:
        ...     _ = regard.attention(query, key, key, mask=regard.causal())
        >>> (sinks,) = regard.lens.sinks(recording)
        >>> sinks.of(0, 0), sinks.of(0, 1), sinks.keys
        ((0,), (2,), (0, 2))
    """

    weights: Float[Tensor, "N H S"]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    number_of_heads: int
    tokens: tuple[str, ...] | None = None

    @cached_property
    def resting(self) -> Bool[Tensor, "N H S"]:
        """Return True where a head rests on a key."""
        return self.weights > RESTING

    @cached_property
    def counts(self) -> Int[Tensor, " S"]:
        """Return the number of heads that rest on each key."""
        return self.resting.sum((0, 1))

    @property
    def keys(self) -> tuple[int, ...]:
        """Return the sinks of the model, in order: keys on which 3 % of its heads or more rest."""
        fewest = max(1, math.ceil(FEW_HEADS * self.number_of_heads))
        return tuple((self.counts >= fewest).nonzero().flatten().tolist())

    def of(self, layer: int, head: int) -> tuple[int, ...]:
        """Return the keys on which one head rests, in order.

        Raises:
            IndexError: for a head that was not read.
        """
        if layer not in self.layers or head not in self.heads:
            raise IndexError(
                f"layer {layer} has no head {head} among those read: layers {self.layers}, heads "
                f"{self.heads}"
            )
        row = self.resting[self.layers.index(layer), self.heads.index(head)]
        return tuple(row.nonzero().flatten().tolist())

    def __repr__(self) -> str:
        counts = self.counts.tolist()
        every = [
            f"{key}{'' if self.tokens is None else f' {self.tokens[key]!r}'}: {counts[key]}"
            for key in self.keys
        ]
        return f"Sinks({', '.join(every) or 'none'} of {self.number_of_heads} heads)"


def sinks(recording: Recording) -> tuple[Sinks, ...]:
    """Find the keys on which heads rest: those that get much weight whatever the query is.

    A head rests on a key if the mean weight that the key gets from the other queries that see it is
    above 0.3. This is the importance score of a token and its threshold in Gu et al. 2024
    (arXiv:2410.10781, section 3.2), who observe that such keys have small values; they were found
    by Xiao et al. 2023 (arXiv:2309.17453, section 3.1) at the start of a text. Two things are added
    here, so that the rule holds for any key of any text: the key's own query is left out, since a
    first token sees only itself, and a key is no sink if fewer than six other queries see it, or
    than a fifth of those that see some other key, since so few may all look at it for a reason.

    A key is a **sink of the model** if at least 3 % of the heads rest on it. The share is our own:
    Gu et al. report it without a limit. A mean over all heads would miss keys on which some heads
    alone rest.

    Exact, in memory O(S). The weights of keys are read, not their values: to ask for a norm below
    half of the head's median as well would drop 8 of 1,062 pairs of head and key in six texts of
    SmolLM2-135M, six of them on the first token, and no sink of the model.

    Args:
        recording: a recording of one run of a model, of all rows.

    Returns:
        The sinks of each text of the batch. Padding counts nowhere.

    Raises:
        RecordError: for cross-attention, rows that were not recorded, or several runs.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(1, 9, 1)  # uniform weights: nobody rests
        >>> with regard.record() as recording:
        ...     _ = regard.attention(x, x, x, mask=regard.causal())
        >>> regard.lens.sinks(recording)
        (Sinks(none of 1 heads),)
    """
    layers = require_one_run(recording.of_kind().layers, "sinks")
    of_layers = [mean_weights_of(layer) for layer in layers]
    indices, heads = [layer.index for layer in layers], [layer.heads for layer in layers]
    tokens = recording.tokens or (None,)
    return tuple(
        _joined(of_text, indices, heads, tokens[min(number, len(tokens) - 1)])
        for number, of_text in enumerate(zip(*of_layers, strict=True))
    )


def resting(text: Pattern) -> Bool[Tensor, "*h S"]:
    """Return True where a head of a text, or the heads of a layer, rest on a key; see `sinks`."""
    return _of_text(text) > RESTING


def mean_weights_of(layer: Layer) -> list[Float[Tensor, "H S"]]:
    """Return the mean weight that each key of each text gets from the other queries; see `sinks`.

    Raises:
        RecordError: for a layer of which not all rows are there.
    """
    return [_of_text(text) for text in texts_of(layer, "sinks are found")]


def sinks_of_layers(found: Sequence[tuple[Layer, list[Float[Tensor, "H S"]]]]) -> Sinks:
    """Find the sinks of one text, of layers that `read_layers` read with `mean_weights_of`."""
    layers = [layer for layer, _ in found]
    means = [of_texts[0] for _, of_texts in found]
    return _joined(means, [one.index for one in layers], [one.heads for one in layers])


def sinks_of_readings(
    layers: Sequence[LayerReadings], at: int = 0, *, heads: Sequence[Sequence[int]] | None = None
) -> Sinks:
    """Find the sinks of one text, of layers that were read with `READOUTS`.

    Args:
        layers: the results of a recording or of `read_while_running`.
        at: place of the three among the readouts.
        heads: positions of the selected heads in each layer; None is all.
    """
    places = [range(len(layer.heads)) for layer in layers] if heads is None else heads
    means = []
    for layer, own in zip(layers, places, strict=True):
        received, mean, lag = layer.results[at : at + len(READOUTS)]
        read = (part.flatten(0, -2)[list(own)] for part in (received, mean, lag.weights))
        means.append(mean_weights(*read))
    return _joined(
        means,
        [layer.index for layer in layers],
        [[layer.heads[at] for at in own] for layer, own in zip(layers, places, strict=True)],
    )


def _of_text(text: Pattern) -> Float[Tensor, "H S"]:
    start, stop = extent(text)
    received, mean, lag = part_of(text, start, stop).read(*READOUTS)
    means = mean_weights(received, mean, lag.weights)
    return torch.nn.functional.pad(means, (start, text.shape[-1] - stop), value=torch.nan)


def mean_weights(
    received: Float[Tensor, "H S"], mean: Float[Tensor, "H S"], itself: Float[Tensor, "H S"]
) -> Float[Tensor, "H S"]:
    """Return the mean weight of each key from other queries; NaN where they are few.

    A head rests on a key where it is above `RESTING`. The arguments are the results of `READOUTS`,
    of the last the weights.
    """
    dtype = torch.promote_types(received.dtype, torch.float32)  # float64 is not on every device
    received, mean, itself = (part.to(dtype) for part in (received, mean, itself))
    # How many queries see a key follows from the sum and the mean of what they give it.
    others = torch.where(mean > 0, received / mean, 0).round() - 1
    return mean_of_others(received, itself, others)


def mean_of_others(
    received: Float[Tensor, "H S"], itself: Float[Tensor, "H S"], others: Tensor
) -> Float[Tensor, "H S"]:
    """Return the same, given how many other queries see each key, ``(H, S)``."""
    means = (received - itself).clamp_min(0) / others.clamp_min(1)
    fewest = (PART * others.amax(-1, keepdim=True)).clamp_min(OTHERS)
    return torch.where(others >= fewest, means, torch.nan)


def _joined(
    layers: Sequence[Float[Tensor, "H S"]],
    indices: Sequence[int],
    heads: Sequence[Sequence[int]],
    tokens: tuple[str, ...] | None = None,
) -> Sinks:
    every = tuple(sorted({head for own in heads for head in own}))
    size = len(layers), len(every), max((own.shape[-1] for own in layers), default=0)
    weights = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
    for row, (means, own) in enumerate(zip(layers, heads, strict=True)):
        weights[row, [every.index(head) for head in own], : means.shape[-1]] = means.double().cpu()
    return Sinks(
        weights=weights,
        layers=tuple(indices),
        heads=every,
        number_of_heads=sum(map(len, heads)),
        tokens=tokens,
    )
