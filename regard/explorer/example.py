"""The text that a model reads where nobody chose one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.gpt import Tokenizer

EXAMPLE = (
    'A green parrot lived in the tent. Leila said to it, "There is a family of hedgehogs down the '
    'well." They listened. Back came the same words, "There is a family of hedgehogs down the'
)


def readable_example(tokenizer: Tokenizer) -> str:
    """A text that every model can read: some have no token for characters they never saw."""

    def known(character: str) -> bool:
        try:
            tokenizer.encode(character)
        except ValueError:
            return False
        return True

    unknown = {character for character in set(EXAMPLE) if not known(character)}
    text = "".join(character for character in EXAMPLE if character not in unknown)
    return text or tokenizer.decode([0])
