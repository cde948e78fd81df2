"""Token names as text rather than as vocabulary entries, and the character ranges of tokens.

GPT-2's vocabulary encodes bytes in its own alphabet, in which a space is ``Ġ``; SentencePiece
writes a space as ``▁``; WordPiece marks tokens that continue a word. Names are decoded text, so
that they can be shown, and measured in characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import index
from reprlib import repr as short_repr
from typing import Any

import torch

from regard._arguments import check_integers

__all__ = ["BYTE_OF", "TokenNames", "displayable", "spell", "token_names"]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of an incomplete character
_VOCABULARY = re.compile(
    r"[ĠĊ▁]\S|\w</w>$|^##\w"
)  # markers of a space, and of the end or middle of a word
_WORD = "x"  # written unchanged in every vocabulary
_LAST = 2**31 - 1  # larger than any vocabulary, and the largest integer of some libraries
_LOST = "\N{REPLACEMENT CHARACTER}"


def token_names(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """Return the text of each token, including spaces and newlines.

    Args:
        tokenizer: one of `transformers`, of `tokenizers` or of `regard.gpt`, or any object that has
            ``convert_ids_to_tokens``, ``id_to_token`` or ``tokens``.
        ids: the tokens of one sequence.

    Returns:
        A string per id, independent of context. Incomplete characters are shown as bytes, such as
        ``<0xE4>``, special and added tokens unchanged. A WordPiece token that begins a word has a
        leading space, as its decoder writes; one that continues a word has none.

    Raises:
        TypeError: for a tokenizer without any of these methods, and ids that are no integers.
        ValueError: for ids of several sequences, or below 0.

    Example:
        >>> from tokenizers import Tokenizer, decoders, models
        >>> tokenizer = Tokenizer(models.WordLevel({"▁The": 0, "▁cat": 1, "s": 2}))
        >>> tokenizer.decoder = decoders.Metaspace()
        >>> token_names(tokenizer, [0, 1, 2])
        [' The', ' cat', 's']
    """
    return TokenNames(tokenizer)(_whole(ids))


class TokenNames:
    """Names ids as `token_names` does, with a cache.

    Args:
        tokenizer: as for `token_names`.

    Raises:
        TypeError: as for `token_names`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._written = _written(tokenizer)
        inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._decode = _decoder(tokenizer, inner)
        # CLIP's decoder does not decode the marker of a word's end.
        self._end = getattr(getattr(inner, "model", None), "end_of_word_suffix", None) or ""
        self._added = _added(tokenizer, inner)
        self._known: dict[int, str] = {}
        self._is_bytes = self._decode("Ã", "©") == "é"
        # Decoders strip leading and trailing spaces, so each token is decoded between two words, or
        # for WordPiece, which writes a space before words, after one word.
        self._after = _WORD if self._decode(_WORD, _WORD) == 2 * _WORD else ""

    def __call__(self, ids: Iterable[int]) -> list[str]:
        """Return the name of each id."""
        names = []
        for number in ids:
            if number not in self._known:
                self._known[number] = self._name(number)
            names.append(self._known[number])
        return names

    def _name(self, number: int) -> str:
        written = self._written(number)
        if written is None:  # models often have more ids than their tokenizers
            return f"<{number}>"
        if number in self._added:
            return written
        ends = bool(self._end) and written.endswith(self._end)
        text = self._spelled(written.removesuffix(self._end) if ends else written)
        return f"{text} " if ends else text

    def _spelled(self, written: str) -> str:
        if self._is_bytes:
            return displayable(b"".join(BYTE_OF.get(sign) or _byte(sign) for sign in written))
        text = self._decode(_WORD, written, self._after)
        # Decoding loses incomplete characters, which the vocabulary writes as <0xE4>.
        if text is None or _LOST in text:
            return written
        if not text.startswith(_WORD) or not text.endswith(self._after):
            return written
        return text[len(_WORD) : len(text) - len(self._after)]


def _whole(ids: Any) -> list[int]:
    """Convert ids to Python integers, and validate them."""
    if isinstance(ids, torch.Tensor):
        check_integers(ids, "ids")
        if ids.ndim != 1:
            raise ValueError(
                f"ids must be a vector, but has shape {tuple(ids.shape)}; give one sequence, such "
                "as ids[0]"
            )
        ids = ids.tolist()
    try:
        numbers = [index(number) for number in ids]
    except TypeError:
        raise TypeError(
            f"ids must be integers, one for each token, but is {short_repr(ids)}; give those "
            "of one sequence"
        ) from None
    wrong = next((number for number in numbers if not 0 <= number <= _LAST), None)
    if wrong is not None:
        raise ValueError(
            f"ids holds {wrong}; expected 0 to {_LAST}: leave out what stands for no token, such "
            "as -100 among labels"
        )
    return numbers


