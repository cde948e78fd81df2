"""The retrieval score of each head: whether it looks at a needle in a haystack as it is asked for.

A **needle** is a short made-up fact. It is put into a haystack of text, at several depths and
lengths, and a question follows whose answer is in the needle. The answer is given to the model
(teacher forcing), so that one forward pass says for each of its tokens where each head looks while
the token is predicted. The score of a head is the fraction of answer tokens at which its strongest
weight lies on that very token inside the needle: the retrieval score of Wu et al. 2024
(arXiv:2404.15574, section 2). It differs from theirs in four ways:

- the weight is that **beside the head's sinks** (`regard.lens.sinks`), on which most heads rest
  with more weight than anything else gets; they take the strongest weight of the whole row;
- the answer is given, where they let the model generate: so a model that answers wrongly has a
  score too, and `Retrieval.loss` says how well it answers;
- the fraction is of the answer's tokens, at their own places; theirs is of all tokens of the
  needle, and a copy of the token anywhere in the needle counts;
- a **control** is measured, and the score stands beside it: in its place the text holds another
  needle, and what counts is the strongest weight on any token of the other's answer. A head that
  looks there looks at a place, or at whatever differs from the text around it.

The first token of an answer comes after "Answer:" and can only be retrieved; later ones also follow
a token that the needle holds, so that an induction head finds them. `Retrieval.first` is the score
of the first ones alone.

Axes: N layers, H heads, T tokens, A tokens of an answer, K haystacks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard._arguments import check_whole
from regard._shapes import Bool, Float, Int
from regard.lens.naming.evidence import beside_control
from regard.lens.sink_keys import resting
from regard.lens.texts import texts_of
from regard.pattern.readouts import TopK
from regard.record import read_layers
from regard.record.layer import Layer
from regard.record.readings import bar

__all__ = ["NEEDLES", "Needle", "Retrieval", "retrieval"]

LEAST = 0.1
"""A retrieval head has at least this score: the threshold of Wu et al. 2024, section 2."""

_HAYSTACKS = 20  # each of the lengths with each of the depths
_HALVINGS = 4  # number of lengths, each half the one before
_DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
_CHARACTERS = 8  # characters of text taken for a token, of which few texts have more
_ENDS = (".", "!", "?", "\n")


@dataclass(frozen=True)
class Needle:
    """A made-up fact, and a question about it.

    Example:
        >>> Needle("The bell of Orrin weighs", "What does the bell weigh?", "nine plum stones").fact
        'The bell of Orrin weighs nine plum stones.'
    """

    beginning: str
    """The fact as far as its answer."""
    question: str
    answer: str
    """What ends the fact: several tokens that nobody could guess."""

    @property
    def fact(self) -> str:
        """The whole sentence."""
        return f"{self.beginning} {self.answer}."


NEEDLES = (
    Needle(
        "The password of the harbour is",
        "What is the password of the harbour?",
        "copper thirteen willow",
    ),
    Needle(
        "The favourite meal of Captain Ostrel is",
        "What is the favourite meal of Captain Ostrel?",
        "boiled violets with chalk",
    ),
    Needle(
        "The clockmaker of Brell hid the key under",
        "Where did the clockmaker of Brell hide the key?",
        "seven frozen lemons",
    ),
    Needle(
        "In the village of Tamsin every goat is named",
        "What is every goat named in the village of Tamsin?",
        "Marble Window Eleven",
    ),
    Needle(
        "The lighthouse keeper pays his rent in",
        "In what does the lighthouse keeper pay his rent?",
        "striped feathers and glue",
    ),
    Needle(
        "The secret ingredient of the blue soap is",
        "What is the secret ingredient of the blue soap?",
        "powdered trumpet moss",
    ),
    Needle(
        "The train to Vellmark leaves from platform",
        "From which platform does the train to Vellmark leave?",
        "ninety purple north",
    ),
    Needle(
        "Aunt Pellegrine keeps in her piano",
        "What does Aunt Pellegrine keep in her piano?",
        "forty wet compasses",
    ),
    Needle(
        "The flag of the river people shows",
        "What does the flag of the river people show?",
        "a kneeling spoon of salt",
    ),
    Needle(
        "The doctor of the fair cures hiccups with",
        "With what does the doctor of the fair cure hiccups?",
        "warm pepper gravel",
    ),
    Needle(
        "The winner of the winter race was given",
        "What was the winner of the winter race given?",
        "one velvet anchor",
    ),
    Needle(
        "The word that opens the iron library is",
        "What is the word that opens the iron library?",
        "lantern goose thursday",
    ),
    Needle(
        "Old Miriam repaired the bridge with",
        "With what did old Miriam repair the bridge?",
        "honey bricks and thunder",
    ),
)
"""Facts that no text holds."""


class _Prompt(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def offsets(self) -> Sequence[tuple[int, int]]: ...
    @property
    def added(self) -> Sequence[bool]: ...


class _Tokenizer(Protocol):
    def tokens(self, ids: Iterable[int], /) -> list[str]: ...


class _Model(Protocol):
    """A model that reads text, as a `regard.models.LanguageModel`."""

    module: nn.Module

    @property
    def tokenizer(self) -> _Tokenizer: ...
    @property
    def predicts(self) -> bool: ...
    @property
    def context(self) -> int | None: ...
    @property
    def device(self) -> torch.device: ...

    def read(self, text: str, /, *, special: bool = True) -> _Prompt: ...
    def logits_at(
        self, ids: Int[Tensor, " T"], positions: Sequence[int], /
    ) -> Float[Tensor, "R V"]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Retrieval:
    """The retrieval score of every head, beside its control; made by `retrieval`.

    Attributes:
        layers: indices of the layers.
        score: fraction of answer tokens at which the head looks at that token in the needle,
            ``(N, H)``; NaN for a head that its layer lacks, here and below.
        first: the same of the first token of each answer, ``(N, H)``.
        control: fraction at which it looks at the answer of another needle in the same place.
        margin: half width of the 95 % interval of score − control, from the variance between
            haystacks; NaN for fewer than four.
        haystacks: number of haystacks.
        lengths: number of tokens of each text, needle, question and answer included.
        loss: mean −log p of the answers' tokens, in nats: whether the model finds the needle.
        control_loss: the same where another needle is in its place.

    Example:
        >>> import regard
        >>> from regard.lens.head_atlas.needle import retrieval
        >>> text = "The sun rose over the hill. The hens ran out. " * 20
        >>> found = retrieval(regard.models.open(None), [text], length=96)
        >>> found.score.shape, found.haystacks
        (torch.Size([4, 5]), 5)
    """

    layers: tuple[int, ...]
    score: Float[Tensor, "N H"]
    first: Float[Tensor, "N H"]
    control: Float[Tensor, "N H"]
    margin: Float[Tensor, "N H"]
    haystacks: int
    lengths: tuple[int, ...]
    loss: float
    control_loss: float

    def heads(self, least: float = LEAST) -> list[tuple[int, int]]:
        """Return layer and head of the retrieval heads, the highest score first.

        Args:
            least: the whole interval of score − control is at least this.
        """
        lowest = self.score - self.control - self.margin
        found = (lowest >= least).nonzero().tolist()
        found.sort(key=lambda place: -float(self.score[place[0], place[1]]))
        return [(self.layers[row], head) for row, head in found]

    def __repr__(self) -> str:
        names = [
            f"{layer}.{head} {self.score[self.layers.index(layer), head]:.2f}"
            for layer, head in self.heads()
        ]
        return (
            f"Retrieval({', '.join(names) or 'no retrieval head'} of {self.score.numel()} heads, "
            f"{self.haystacks} haystacks; loss {self.loss:.2f}, without the needle "
            f"{self.control_loss:.2f})"
        )


def retrieval(
    model: _Model,
    haystacks: Sequence[str],
    *,
    length: int = 2048,
    seed: int = 0,
    progress: bool | None = None,
) -> Retrieval:
    """Measure how often each head looks at an answer inside a needle as it is predicted.

    `regard.lens.head_atlas.needle` defines the score. Parts of the text are drawn as 20 haystacks:
    each of four lengths, the longest and its halves, with a needle at each of five depths, where a
    sentence ends. Two forward passes a haystack, with the needle and with another; memory O(T).

    Args:
        model: a `regard.models.LanguageModel` with a next token.
        haystacks: texts, any number of any lengths; what of them is read is drawn by the seed.
        length: the greatest number of tokens of a text with needle, question and answer; at most
            the model's context is used.
        seed: of the draws of needles and of parts of the text.
        progress: whether to show a progress bar; None shows it on a terminal.

    Raises:
        TypeError: for a model without a next token, and for a string in place of texts.
        ValueError: for no text, or a length, a context or a text too short for needle and question,
            and for a tokenizer that cuts the answers otherwise in the needle than after it.
        RecordError: for attention that cannot be recorded.

    Example:
        >>> import regard
        >>> from regard.lens.head_atlas.needle import retrieval
        >>> text = "The sun rose over the hill. The hens ran out. " * 20
        >>> found = retrieval(regard.models.open(None), [text], length=96)
        >>> max(found.lengths)
        96
    """
    check_whole(length, "length")
    check_whole(seed, "seed")
    if isinstance(haystacks, str) or not all(isinstance(text, str) for text in haystacks):
        raise TypeError("haystacks must be texts, such as a list of strings")
    if not model.predicts:
        raise TypeError(
            "model has no next token, so that no answer can follow a question; give a causal "
            "language model"
        )
    texts = _texts(model, haystacks, length, random.Random(seed))
    every: list[_Found] = []
    with bar(2 * len(texts), progress=progress, title="retrieving needles") as advance:
        for text in texts:
            every.append(_found(model, text))
            advance(2)
    return _joined(texts, every)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A haystack with its needle, and the same with another needle in its place."""

    ids: tuple[int, ...]
    places: tuple[int, ...]
    """The answer's tokens inside the needle."""
    queries: tuple[int, ...]
    """The tokens that predict the answer's at the end."""
    control_ids: tuple[int, ...]
    control_places: tuple[int, ...]
    """The tokens of the other answer inside the other needle."""


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A needle in tokens."""

    fact: tuple[int, ...]
    places: tuple[int, ...]
    """The answer's tokens in the fact."""
    asked: tuple[int, ...]
    """The question with the answer."""
    answers: tuple[int, ...]
    """The answer's tokens in it."""


