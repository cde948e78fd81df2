"""Example texts: what a model reads if no text is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.models import LanguageModel

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


EXAMPLES_OF_REAL = {
    "a fact": "The capital of France is",
    "who gets it?": "When Mary and John went to the store, John gave a drink to",
    "copying": (
        "The password of the shed is walnut and the password of the barn is silver. Say it again: "
        "the password of the shed is"
    ),
}
"""Texts for models that have read more than stories; the next word hangs on an earlier one."""


def examples_for(model: LanguageModel) -> dict[str, str]:
    """The examples that a model can read, by what decides their next word.

    A tokenizer may have no token for characters that it never saw. If no text can be read, the
    first one is given without them.
    """
    examples = EXAMPLES if model.is_own else EXAMPLES_OF_REAL
    unknown = {name: _unknown(model.tokenizer, text) for name, text in examples.items()}
    readable = {name: text for name, text in examples.items() if not unknown[name]}
    if readable:
        return readable
    (name, text), *_ = examples.items()
    return {name: known_part(model, text)}


def known_part(model: LanguageModel, text: str) -> str:
    """A text without the characters that a model's tokenizer has no token for."""
    unknown = _unknown(model.tokenizer, text)
    known = "".join(character for character in text if character not in unknown).strip()
    return known or model.tokenizer.decode([0])


def _unknown(tokenizer: Any, text: str) -> set[str]:
    def known(character: str) -> bool:
        try:
            tokenizer.encode(character)
        except ValueError:
            return False
        return True

    return {character for character in set(text) if not known(character)}
