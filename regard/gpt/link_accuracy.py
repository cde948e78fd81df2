"""How many of the decided words of stories a predictor gets right, by kind of link.

Axis letters: B stories, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import torch
from torch import Tensor

from regard.gpt.model import GPT
from regard.gpt.stories import Kind, Link, Story
from regard.gpt.tokenizer import Tokenizer

__all__ = ["LinkAccuracy", "Predict", "bigram", "likeliest", "link_accuracy"]

Predict = Callable[[Tensor], Tensor]
"""From ``(B, T)`` token ids the most likely next token of every position, ``(B, T)``."""

_BATCH = 16


@dataclass(frozen=True)
class LinkAccuracy:
    """Of how many decided words how many were predicted."""

    right: int
    count: int

    @property
    def share(self) -> float:
        """Their share, from 0 to 1; NaN where there is none."""
        return self.right / self.count if self.count else float("nan")


def likeliest(model: GPT) -> Predict:
    """What a model takes for the most likely next token."""

    def predict(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model(ids).argmax(dim=-1)  # (B, T)

    return predict


def bigram(ids: Tensor, vocab_size: int) -> Predict:
    """What followed a token most often in a text, whatever stood before it.

    Args:
        ids: ``(N,)`` the text's tokens.
        vocab_size: V, the number of different tokens.

    >>> predict = bigram(torch.tensor([1, 2, 1, 2, 1, 0]), vocab_size=3)
    >>> predict(torch.tensor([[1, 2]])).tolist()
    [[2, 1]]
    """
    pairs, counts = torch.unique(ids[:-1] * vocab_size + ids[1:], return_counts=True)
    first, second = pairs // vocab_size, pairs % vocab_size
    following = torch.zeros(vocab_size, dtype=torch.int64, device="cpu")
    order = counts.argsort(stable=True)  # of equal first tokens the most frequent pair comes last
    for one, two in zip(first[order].tolist(), second[order].tolist(), strict=True):
        following[one] = two
    return lambda ids: following[ids]


def link_accuracy(
    predict: Predict, tokenizer: Tokenizer, stories: Iterable[Story], *, context: int
) -> dict[Kind, LinkAccuracy]:
    """How many decided words are predicted from the text before them, by kind of link.

    A word of several tokens is predicted if each of them is, given those before.

    Args:
        predict: the most likely next tokens: `likeliest(model)` or `bigram(...)`.
        tokenizer: of the ids that `predict` takes.
        stories: the stories; the words of one that lie beyond the context are left out.
        context: T, the most tokens that `predict` takes.

    >>> from regard.gpt import load
    >>> from regard.gpt.stories import Kind, stories
    >>> model, tokenizer = load()
    >>> shares = link_accuracy(likeliest(model), tokenizer, stories(0, 3), context=512)
    >>> shares[Kind.QUOTATION].count
    4
    """
    right, count = dict.fromkeys(Kind, 0), dict.fromkeys(Kind, 0)
    rest = iter(stories)
    while some := list(islice(rest, _BATCH)):
        encoded = [tokenizer.encode(story.text)[:context] for story in some]
        size = len(some), max(map(len, encoded))  # B, T
        ids = torch.zeros(size, dtype=torch.int64, device="cpu")
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = torch.tensor(tokens, device="cpu")
        hits = predict(ids)[:, :-1].eq(ids[:, 1:])  # (B, T - 1)
        for story, tokens, row_hits in zip(some, encoded, hits.tolist(), strict=True):
            for link, places in _places(story.links, tokenizer.tokens(tokens)):
                count[link.kind] += 1
                right[link.kind] += all(row_hits[place - 1] for place in places)
    return {kind: LinkAccuracy(right[kind], count[kind]) for kind in Kind}


def _places(links: Sequence[Link], tokens: Sequence[str]) -> Iterable[tuple[Link, range]]:
    """The tokens of each decided word that lies among the tokens as a whole."""
    spans = list(pairwise(accumulate(map(len, tokens), initial=0)))
    for link in links:
        start, stop = link.decided
        places = [n for n, (first, end) in enumerate(spans) if first < stop and end > start]
        if spans[-1][1] >= stop and places[0] > 0:
            yield link, range(places[0], places[-1] + 1)
