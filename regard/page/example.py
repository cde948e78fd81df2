"""Example texts: what a model reads if no text is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.gpt import Tokenizer

EXAMPLE = (
    "In the primer there were two pictures that rhymed with animals. One rhymed with bat and one "
    "with snail, so they had to be"
)

EXAMPLES = {
    "a rhyme": EXAMPLE,
    "a pronoun": (
        "Hannah had a cat called Sooty, and Finn had a dog called Noodle. Finn said, "
        '"Let us go home." Then he stroked'
    ),
    "copying": (
        'A green parrot lived in the tent. Leila said to it, "Who has hidden the red kite?" They '
        'listened. Back came the same words, "Who has hidden the red'
    ),
    "who has it?": (
        "The guitar was with Olivia. The kite was with Adam. At bedtime the guitar was still with"
    ),
}
"""Texts by what decides their next word; without some head the shipped model says another one."""


def readable_examples(tokenizer: Tokenizer) -> dict[str, str]:
    """The examples that a model can read: some have no token for characters they never saw."""
    return {name: text for name, text in EXAMPLES.items() if not _unknown(tokenizer, text)}


def readable_example(tokenizer: Tokenizer) -> str:
    """The first example, without what a model has no token for."""
    (text, *_) = EXAMPLES.values()
    unknown = _unknown(tokenizer, text)
    readable = "".join(character for character in text if character not in unknown)
    return readable or tokenizer.decode([0])


def _unknown(tokenizer: Tokenizer, text: str) -> set[str]:
    def known(character: str) -> bool:
        try:
            tokenizer.encode(character)
        except ValueError:
            return False
        return True

    return {character for character in set(text) if not known(character)}