def _texts(
    model: _Model, haystacks: Sequence[str], length: int, draw: random.Random
) -> list[_Text]:
    whole = "\n\n".join(text for text in haystacks if text.strip())
    if not whole:
        raise ValueError("haystacks holds no text; give at least one that is not empty")
    prompt = model.read("a")  # with what the tokenizer adds to every text
    before = tuple(prompt.ids[: [*prompt.added].index(False)])
    needles = [cut for needle in NEEDLES if (cut := _cut(model, needle)) is not None]
    if len(needles) < 2:
        raise ValueError(
            "model cuts the answers of the needles into other tokens in the fact than after the "
            "question, so that none can be looked up there"
        )
    draw.shuffle(needles)
    longest = min(length, model.context or length)
    texts = []
    for number in range(_HAYSTACKS):
        one, other = needles[number % len(needles)], needles[(number + 1) % len(needles)]
        size = longest >> number % _HALVINGS
        body = size - len(before) - len(one.asked)
        most = max(len(one.fact), len(other.fact))
        if body < 2 * most:
            continue
        ids = _drawn(model, whole, body, draw)
        if len(ids) >= 2 * most:
            depth = _DEPTHS[number % len(_DEPTHS)]
            place = _sentence_end(model, ids, depth, len(ids) - most)
            texts.append(_text(before, ids, place, one, other))
    if not texts:
        raise ValueError(
            f"no haystack holds needle and question: length is {length}, the model's context "
            f"{model.context}, and the texts have {len(whole):,} characters; give more text, or a "
            "greater length"
        )
    return texts


