"""Exercises of page 12."""

from __future__ import annotations

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Cheaper attention"


def _attend(query: Tensor, keys: Tensor, values: Tensor, divisor: float | None = None) -> Tensor:
    """The context of one query: (D,), (S, D) and (S, Dv) to (Dv,)."""
    divisor = query.shape[-1] ** 0.5 if divisor is None else divisor
    return (keys @ query / divisor).softmax(dim=-1) @ values


def _attend_next(
    query: Tensor, key: Tensor, value: Tensor, cached_keys: Tensor, cached_values: Tensor
) -> Tensor:
    keys, values = torch.cat([cached_keys, key[None]]), torch.cat([cached_values, value[None]])
    return _attend(query, keys, values)


def _itself_left_out(
    query: Tensor, _key: Tensor, _value: Tensor, cached_keys: Tensor, cached_values: Tensor
) -> Tensor:
    return _attend(query, cached_keys, cached_values)


def _not_scaled(
    query: Tensor, key: Tensor, value: Tensor, cached_keys: Tensor, cached_values: Tensor
) -> Tensor:
    keys, values = torch.cat([cached_keys, key[None]]), torch.cat([cached_values, value[None]])
    return _attend(query, keys, values, divisor=1.0)


def _value_in_front(
    query: Tensor, key: Tensor, value: Tensor, cached_keys: Tensor, cached_values: Tensor
) -> Tensor:
    keys, values = torch.cat([cached_keys, key[None]]), torch.cat([value[None], cached_values])
    return _attend(query, keys, values)


def _caches() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(12)
    cases = []
    for length, channels, wide in [(2, 3, 2), (7, 5, 3)]:
        shapes: list[tuple[int, ...]] = [(channels,), (channels,), (wide,)]
        shapes += [(length, channels), (length, wide)]
        cases.append(tuple(torch.randn(shape, generator=generator) for shape in shapes))
    return cases


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scaled = query @ key.mT / query.shape[-1] ** 0.5
    return (
        scaled.masked_fill(torch.ones_like(scaled).triu(1).bool(), -torch.inf).softmax(-1) @ value
    )


def _grouped_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    share = len(query) // len(key)
    return _causal(query, key.repeat_interleave(share, 0), value.repeat_interleave(share, 0))