def _written(tokenizer: Any) -> Callable[[int], str | None]:
    """Return a function from ids to vocabulary entries."""
    for name in ("convert_ids_to_tokens", "tokens"):
        if callable(several := getattr(tokenizer, name, None)):
            return lambda number: several([number])[0]
    if callable(one := getattr(tokenizer, "id_to_token", None)):
        return one
    raise TypeError(
        f"tokens must be a list of strings, lists of them, or a tokenizer, but "
        f"{type(tokenizer).__name__} can't name ids: it has no convert_ids_to_tokens, id_to_token "
        "or tokens"
    )


def _decoder(tokenizer: Any, inner: Any) -> Callable[..., str | None]:
    """Return a function that decodes vocabulary entries to text.

    It returns None for tokens that the tokenizer refuses, and always if the tokenizer merely joins
    tokens with spaces.
    """
    decode = getattr(tokenizer, "convert_tokens_to_string", None)
    if decode is None:
        decode = getattr(getattr(inner, "decoder", None), "decode", None)

    def text(*tokens: str) -> str | None:
        try:
            return decode([*filter(None, tokens)])  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - each library raises its own
            return None

    is_spelling = decode is not None and text("a", "##a") != "a ##a"
    return text if is_spelling else lambda *_: None


def _added(tokenizer: Any, inner: Any) -> frozenset[int]:
    """Return the ids of added tokens, which are written unchanged."""
    if (added := getattr(tokenizer, "added_tokens_decoder", None)) is not None:
        return frozenset(added)
    listed = getattr(inner, "get_added_tokens_decoder", None)
    return frozenset(listed() if callable(listed) else ())


def _byte(sign: str) -> bytes:
    """Encode a character outside GPT-2's alphabet: a byte in ByT5, otherwise UTF-8."""
    return sign.encode("latin-1") if ord(sign) < 0x100 else sign.encode()


def spell(tokens: Sequence[str]) -> tuple[list[int], list[int], str]:
    """Return the start and stop of each token in characters, and the text.

    A token that contains part of a character counts as containing all of it.

    Raises:
        TypeError: for anything but strings.
        ValueError: for vocabulary entries, which are not text.
    """
    _check(tokens)
    pieces = [_bytes(token) for token in tokens]
    text = b"".join(pieces).decode(errors="surrogateescape")
    # End of each character and of each token, in bytes.
    signs = list(accumulate(len(sign.encode(errors="surrogateescape")) for sign in text))
    stops = list(accumulate(map(len, pieces)))
    starts = [bisect_right(signs, start) for start in (0, *stops[:-1])]
    ends = [bisect_left(signs, stop) + 1 if stop else 0 for stop in stops]
    return starts, ends, text


def displayable(data: bytes) -> str:
    r"""Decode UTF-8, writing bytes of incomplete characters as hexadecimal.

    >>> displayable("é".encode() + b"\xe4")
    'é<0xE4>'
    """
    return "".join(
        f"<0x{ord(sign) - 0xDC00:02X}>" if 0xDC80 <= ord(sign) <= 0xDCFF else sign
        for sign in data.decode(errors="surrogateescape")
    )


def _check(tokens: Sequence[str]) -> None:
    """Refuse anything but a list of strings, and vocabulary entries.

    Vocabulary entries contain no white space, but the characters that stand for it.
    """
    is_list = isinstance(tokens, (list, tuple))
    if not is_list or not all(isinstance(token, str) for token in tokens):
        raise TypeError(
            f"tokens must be a list of strings, one for each token, but is {short_repr(tokens)}; "
            "of a recording, give those of one sequence: recording.tokens[0]"
        )
    written = next((token for token in tokens[1:] if _VOCABULARY.search(token)), None)
    if written is not None and not any(re.search(r"\s", token) for token in tokens):
        raise ValueError(
            f"tokens: {written!r} is how a vocabulary writes a token, not what it spells; give "
            "regard.record.token_names(tokenizer, ids)"
        )


def _bytes(token: str) -> bytes:
    parts = _BYTE.split(token)  # text and hexadecimal digits in turn
    return b"".join(
        bytes.fromhex(part) if place % 2 else part.encode(errors="replace")
        for place, part in enumerate(parts)
    )


def _byte_of() -> dict[str, bytes]:
    """Return the byte of each character of GPT-2's alphabet of 256 printable characters.

    Printable Latin-1 stands for itself; the other bytes, in order, are the characters from
    U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = printable + [256 + i for i in range(len(others))]
    return {chr(sign): bytes([byte]) for sign, byte in zip(signs, printable + others, strict=True)}


BYTE_OF = _byte_of()
"""The byte of each character of GPT-2's alphabet."""
