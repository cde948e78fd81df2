"""Text out of tokens that come one at a time: whole characters, up to a stop string."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.gpt.tokenizer import Tokenizer

_UNKNOWN = "\ufffd"


class Detokenizer:
    """The text of one sequence, handed out as soon as nothing can change it any more.

    Held back are the bytes of a character that is not whole yet, and text that may become a stop
    string.

    Args:
        tokenizer: what the tokens belong to.
        stop: the text ends before the one of these that is complete first.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []  # not all of whose text is spelled
        self._spelled = 0  # characters of it
        self._held = ""  # spelled, but not handed out
        self.stopped = False

    def add(self, token: int) -> str:
        """Take a token; the text that is certain now."""
        if self.stopped:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = len(text.rstrip(_UNKNOWN))  # what follows may still become a character
        new = text[self._spelled : whole]
        self._spelled = max(self._spelled, whole)
        if whole == len(text):  # the tokens to come are spelled without these
            self._ids, self._spelled = [], 0
        return self._told(new)

    def end(self) -> str:
        """The text that was held back, when no token comes any more."""
        if self.stopped:
            return ""
        text = self._told(self._tokenizer.decode(self._ids)[self._spelled :])
        if self.stopped:
            return text
        text, self._held, self.stopped = text + self._held, "", True
        return text

    def _told(self, new: str) -> str:
        text = self._held + new
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop if stop in text]
        if ends:  # one token may complete several: the first to end, as if it came by characters
            self.stopped = True
            end, length = min(ends)
            return text[: end + length]
        certain = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[certain:]
        return text[:certain]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
