"""Exercises of page 9a."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Tokens and embedding"

_Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _embed(ids: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return table[ids] + positions[: ids.shape[-1]]


def _embeddings() -> list[_Case]:
    generator = torch.Generator().manual_seed(9)
    table = torch.randn(7, 5, generator=generator)
    positions = torch.randn(11, 5, generator=generator)
    return [
        (torch.tensor([3, 0, 6]), table, positions),
        (torch.tensor([[1, 1, 2, 5], [4, 0, 0, 3]]), table, positions),
    ]


def _merge(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged: list[int] = []
    at = 0
    while at < len(ids):
        if tuple(ids[at : at + 2]) == pair:
            merged.append(new)
            at += 2
        else:
            merged.append(ids[at])
            at += 1
    return merged


def _merge_once(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    for at in range(len(ids) - 1):
        if tuple(ids[at : at + 2]) == pair:
            return [*ids[:at], new, *ids[at + 2 :]]
    return ids


def _merge_either(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged: list[int] = []
    at = 0
    while at < len(ids):
        if set(ids[at : at + 2]) == set(pair) and at + 1 < len(ids):
            merged.append(new)
            at += 2
        else:
            merged.append(ids[at])
            at += 1
    return merged


def _insert_only(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged: list[int] = []
    for at, one in enumerate(ids):
        merged.append(new if tuple(ids[at : at + 2]) == pair else one)
    return merged


EXERCISES = (
    Answer(
        "9a.1",
        kind="predict",
        title="The id of the space in the vocabulary of characters",
        expected=0.0,
        hint="The vocabulary stands in the order of the codes, and ids are counted from 0.",
        mistakes=(
            Mistake("the code for the id", 32.0, "32 is its code; the id is its place."),
            Mistake("counted from 1", 1.0, "Places are counted from 0."),
        ),
    ),
    Answer(
        "9a.2",
        kind="predict",
        title="The pair that is joined first in “low lower lowest new newer newest”",
        expected="we",
        hint="Count the neighbours w·e in all six words, and the others likewise.",
        mistakes=(
            Mistake(
                "the first in the text", "lo", "l·o occurs three times, in the first three words."
            ),
            Mistake(
                "the pair that begins words", "ne", "n·e occurs three times, in the last three."
            ),
        ),
    ),
    Answer(
        "9a.3",
        kind="by hand",
        title="How many times as many scores a text takes as characters than as pieces of four",
        expected=16.0,
        hint="How many tokens are there in each case, and how many pairs of tokens?",
        mistakes=(
            Mistake("tokens for scores", 4.0, "Four times as many tokens; scores go by pairs."),
            Mistake("only half", 8.0, "The square of 4, masked or not."),
        ),
    ),
    Answer(
        "9a.4",
        kind="by hand",
        title="The row of x at position 1",
        expected=[10.0, 22.0],
        hint="Which id stands at position 1, and which row of the second table belongs to it?",
        mistakes=(
            Mistake("no position", [0.0, 2.0], "Add the row of position 1."),
            Mistake("the position alone", [10.0, 20.0], "Add the row of the token, number 1."),
            Mistake("the token before", [13.0, 21.0], "At position 1 the second id stands."),
        ),
    ),
    Function(
        "9a.5",
        title="embed(ids, table, positions): ids to vectors, (…, T) to (…, T, E)",
        name="embed",
        reference=_embed,
        cases=_embeddings,
        hint="table[ids] looks all rows up at once; positions has more rows than are needed.",
        mistakes=(
            Mistake("no positions", lambda ids, table, _: table[ids], "Add positions[:T]."),
            Mistake(
                "positions by id",
                lambda ids, table, positions: table[ids] + positions[ids],
                "The second table is looked up by where a token stands, not by which it is.",
            ),
            Mistake(
                "one position for all",
                lambda ids, table, positions: table[ids] + positions[ids.shape[-1] - 1],
                "Each position has a row of its own: positions[:T], not positions[T - 1].",
            ),
            Mistake(
                "side by side",
                lambda ids, table, positions: torch.cat(
                    [table[ids], positions[: ids.shape[-1]].expand(*ids.shape, -1)], dim=-1
                ),
                "The row of the position is added, so that E channels stay E.",
            ),
        ),
    ),
    Function(
        "9a.6",
        title="merge(ids, pair, new): the ids with every occurrence of the pair replaced by new",
        name="merge",
        reference=_merge,
        cases=lambda: [
            ([1, 2, 3, 1, 2], (1, 2), 9),
            ([2, 1, 2, 1], (1, 2), 7),
            ([5, 5, 5, 4], (5, 5), 8),
        ],
        hint="Go through with an index: where the pair stands, append new and go on by two.",
        mistakes=(
            Mistake("only the first", _merge_once, "Go on behind the pair; it may come again."),
            Mistake("in either order", _merge_either, "(1, 2) is another pair than (2, 1)."),
            Mistake(
                "the second one kept", _insert_only, "The new id stands for both: go on by two."
            ),
        ),
    ),
    Answer(
        "9a.7",
        kind="break",
        title="Attention without a mask and without positions, the first and last token swapped",
        expected="the same rows, two of them swapped",
        hint="Does anything in the scores say where a token stands?",
        mistakes=(
            Mistake(
                "order taken for granted",
                "other rows",
                "Each query meets the same keys as before, in another order; a sum has none.",
            ),
            Mistake(
                "the rows taken to stay",
                "the same rows in the same places",
                "Each row begins with its own token's query, so it moves with its token.",
            ),
        ),
    ),
)