def _other_order(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    share = len(query) // len(key)
    return _causal(query, key.repeat(share, 1, 1), value.repeat(share, 1, 1))


def _no_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    share = len(query) // len(key)
    key, value = key.repeat_interleave(share, 0), value.repeat_interleave(share, 0)
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def _one_key_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _causal(query, key[:1], value[:1])


def _queries_averaged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _causal(query.unflatten(0, (len(key), -1)).mean(1), key, value)


def _groups() -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(12)
    return [
        (
            torch.randn(heads, 3, 5, generator=generator),
            torch.randn(groups, 3, 5, generator=generator),
            torch.randn(groups, 3, 2, generator=generator),
        )
        for heads, groups in [(4, 2), (6, 3)]
    ]


def _visible(length: int, window: int, first: int) -> Tensor:
    query, key = torch.arange(length)[:, None], torch.arange(length)
    return ((query - key < window) | (key < first)) & (key <= query)


def _later_seen(length: int, window: int, first: int) -> Tensor:
    query, key = torch.arange(length)[:, None], torch.arange(length)
    return (query - key < window) | (key < first)


def _first_seen_by_all(length: int, window: int, first: int) -> Tensor:
    return _visible(length, window, 0) | (torch.arange(length) < first)


EXERCISES = (
    Answer(
        "12.1",
        kind="predict",
        title="Positions that pass through a layer for 10 tokens after 5, without and with a cache",
        expected=[95, 14],
        hint=(
            "Without: 5 for the first new token, 6 for the second … 14 for the tenth. With: 5, and "
            "then 1 for each further."
        ),
        mistakes=(
            Mistake(
                "the last token read too",
                [110, 15],
                "The tenth new token is written and not read again.",
            ),
            Mistake("the prompt not counted", [90, 9], "The prompt's 5 tokens are read as well."),
            Mistake("the cache saves nothing", [95, 95], "With a cache each token is read once."),
        ),
    ),
    Answer(
        "12.2",
        kind="predict",
        title="How far back 4 layers with a window of 8 reach",
        expected=28,
        hint="Each layer reaches 7 further back than the one before.",
        mistakes=(
            Mistake("the window alone", 7, "What a token sees has itself seen further back."),
            Mistake("the query not counted", 32, "The window's 8 include the query: 7 are before."),
            Mistake("tokens for distance", 29, "29 tokens are seen, the furthest 28 back."),
        ),
    ),
    Answer(
        "12.3",
        kind="by hand",
        title="KiB of cache a token, of 40 layers with 40 heads of 128 channels in float16",
        expected=800,
        hint="A key and a value, in each layer, of each head.",
        mistakes=(
            Mistake("keys alone", 400, "A value is kept beside each key."),
            Mistake("four bytes a number", 1600, "float16 has two bytes a number."),
            Mistake("one layer", 20, "Each of the 40 layers has keys and values of its own."),
            Mistake("thousands of bytes", 819.2, "A KiB has 1,024 bytes."),
        ),
    ),
    Answer(
        "12.4",
        kind="by hand",
        title="Tokens that fit into 800,000 KiB with 8 key heads in place of 40",
        expected=5000,
        hint="With 8 of 40 key heads a token takes a fifth.",
        mistakes=(
            Mistake("a key head for each head", 1000, "Only 8 of 40 keys and values are kept."),
            Mistake("an eighth", 8000, "The cache shrinks to G/H, which is 8/40."),
        ),
    ),
    Function(
        "12.5",
        title="attend_next(query, key, value, cached_keys, cached_values): a new token's context",
        name="attend_next",
        reference=_attend_next,
        cases=_caches,
        hint=(
            "A token sees itself too, so its key and value belong to the cache first. A mask is "
            "not needed: nothing in the cache is later."
        ),
        mistakes=(
            Mistake(
                "itself left out", _itself_left_out, "A token sees its own key too: add it first."
            ),
            Mistake("not scaled", _not_scaled, "Divide the scores by √D, D the query's length."),
            Mistake(
                "the value at the other end",
                _value_in_front,
                "Key and value of a token must stand in the same place of the cache.",
            ),
        ),
    ),
    Function(
        "12.6",
        title="grouped_attention(query, key, value): causal contexts of heads that share keys",
        name="grouped_attention",
        reference=_grouped_attention,
        cases=_groups,
        hint="repeat_interleave repeats each key head in place, repeat the whole row of them.",
        mistakes=(
            Mistake(
                "repeat for repeat_interleave",
                _other_order,
                "Heads 0 and 1 share key head 0; repeat gives head 1 the next one.",
            ),
            Mistake("no mask", _no_mask, "Later keys are hidden before softmax."),
            Mistake("one key head for all", _one_key_head, "There are G key heads, not one."),
            Mistake(
                "queries averaged", _queries_averaged, "Each head keeps a query and a context."
            ),
        ),
    ),
    Function(
        "12.7",
        title="first_and_window(length, window, first): True where a query sees a key",
        name="first_and_window",
        reference=_visible,
        cases=lambda: [(3, 1, 1), (7, 3, 2), (5, 2, 4)],
        hint="Join two conditions by or, and both with j ≤ i by and.",
        mistakes=(
            Mistake(
                "itself not counted",
                lambda length, window, first: _visible(length, window + 1, first),
                "The window includes the query's own token: i − j < window.",
            ),
            Mistake("later keys seen", _later_seen, "i − j is negative for them: add j ≤ i."),
            Mistake(
                "first tokens seen by all",
                _first_seen_by_all,
                "Query 0 must not see token 1, even where it is one of the first.",
            ),
            Mistake(
                "no first tokens",
                lambda length, window, _: _visible(length, window, 0),
                "The first tokens stay visible where the window has left them behind.",
            ),
            Mistake(
                "and for or",
                lambda length, window, first: (
                    _visible(length, window, 0) & (torch.arange(length) < first)
                ),
                "A key is seen if it is near or one of the first.",
            ),
        ),
    ),
    Answer(
        "12.8",
        kind="break",
        title="Contexts of five tokens that change when a sixth is added, without a mask",
        expected=5,
        hint="Which of the first five queries sees the new key, if nothing is hidden?",
        mistakes=(
            Mistake("as with the mask", 0, "Only a causal mask keeps earlier rows as they are."),
            Mistake("the last one", 1, "Every query sees the new key, not only the one before it."),
            Mistake("the new one too", 6, "The sixth is new; of the first five all five change."),
        ),
    ),
)
