"""The weight that heads give to the words that decide, beside decoys and control words.

Axes: B batch, M links, K kinds, N layers, H heads, R rows, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._display import show
from regard._shapes import Float
from regard.errors import RecordError
from regard.lens.spans.link_values import LinkGroups, LinkValues
from regard.lens.spans.links import Link, Span, TokenLink, place_links
from regard.record import Recording
from regard.record.layer import Layer, Tokens, require_one_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ENOUGH", "LinkWeights", "weigh_links"]

ENOUGH = 8
"""Fewest links of a kind of which tables say which head looks most."""

_NUMBERS = 2**22  # weights that are read at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkWeights:
    """How much each head looks at the words that decide; `Recording.against` makes it.

    The weights are those of the query that predicts the decided word's first token. The weight of a
    word is the sum over its tokens; where several words decide a link, or are its decoys, or its
    control words, it is the mean over them.

    Attributes:
        deciding: weight on a deciding word: ``(M, N, H)`` by link, its mean ``(K, N, H)`` by kind.
        decoys: on a decoy; NaN for links without one.
        controls: on a control word: one that neither decides nor is a decoy nor reads like one of
            them, at half to twice the distance of a deciding word; a word for a word and a mark for
            a mark, and never the text's first token. NaN for links without one.
        layers: numbers of the layers.
        heads: numbers of the heads; NaN where a layer does not have one.
    """

    deciding: LinkValues
    decoys: LinkValues
    controls: LinkValues
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many links there are of each of the K kinds, in their order."""
        return self.deciding.groups.counts

    @classmethod
    def merge(cls, parts: Iterable[LinkWeights]) -> LinkWeights:
        """Join the links of several texts, which a model with the same heads has read.

        Raises:
            ValueError: for none, and for other layers or heads.

        Example:
            >>> import regard
            >>> regard.lens.LinkWeights.merge([])
            Traceback (most recent call last):
            ValueError: parts is empty; give at least one LinkWeights
        """
        every = list(parts)
        if not every:
            raise ValueError("parts is empty; give at least one LinkWeights")
        first, *others = every
        for other in others:
            if (other.layers, other.heads) != (first.layers, first.heads):
                raise ValueError(
                    f"parts have layers {first.layers} of heads {first.heads} and layers "
                    f"{other.layers} of heads {other.heads}; merge those of the same heads"
                )
        groups = first.deciding.groups.join([other.deciding.groups for other in others])

        def join(name: str) -> LinkValues:
            values = [getattr(part, name).values for part in every]
            return LinkValues(torch.cat(values), groups)

        return cls(
            deciding=join("deciding"),
            decoys=join("decoys"),
            controls=join("controls"),
            layers=first.layers,
            heads=first.heads,
        )

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a kind and head."""
        import pandas as pd

        counts = self.counts
        index = pd.MultiIndex.from_product(
            [list(counts), self.layers, self.heads], names=["kind", "layer", "head"]
        )
        columns = {
            "deciding": self.deciding.mean,
            "deciding_interval": self.deciding.interval,
            "decoys": self.decoys.mean,
            "controls": self.controls.mean,
        }
        numbers = {name: values.flatten().numpy() for name, values in columns.items()}
        frame = pd.DataFrame(numbers, index=index).reset_index()
        frame.insert(1, "links", frame["kind"].map(counts))
        return frame

    def _repr_html_(self) -> str:
        html: str = show("link_weights_html", self)
        return html

    def __repr__(self) -> str:
        text: str = show("link_weights_text", self)
        return text


def weigh_links(
    layers: Sequence[Layer], tokens: Tokens | None, links: Iterable[Link], text: str | None
) -> LinkWeights:
    """Read the weights on the words of links; `Recording.against` documents it."""
    if tokens is None:
        raise RecordError(
            "links are placed by what the tokens spell, which is not known; record with "
            "record(model, tokens=tokenizer), or give the strings"
        )
    for layer in layers:
        batch = 1 if layer.pattern.ndim == 3 else len(layer.pattern)
        if batch != 1 or layer.kind != "self" or layer.pattern.shape[-1] != len(tokens[0]):
            raise RecordError(
                "links are those of one text that attends to itself, but "
                f"{layer.name or 'a layer'} was recorded as {layer.pattern!r}, kind "
                f"{layer.kind!r}; record one text at a time"
            )
    token_links = place_links(tokens[0], links, text)
    heads = tuple(sorted({head for layer in layers for head in layer.heads}))
    values = torch.full(
        (3, len(token_links), len(layers), len(heads)),
        torch.nan,
        dtype=torch.float64,
        device="cpu",
    )
    for row, layer in enumerate(layers):
        columns = [heads.index(head) for head in layer.heads]
        values[:, :, row, columns] = _of_layer(layer, token_links)
    groups = LinkGroups(tuple(link.kind for link in token_links), (0,) * len(token_links))
    deciding, decoys, controls = (LinkValues(part, groups) for part in values)
    return LinkWeights(
        deciding=deciding,
        decoys=decoys,
        controls=controls,
        layers=tuple(layer.index for layer in layers),
        heads=heads,
    )


def _of_layer(layer: Layer, links: Sequence[TokenLink]) -> Float[Tensor, "3 M H"]:
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
                    result[place, first + number] = _on_a_word(weights[:, number], words)
    return result


def _on_a_word(weights: Float[Tensor, "H S"], words: Sequence[Span]) -> Float[Tensor, " H"]:
    keys = [key for word in words for key in range(*word)]
    return weights[:, keys].sum(dim=-1) / len(words)


def _row_of(layer: Layer, query: int) -> int:
    try:
        return layer.rows.index(query)
    except ValueError:
        raise RecordError(
            f"query {query}, which predicts a decided word, was not recorded in "
            f"{layer.name or 'a layer'}; record all rows"
        ) from None


def against(recording: Recording, links: Iterable[Link], *, text: str | None = None) -> LinkWeights:
    """Compare where heads look with what is known of a text: which words decide which.

    Of each link one row is read: of the query that predicts the decided word's first token.

    Args:
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
        >>> weights = regard.lens.against(recording, [copy])
        >>> torch.equal(weights.deciding.mean[0, 0], recording[0][0, :, 3, 0].double())
        True
    """
    layers = require_one_run(recording.of_kind().layers, "against")
    return weigh_links(layers, recording.tokens, links, text)
