"""Effects of links: each link knocked out, head by head.

Axes: M links, K kinds, N layers, H heads, B copies of a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from regard._display import show
from regard._shapes import Float
from regard.gpt.cache import GPTCache
from regard.gpt.model import GPT
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.unwrap import as_gpt
from regard.intervene import intervene
from regard.lens import Link, SpanValues, SpanWeights, link_weights
from regard.lens.effect.caveats import Draws
from regard.lens.spans.links import TokenLink, place_links
from regard.record import record
from regard.record.readings import bar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["LinkEffects", "LinkedText", "link_effects"]

_BYTES = 2**27  # maximum size of the keys and values of a batch of copies


class LinkedText(Protocol):
    """A text with its links, such as a `regard.gpt.stories.Story`.

    Links may have ``alternatives``: the words that the decoys would have led to.
    """

    @property
    def text(self) -> str:
        """The text."""

    @property
    def links(self) -> Sequence[Link]:
        """Its links."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkChange:
    """A number of each link, and its change when the deciding words are hidden.

    Attributes:
        unchanged: the number without intervention, ``(M,)``.
        heads: its change with the deciding words hidden in one head, ``(M, N, H)``.
        layers: its change with them hidden in all heads of a layer, ``(M, N)``.
        model: its change with them hidden in all heads, ``(M,)``.
    """

    unchanged: SpanValues
    heads: SpanValues
    layers: SpanValues
    model: SpanValues


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkEffects:
    """The weights of heads on deciding words, and the effects of hiding these; see `link_effects`.

    Deciding words are hidden only from the query that predicts the decided word's first token. It
    can still read information about them that earlier tokens contain.

    Attributes:
        weights: the weights of each head.
        correct: 1 if the decided word's first token is the likeliest, else 0, ``(M,)``.
        log_probability: log-probability of that token, in nats.
        log_odds: log-odds of that token against the first tokens of all alternatives, in nats; NaN
            for links without alternatives, or whose alternatives begin with the same token.

    Example:
        >>> from regard.gpt import link_effects, load
        >>> from regard.gpt.stories import story
        >>> effects = link_effects(*load(), [story(3)])
        >>> effects.correct.mean.shape == (len(effects.counts),)
        True
    """

    weights: SpanWeights
    correct: SpanValues
    log_probability: LinkChange
    log_odds: LinkChange

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of links of each of the K kinds, in order."""
        return self.weights.counts

    def frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row per kind and head."""
        frame = self.weights.frame()
        frame["effect"] = self.log_probability.heads.mean.flatten().numpy()
        frame["effect_interval"] = self.log_probability.heads.interval.flatten().numpy()
        frame["odds_effect"] = self.log_odds.heads.mean.flatten().numpy()
        return frame

    def plot(self, kinds: Sequence[str] | None = None) -> Figure:
        """Draw axes for each kind, and a dot for each head: weight × effect.

        Args:
            kinds: the kinds to draw; None is all.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ValueError: for a kind that no link has.
            ImportError: without matplotlib, which the extra ``plot`` installs.
        """
        figure: Figure = show("plot_link_effects", self, kinds)
        return figure

    def _repr_html_(self) -> str:
        html: str = show("link_effects_html", self)
        return html

    def __repr__(self) -> str:
        text: str = show("link_effects_text", self)
        return text


