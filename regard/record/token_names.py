"""Names of token ids: what each token spells in a text, not how a vocabulary writes it.

GPT-2's vocabulary writes the bytes of a text in an alphabet of its own, in which a space is ``Ġ``;
SentencePiece's writes a space as ``▁``; WordPiece's marks the tokens that continue a word. What is
shown of a text, and measured in its characters, is the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from reprlib import repr as short_repr
from typing import Any

import torch

from regard._arguments import check_integers
from regard.record.spelling import BYTE_OF, displayable

__all__ = ["TokenNames", "token_names"]

_WORD = "x"  # which every vocabulary writes as it is
_LAST = 2**31 - 1  # no vocabulary goes so far, nor do all libraries' integers go further
_LOST = "\N{REPLACEMENT CHARACTER}"


def token_names(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """What each token spells within a text, with its spaces and newlines.

    Args:
        tokenizer: one of `transformers`, of `tokenizers` or of `regard.gpt`, or any object that has
            ``convert_ids_to_tokens``, ``id_to_token`` or ``tokens``.
        ids: the tokens of one sequence.

    Returns:
        A string for each id, the same wherever it stands. Part of a character is shown as its
        bytes, such as ``<0xE4>``; special and added tokens as they are. A word of WordPiece has the
        space before it that its decoder writes, and one that continues a word has none.

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
    """Names ids as `token_names` does, each spelled once.

    Args:
        tokenizer: as for `token_names`.

    Raises:
        TypeError: as for `token_names`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._written = _written(tokenizer)
        inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._decode = _decoder(tokenizer, inner)
        # CLIP's decoder leaves the end of a word as it stands in the vocabulary.
        self._end = getattr(getattr(inner, "model", None), "end_of_word_suffix", None) or ""
        self._added = _added(tokenizer, inner)
        self._known: dict[int, str] = {}
        self._is_bytes = self._decode("Ã", "©") == "é"
        # Decoders strip the spaces around a text, which are here those of a token, so each token is
        # decoded between two words; of WordPiece after one, whose words have a space before them.
        self._after = _WORD if self._decode(_WORD, _WORD) == 2 * _WORD else ""

    def __call__(self, ids: Iterable[int]) -> list[str]:
        """The name of each id."""
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
        # Part of a character is lost in decoding, and is written in the vocabulary as <0xE4>.
        if text is None or _LOST in text:
            return written
        if not text.startswith(_WORD) or not text.endswith(self._after):
            return written
        return text[len(_WORD) : len(text) - len(self._after)]


def _whole(ids: Any) -> list[int]:
    """Ids as Python's integers, checked."""
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
    """How a tokenizer's vocabulary writes an id."""
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
    """How a tokenizer makes text of what its vocabulary writes.

    The text is None where it refuses the tokens, such as those of another vocabulary, and where all
    it does is to write a space between any two.
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
    """The ids that are no part of the vocabulary proper, and are written as they are."""
    if (added := getattr(tokenizer, "added_tokens_decoder", None)) is not None:
        return frozenset(added)
    listed = getattr(inner, "get_added_tokens_decoder", None)
    return frozenset(listed() if callable(listed) else ())


def _byte(sign: str) -> bytes:
    """A sign that is not in GPT-2's alphabet: of ByT5 a byte, else itself."""
    return sign.encode("latin-1") if ord(sign) < 0x100 else sign.encode()