def _cut(model: _Model, needle: Needle) -> _Cut | None:
    """Return a needle in tokens; None if its answer has others in the fact than at the end."""
    # A space before it, as before a sentence in a text.
    fact = model.read(f" {needle.fact}", special=False)
    asked = model.read(f"\n\nQuestion: {needle.question}\nAnswer: {needle.answer}", special=False)
    inside, after = (_last(prompt, needle.answer) for prompt in (fact, asked))
    if [fact.ids[place] for place in inside] != [asked.ids[place] for place in after]:
        return None
    return _Cut(fact=tuple(fact.ids), places=inside, asked=tuple(asked.ids), answers=after)


def _last(prompt: _Prompt, answer: str) -> tuple[int, ...]:
    """Return the tokens that hold a character of an answer, where it stands last."""
    start = prompt.text.rindex(answer)
    stop = start + len(answer)
    spans = enumerate(prompt.offsets)
    return tuple(place for place, (first, last) in spans if first < stop and last > start)


def _drawn(model: _Model, whole: str, tokens: int, draw: random.Random) -> tuple[int, ...]:
    """Draw a part of a text; as many tokens, or fewer if the text has no more."""
    characters = _CHARACTERS * tokens
    start = draw.randint(0, max(0, len(whole) - characters))
    if start:  # a word is not cut apart
        start = max(start, whole.find(" ", start, start + characters // 2))
    return tuple(model.read(whole[start : start + characters], special=False).ids[:tokens])


def _sentence_end(model: _Model, ids: Sequence[int], depth: float, most: int) -> int:
    """Return the number of tokens before a needle: to the end of a sentence, near a depth."""
    cut = round(depth * most)
    names = model.tokenizer.tokens(ids[:most])
    ends = [place for place, name in enumerate(names, 1) if name.rstrip(" ").endswith(_ENDS)]
    return min(ends, key=lambda place: abs(place - cut), default=cut)


def _text(before: tuple[int, ...], ids: tuple[int, ...], cut: int, one: _Cut, other: _Cut) -> _Text:
    """Put a needle into a haystack, and another; both texts have one length."""

    def filled(needle: _Cut) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rest = ids[cut : len(ids) - len(needle.fact)]
        whole = (*before, *ids[:cut], *needle.fact, *rest, *one.asked)
        return whole, tuple(len(before) + cut + place for place in needle.places)

    (own, places), (others, control_places) = filled(one), filled(other)
    start = len(own) - len(one.asked)
    return _Text(
        ids=own,
        places=places,
        queries=tuple(start + answer - 1 for answer in one.answers),
        control_ids=others,
        control_places=control_places,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Found:
    """What the two runs over one haystack gave."""

    hits: dict[int, Bool[Tensor, "H A"]]
    """By layer, where the head looks at the answer's token in the needle."""
    controls: dict[int, Bool[Tensor, "H A"]]
    losses: tuple[float, float]
    """Sums of −log p over the answer's tokens, with the needle and with the other."""


def _found(model: _Model, text: _Text) -> _Found:
    answer = [text.ids[query + 1] for query in text.queries]
    own, loss = _strongest(model, text.ids, text.queries, answer)
    others, control_loss = _strongest(model, text.control_ids, text.queries, answer)
    places, control_places = (
        torch.tensor(keys, device="cpu") for keys in (text.places, text.control_places)
    )
    return _Found(
        hits={layer: keys == places for layer, keys in own.items()},
        controls={layer: torch.isin(keys, control_places) for layer, keys in others.items()},
        losses=(loss, control_loss),
    )


def _strongest(
    model: _Model, ids: Sequence[int], queries: Sequence[int], answer: Sequence[int]
) -> tuple[dict[int, Int[Tensor, "H A"]], float]:
    """Return the key with the strongest weight beside the sinks, and the sum of −log p."""
    index = torch.tensor(queries, device="cpu")

    def read(layer: Layer) -> Int[Tensor, "H A"]:
        (pattern,) = texts_of(layer, "retrieval is measured")
        sinks = resting(pattern)
        beside = pattern.without(sinks) if bool(sinks.any()) else pattern
        (top,) = beside.at(index).read(TopK(1))
        return top.positions[..., 0].cpu()

    with torch.no_grad(), read_layers(model.module, read) as results:
        logits = model.logits_at(torch.tensor(ids, device=model.device), queries)
    gains = logits.double().log_softmax(-1).cpu()[range(len(answer)), answer]
    return {layer.index: keys for layer, keys in results if layer.kind == "self"}, -float(
        gains.sum()
    )


def _joined(texts: Sequence[_Text], every: Sequence[_Found]) -> Retrieval:
    layers = tuple(every[0].hits)
    counts = torch.tensor([len(text.places) for text in texts], dtype=torch.float64, device="cpu")
    size = len(layers), max(len(hits) for hits in every[0].hits.values())
    table = torch.full((4, *size), torch.nan, dtype=torch.float64, device="cpu")
    for row, layer in enumerate(layers):
        hits = torch.stack([one.hits[layer].double().sum(-1) for one in every], -1)  # (H, K)
        controls = torch.stack([one.controls[layer].double().sum(-1) for one in every], -1)
        first = torch.stack([one.hits[layer][:, 0].double() for one in every]).mean(0)
        found: list[Any] = beside_control(hits, controls, counts.expand_as(hits))
        margin = [torch.nan if one.margin is None else one.margin for one in found]
        parts = (hits.sum(-1) / counts.sum(), first, controls.sum(-1) / counts.sum())
        for place, part in enumerate((*parts, torch.tensor(margin, device="cpu"))):
            table[place, row, : len(hits)] = part
    loss, control_loss = (
        sum(one.losses[place] for one in every) / float(counts.sum()) for place in (0, 1)
    )
    return Retrieval(
        layers=layers,
        score=table[0],
        first=table[1],
        control=table[2],
        margin=table[3],
        haystacks=len(texts),
        lengths=tuple(len(text.ids) for text in texts),
        loss=loss,
        control_loss=control_loss,
    )