def link_effects(
    model: GPT,
    tokenizer: Tokenizer,
    texts: Iterable[LinkedText],
    *,
    progress: bool | None = None,
) -> LinkEffects:
    """Measure the weights of heads on deciding words, and the effects of hiding these.

    Each link is knocked out on its own (Geva et al. 2023, arXiv:2304.14767, section 5): its
    deciding words are hidden from the query that predicts the decided word, in one head at a time,
    in each layer and in the whole model. A text is read once; then each intervention costs one
    token. The mode of the model is not changed: call ``model.eval()`` first if it has dropout,
    whose noise would be part of the effects.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        texts: the texts with their links.
        progress: whether to show a progress bar (needs rich); None shows it on a terminal.

    Warns:
        RuntimeWarning: for a model that draws random numbers while it runs.

    Raises:
        ValueError: for no texts or no links, for a text longer than the model's context or its
            window, and for links that do not match the tokens.
        TypeError: for an object that is not a link.

    Example:
        >>> from regard.gpt import load
        >>> from regard.gpt.stories import stories
        >>> effects = link_effects(*load(), stories(0, 2))
        >>> effects.log_probability.heads.mean.shape == effects.weights.spans.mean.shape
        True
    """
    model = as_gpt(model, whole=False)
    texts = list(texts)
    parts: list[_Part] = []
    with bar(len(texts), progress=progress, title="measuring links") as advance, torch.no_grad():
        for number, text in enumerate(texts):
            if text.links:
                parts.append(_Reader(model, tokenizer, text, number).measure())
            advance(1)
    if not parts:
        raise ValueError(f"texts must have links, but these {len(texts)} texts have none")
    weights = SpanWeights.merge([part.weights for part in parts])
    same = weights.spans.of_same_spans

    def values(tensors: Iterable[Tensor]) -> SpanValues:
        return same(torch.cat(list(tensors)))

    def change(place: int) -> LinkChange:
        layers, heads = len(weights.layers), len(weights.heads)
        changes = torch.cat([part.changes[place] for part in parts])
        by_head, by_layer, whole = changes.split([layers * heads, layers, 1], dim=1)
        return LinkChange(
            unchanged=values(part.unchanged[place] for part in parts),
            heads=same(by_head.unflatten(1, (layers, heads))),
            layers=same(by_layer),
            model=same(whole[:, 0]),
        )

    return LinkEffects(
        weights=weights,
        correct=values(part.correct for part in parts),
        log_probability=change(0),
        log_odds=change(1),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """Log-probabilities and log-odds of one text."""

    weights: SpanWeights
    correct: Float[Tensor, " M"]
    unchanged: Float[Tensor, "2 M"]
    changes: Float[Tensor, "2 M C"]


class _Reader:
    """Measures the links of one text."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, text: LinkedText, number: int) -> None:
        ids = tokenizer.encode(text.text)
        config = model.config
        windows = [config.layer_window(layer) for layer in range(config.layers)]
        most = min([config.context, *(window for window in windows if window is not None)])
        if len(ids) > most:
            raise ValueError(
                f"texts[{number}] has {len(ids)} tokens, but all layers of the model see at most "
                f"{most}; leave it out, or cut it"
            )
        self._model, self._tokenizer, self._text = model, tokenizer, text
        device = next(model.parameters()).device
        self._ids = torch.tensor(ids, device=device)
        self._pieces = tokenizer.tokens(ids)
        self._links = place_links(self._pieces, text.links, text.text)
        self._answers = [self._answer(*pair) for pair in zip(text.links, self._links, strict=True)]
        # Layer and head in which the deciding words are hidden; None for all.
        heads = [(layer, head) for layer in range(config.layers) for head in range(config.heads)]
        layers = [(layer, None) for layer in range(config.layers)]
        self._places: list[tuple[int | None, int | None]] = [*heads, *layers, (None, None)]

    def measure(self) -> _Part:
        model, ids = self._model, self._ids
        draws = Draws(model)
        with record(model, tokens=[self._pieces]) as recording:
            every = model(ids[None])[0]
        draws.warn(lambda: model(ids[None]))
        weights = link_weights(recording, self._text.links, text=self._text.text)
        rows = every[[link.query for link in self._links]]
        unchanged = torch.stack(
            [answer(row[None])[:, 0] for answer, row in zip(self._answers, rows, strict=True)], 1
        )
        first = torch.tensor([answer.token for answer in self._answers], device="cpu")
        size = 2, len(self._links), len(self._places)
        changes = torch.zeros(size, dtype=torch.float64, device="cpu")
        cache = GPTCache(model.config, capacity=len(ids))
        for number in sorted(range(len(self._links)), key=lambda n: self._links[n].query):
            link, answer = self._links[number], self._answers[number]
            if cache.length < link.query:
                model.next_logits(ids[None, cache.length : link.query], cache)
            numbers = [answer(logits) for logits in self._logits_without(link, cache)]
            changes[:, number] = torch.cat(numbers, dim=1)
        return _Part(
            weights,
            (rows.argmax(dim=-1).cpu() == first).double(),
            unchanged,
            changes - unchanged[..., None],
        )

    def _logits_without(self, link: TokenLink, cache: GPTCache) -> Iterator[Float[Tensor, "B V"]]:
        """Yield the logits of the link's query with its deciding words hidden in each place."""
        model, length = self._model, link.query + 1
        a_copy = 2 * 4 * model.config.layers * model.config.dim * length
        size = max(_BYTES // a_copy, 1)
        for first in range(0, len(self._places), size):
            places = self._places[first : first + size]
            branch = cache.branch(len(places), length)
            with intervene(model) as change:
                for copy, (layer, head) in enumerate(places):
                    change.knock_out(
                        keys=link.keys, queries=link.query, layers=layer, heads=head, batch=copy
                    )
                logits = model.next_logits(self._ids[link.query].expand(len(places), 1), branch)
            yield logits

    def _answer(self, link: Link, place: TokenLink) -> _Answer:
        """Return a reader of the first tokens of the decided word and of its alternatives."""
        ids, first = self._ids.tolist(), place.query + 1
        start, stop = link.decided
        text, others = self._text.text, set()
        for word in dict.fromkeys(getattr(link, "alternatives", ())):
            other = self._tokenizer.encode(text[:start] + word + text[stop:])
            if other[:first] == ids[:first]:  # the same tokens before
                others.update(other[first : first + 1])
        return _Answer(ids[first], sorted(others - {ids[first]}))


@dataclass(frozen=True)
class _Answer:
    """Reads log-probability and log-odds of a decided word."""

    token: int
    others: list[int]

    def __call__(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "2 B"]:
        """Return log-probability and log-odds; the latter is NaN without alternatives."""
        logs = logits.double().log_softmax(dim=-1).cpu()
        own = logs[:, self.token]
        odds = own - logs[:, self.others].logsumexp(dim=-1)
        return torch.stack([own, odds if self.others else torch.full_like(own, torch.nan)])
