"""Decoding tokens one at a time: complete characters, up to the text's end or a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from regard.gpt.tokenizer import Tokenizer

_UNKNOWN = "\ufffd"


class Detokenizer:
    """The text of one sequence, returned as soon as it is final.

    The bytes of an incomplete character and the beginning of a possible stop string are held back.
    A token that ends a document ends the text.

    Args:
        tokenizer: of the tokens.
        stop: strings; the text ends before the first one that is complete.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []  # tokens whose text is not final
        self._emitted = 0  # characters of their text that left `_ids`
        self._held = ""  # complete characters that may begin a stop string
        self.stopped = False

    def add(self, token: int) -> str:
        """Add a token; the text that is final now."""
        if self.stopped:
            return ""
        if token == self._tokenizer.end:
            return self.end()
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = len(text.rstrip(_UNKNOWN))  # the rest may still become a character
        new = text[self._emitted : whole]
        self._emitted = max(self._emitted, whole)
        if whole == len(text):  # later tokens decode without these
            self._ids, self._emitted = [], 0
        return self._until_stop(new)

    def end(self) -> str:
        """The text that was held back, after the last token."""
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
    """The length of the longest end of a text that begins a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
