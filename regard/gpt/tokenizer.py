"""Text and tokens: the protocol of tokenizers, the simplest one, detokenizing.

A tokenizer is stored as `tokenizer.json` in a model's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard._files import replace_file
from regard.gpt.folder import TOKENIZER

_UNKNOWN = "\ufffd"


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    Example:
        >>> from regard.gpt import CharTokenizer, Tokenizer
        >>> isinstance(CharTokenizer("hello"), Tokenizer)
        True
    """

    @property
    def vocab_size(self) -> int:
        """V: ids run from 0 to V - 1."""

    @property
    def end(self) -> int | None:
        """The id of the token that ends a document; None for a tokenizer without one."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the ids of each of some texts, as `encode` gives them."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids."""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each id, as a displayable piece."""

    def to_json(self) -> str:
        """Serialize the tokenizer as JSON."""

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` to `folder`, which is made if it does not exist."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        replace_file(Path(folder, TOKENIZER), self.to_json().encode())


class CharTokenizer(Tokenizer):
    """One token a character; the vocabulary is a text's characters in order of code point.

    Args:
        text: the text whose characters become the vocabulary.

    Raises:
        ValueError: `text` is empty.

    >>> tokenizer = CharTokenizer("hello")
    >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2, 3])
    ([1, 3, 2, 0], 'helo')
    """

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("text is empty; its characters are to become the vocabulary")
        self.characters = "".join(sorted(set(text)))
        self._ids = {character: i for i, character in enumerate(self.characters)}

    @property
    def vocab_size(self) -> int:
        """V: the number of different characters."""
        return len(self.characters)

    @property
    def end(self) -> None:
        """None, since no token ends a document."""
        return

    def encode(self, text: str) -> list[int]:
        """Return the id of each character.

        Raises:
            ValueError: a character is not in the vocabulary; the message names it.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            (character,) = error.args
            raise ValueError(
                f"text holds {character!r} (U+{ord(character):04X}) at index "
                f"{text.index(character)}, which is not among the {self.vocab_size} characters "
                "of this tokenizer; leave it out, or train on text that holds it"
            ) from None

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the ids of each of some texts; `ValueError` as for `encode`."""
        known = _code_points(self.characters)  # in order
        encoded = []
        for text in texts:
            signs = _code_points(text)
            ids = np.searchsorted(known, signs).clip(max=len(known) - 1)
            if (known[ids] != signs).any():
                self.encode(text)  # raises an error that names the character
            encoded.append(ids.astype(np.int64))
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; `ValueError` for an id outside the vocabulary."""
        return "".join(self.tokens(ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the character of each id; `ValueError` for an id outside the vocabulary."""
        return [self.characters[i] for i in checked(ids, self.vocab_size)]

    def to_json(self) -> str:
        """Return the characters, as JSON."""
        return json.dumps({"type": "characters", "characters": self.characters})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The tokenizer that `to_json` wrote; `ValueError` where `text` is something else."""
        match json.loads(text):
            case {"type": "characters", "characters": str(characters)}:
                return cls(characters)
            case _:
                raise ValueError(
                    'expected a JSON object with "type": "characters" and the "characters"'
                )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the tokenizer in `folder`; `ValueError` if it is of another kind."""
        return cls.from_json(Path(folder, TOKENIZER).read_text("utf-8"))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def require_utf8(text: str, name: str = "text") -> None:
    """Raise ValueError if a text, named so in the error, holds half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds a lone surrogate, U+{ord(text[error.start]):04X}, at index "
            f"{error.start}; it has no UTF-8 form: leave it out, such as by "
            'text.encode(errors="ignore").decode()'
        ) from None


def checked(ids: Iterable[int], vocab_size: int) -> Sequence[int]:
    """Return the ids as plain integers; `ValueError` for the first one outside the vocabulary."""
    known = [index(i) for i in ids]
    for i in known:
        if not 0 <= i < vocab_size:
            raise ValueError(f"ids holds {i}; expected ids from 0 to {vocab_size - 1}")
    return known


class Detokenizer:
    """Decodes one sequence incrementally; text is returned as soon as it is final.

    Bytes of an incomplete character and the beginning of a possible stop string are held back.
    A token that ends a document ends the text.

    Args:
        tokenizer: the tokenizer.
        stop: strings; the text ends before the first one that is complete.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []  # tokens whose text is not final
        self._emitted = 0  # characters of their text already returned
        self._held = ""  # complete characters that may begin a stop string
        self.stopped = False

    def add(self, token: int) -> str:
        """Add a token, and return the text that is final now."""
        if self.stopped:
            return ""
        if token == self._tokenizer.end:
            return self.end()
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = len(text.rstrip(_UNKNOWN))  # the rest may be an incomplete character
        new = text[self._emitted : whole]
        self._emitted = max(self._emitted, whole)
        if whole == len(text):  # later tokens decode without these
            self._ids, self._emitted = [], 0
        return self._until_stop(new)

    def end(self) -> str:
        """Return the text that was held back, after the last token."""
        if self.stopped:
            return ""
        text = self._until_stop(self._tokenizer.decode(self._ids)[self._emitted :])
        if self.stopped:
            return text
        text, self._held, self.stopped = text + self._held, "", True
        return text

    def _until_stop(self, new: str) -> str:
        text = self._held + new
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop if stop in text]
        if ends:  # a token may complete several stop strings: the first to end counts
            self.stopped = True
            end, length = min(ends)
            return text[: end + length]
        final = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[final:]
        return text[:final]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that begins a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
