"""The exercises of page 14: shapes of cross-attention, alignment, the decoder's input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Encoder and decoder"


def _decoder_input(target: Tensor, start: int) -> Tensor:
    """Shift translations (B, L) by one: the start, then all but the last."""
    return torch.cat([torch.full_like(target[:, :1], start), target[:, :-1]], dim=1)


def _not_shifted(target: Tensor, _start: int) -> Tensor:
    return target


def _shifted_to_the_left(target: Tensor, start: int) -> Tensor:
    return torch.cat([target[:, 1:], torch.full_like(target[:, :1], start)], dim=1)


def _one_too_many(target: Tensor, start: int) -> Tensor:
    return torch.cat([torch.full_like(target[:, :1], start), target], dim=1)


def _first_replaced(target: Tensor, start: int) -> Tensor:
    return torch.cat([torch.full_like(target[:, :1], start), target[:, 1:]], dim=1)


def _rolled(target: Tensor, _start: int) -> Tensor:
    return target.roll(1, dims=1)


def _targets() -> Sequence[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(14)
    return [
        (torch.tensor([[5, 6, 7]]), 1),
        (torch.randint(2, 40, (3, 8), generator=generator), 1),
    ]


def _alignment_error(weights: Tensor, places: Sequence[int]) -> float:
    """Share of rows of (L, S) whose largest weight is not at its place."""
    return (weights.argmax(dim=1) != torch.tensor(places)).double().mean().item()


def _share_of_right(weights: Tensor, places: Sequence[int]) -> float:
    return 1 - _alignment_error(weights, places)


def _count_of_wrong(weights: Tensor, places: Sequence[int]) -> float:
    return _alignment_error(weights, places) * len(places)


def _missing_weight(weights: Tensor, places: Sequence[int]) -> float:
    return 1 - weights[torch.arange(len(places)), torch.tensor(places)].double().mean().item()


def _against_the_diagonal(weights: Tensor, places: Sequence[int]) -> float:
    return _alignment_error(weights, range(len(places)))


def _alignments() -> Sequence[tuple[Tensor, list[int]]]:
    generator = torch.Generator().manual_seed(14)
    weights = torch.softmax(3 * torch.randn(7, 9, generator=generator), dim=1)
    places = weights.argmax(dim=1).tolist()
    places[2], places[5] = (places[2] + 1) % 9, (places[5] + 4) % 9
    return [(torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]]), [1, 2]), (weights, places)]


EXERCISES = (
    Answer(
        "14.1",
        kind="predict",
        title="Rows and columns of the table of cross-attention, 7 words over a source of 9",
        expected=[7, 9],
        tolerance=0.4,
        hint="A row for each query, a column for each key. Where do the queries come from?",
        mistakes=(
            Mistake("exchanged", [9, 7], "The queries are made from what is written, 7 words."),
            Mistake("as in the encoder", [9, 9], "There queries come from the source as well."),
            Mistake("as in the decoder", [7, 7], "There keys come from what is written as well."),
        ),
    ),
    Answer(
        "14.2",
        kind="by hand",
        title="The places in the source that the six words come from",
        expected=[0, 6, 5, 4, 3, 1],
        tolerance=0.4,
        hint="Read each phrase from right to left, and count “the” though it is not translated.",
        mistakes=(
            Mistake("counted from 1", [1, 7, 6, 5, 4, 2], "The first word is at place 0."),
            Mistake("“the” not counted", [0, 5, 4, 3, 2, 1], "“the” has a place of its own, 2."),
            Mistake("the same order", [0, 1, 3, 4, 5, 6], "The words come in another order here."),
        ),
    ),
    Answer(
        "14.3",
        kind="by hand",
        title="Scores of all three kinds of attention, 9 words in and 7 out",
        expected=193,
        tolerance=0.4,
        hint="Three tables: source by source, written by written, written by source.",
        mistakes=(
            Mistake("no cross-attention", 130, "Cross-attention has a table too, 7 × 9."),
            Mistake(
                "only what is seen", 172, "Scores that are masked are computed and written too."
            ),
            Mistake("one table of all words", 256, "Source words do not look at written ones."),
        ),
    ),
    Function(
        "14.4",
        kind="write",
        title="decoder_input(target, start): what the decoder is given in training",
        name="decoder_input",
        reference=_decoder_input,
        cases=_targets,
        hint="Put start in front of each row, and drop the last word: it has no next one to say.",
        mistakes=(
            Mistake(
                "not shifted",
                _not_shifted,
                "At each place the decoder then sees the very word that it is to say.",
            ),
            Mistake(
                "shifted to the left",
                _shifted_to_the_left,
                "Then it sees the next word but one; it is to see those before.",
            ),
            Mistake(
                "last word kept", _one_too_many, "Input and target must be of the same length."
            ),
            Mistake(
                "first word replaced",
                _first_replaced,
                "Start comes before the first word, not in its place: the others move by one.",
            ),
            Mistake(
                "rolled",
                _rolled,
                "roll puts the last word of the sentence in front, where start belongs.",
            ),
        ),
    ),
    Function(
        "14.5",
        kind="write",
        title="alignment_error(weights, places): share of words looked up at a wrong place",
        name="alignment_error",
        reference=_alignment_error,
        cases=_alignments,
        hint="argmax along each row gives a place a word; compare with places, take the mean.",
        mistakes=(
            Mistake("share of right ones", _share_of_right, "An error counts what is wrong."),
            Mistake("count for share", _count_of_wrong, "Divide by the number of words."),
            Mistake(
                "missing weight",
                _missing_weight,
                "Not how much weight is elsewhere, but whether the largest is.",
            ),
            Mistake(
                "compared with the diagonal",
                _against_the_diagonal,
                "Word i of the translation comes from places[i], not from place i.",
            ),
        ),
    ),
    Answer(
        "14.6",
        kind="break",
        title="Sentences that are right after training without the decoder's causal mask",
        expected="fewer than half",
        hint="In training the decoder is given the right words. Which of them does it then see?",
        mistakes=(
            Mistake(
                "trust in the loss",
                "nearly all",
                "It learned to copy the next word, which stands in its input only in training.",
            ),
        ),
    ),
)
