"""Accuracy of a predictor on the decided words of stories, by kind of link.

Axis letters: B stories, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import torch
from torch import Tensor

from regard.gpt.model import GPT
from regard.gpt.stories import Kind, Link, Story
from regard.gpt.tokenizer import Tokenizer

__all__ = [
    "LinkAccuracy",
    "Predict",
    "TwinAccuracy",
    "bigram",
    "likeliest",
    "link_accuracy",
    "twin_accuracy",
]

Predict = Callable[[Tensor], Tensor]
"""Maps token ids ``(B, T)`` to the likeliest next token of every position, ``(B, T)``."""

_BATCH = 16


@dataclass(frozen=True)
class LinkAccuracy:
    """Counts of decided words, and of those predicted."""

    right: int
    count: int

    @property
    def share(self) -> float:
        """The fraction predicted, from 0 to 1; NaN without any."""
        return self.right / self.count if self.count else float("nan")


def likeliest(model: GPT) -> Predict:
    """Return a predictor: the likeliest next token of each position, by a model."""

    def predict(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model(ids).argmax(dim=-1)  # (B, T)

    return predict


def bigram(ids: Tensor, vocab_size: int) -> Predict:
    """Return a bigram predictor: the most frequent next token of each token in a text.

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
    """Count the decided words that are predicted from the text before them, by kind of link.

    A word of several tokens is predicted if each of them is, given those before.

    Args:
        predict: the most likely next tokens: `likeliest(model)` or `bigram(...)`.
        tokenizer: of the ids that `predict` takes.
        stories: the stories; words beyond the context are left out.
        context: T, the maximum number of tokens that `predict` takes.

    >>> from regard.gpt import load
    >>> from regard.gpt.stories import Kind, stories
    >>> model, tokenizer = load()
    >>> shares = link_accuracy(likeliest(model), tokenizer, stories(0, 3), context=512)
    >>> shares[Kind.QUOTATION].count
    2
    """
    right, count = dict.fromkeys(Kind, 0), dict.fromkeys(Kind, 0)
    for hits in _predicted(predict, tokenizer, stories, context):
        for link, is_right in hits:
            count[link.kind] += 1
            right[link.kind] += is_right
    return {kind: LinkAccuracy(right[kind], count[kind]) for kind in Kind}


@dataclass(frozen=True)
class TwinAccuracy:
    """Counts of pairs of twins, and of those whose first, second or both were predicted."""

    first: int
    second: int
    both: int
    count: int


def twin_accuracy(
    predict: Predict, tokenizer: Tokenizer, pairs: Iterable[tuple[Story, Story]], *, context: int
) -> TwinAccuracy:
    """Count the pairs of stories, differing in the deciding word, of which both are predicted.

    Args:
        predict: the most likely next tokens.
        tokenizer: of the ids that `predict` takes.
        pairs: of `regard.gpt.stories.twins`; a story is right if all its links are.
        context: T, the maximum number of tokens that `predict` takes.

    >>> from regard.gpt import load
    >>> from regard.gpt.stories import Kind, twins
    >>> model, tokenizer = load()
    >>> pairs = twins(Kind.RHYME, 3)
    >>> twin_accuracy(likeliest(model), tokenizer, pairs, context=512).count
    3
    """
    stories = (story for pair in pairs for story in pair)
    right = [
        all(is_right for _, is_right in hits)
        for hits in _predicted(predict, tokenizer, stories, context)
    ]
    first, second = right[::2], right[1::2]
    both = sum(map(all, zip(first, second, strict=True)))
    return TwinAccuracy(sum(first), sum(second), both, len(first))


def _predicted(
    predict: Predict, tokenizer: Tokenizer, stories: Iterable[Story], context: int
) -> Iterator[list[tuple[Link, bool]]]:
    """Yield the links of each story within the context, and whether they are predicted."""
    rest = iter(stories)
    while some := list(islice(rest, _BATCH)):
        encoded = [tokenizer.encode(story.text)[:context] for story in some]
        size = len(some), max(map(len, encoded))  # B, T
        ids = torch.zeros(size, dtype=torch.int64, device="cpu")
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = torch.tensor(tokens, device="cpu")
        hits = predict(ids)[:, :-1].eq(ids[:, 1:])  # (B, T - 1)
        for story, tokens, row_hits in zip(some, encoded, hits.tolist(), strict=True):
            yield [
                (link, all(row_hits[place - 1] for place in places))
                for link, places in _places(story.links, tokenizer.tokens(tokens))
            ]


def _places(links: Sequence[Link], tokens: Sequence[str]) -> Iterable[tuple[Link, range]]:
    """Yield the tokens of each decided word that lies among the tokens as a whole."""
    spans = list(pairwise(accumulate(map(len, tokens), initial=0)))
    for link in links:
        start, stop = link.decided
        places = [n for n, (first, end) in enumerate(spans) if first < stop and end > start]
        if spans[-1][1] >= stop and places[0] > 0:
            yield link, range(places[0], places[-1] + 1)
