"""Byte-level byte-pair encoding, as in GPT-2, on the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard._extras import catching_panics
from regard.gpt.folder import TOKENIZER
from regard.gpt.tokenizer import Tokenizer, checked, require_utf8
from regard.record.token_names import BYTE_OF, displayable

END = "<|endoftext|>"
"""The token that ends a document, by GPT-2's name for it."""

_BYTES, _MOST = 256, 1 << 24


class BPETokenizer(Tokenizer):
    """Byte-level BPE: it encodes any text, and decoding returns exactly that text.

    The first 256 tokens are the bytes; each further one joins two earlier ones. Get one from
    `BPETokenizer.train` or `BPETokenizer.load`.

    Args:
        inner: a byte-level BPE of the `tokenizers` library.

    Raises:
        ValueError: `inner` is another kind of tokenizer.

    Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016);
    on bytes: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), 2.2.

    >>> tokenizer = BPETokenizer.train(["the cat, the hat, the mat"], vocab_size=260)
    >>> tokenizer.tokens(tokenizer.encode("the mat"))
    ['the', ' ', 'm', 'at']
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        byte_level = isinstance(inner.pre_tokenizer, pre_tokenizers.ByteLevel)
        if not isinstance(inner.model, models.BPE) or not byte_level:
            raise ValueError(
                f"inner is a {type(inner.model).__name__} tokenizer; expected byte-level BPE"
            )
        highest = max(inner.get_vocab().values(), default=-1)
        if highest >= inner.get_vocab_size():
            raise ValueError(
                f"inner has {inner.get_vocab_size()} tokens and ids up to {highest}; expected ids "
                "without a gap"
            )
        self._inner = inner
        added = inner.get_added_tokens_decoder()  # these are not in the byte alphabet
        self._data = [
            added[i].content.encode()
            if i in added
            else b"".join(BYTE_OF.get(c) or c.encode() for c in inner.id_to_token(i) or "")
            for i in range(inner.get_vocab_size())
        ]

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, end: bool = False) -> Self:
        """Learn a vocabulary from texts.

        Args:
            texts: the texts, each one whole or in pieces.
            vocab_size: V, 256 to 2**24; the result is smaller if no pair is left to join.
            end: whether the last token is `END`, which ends a document. As with GPT-2, these
                characters in a text are encoded as that token.

        Raises:
            ValueError: `vocab_size` is below 256, or 257 with `end`, or above 2**24; or a text
                holds half of a surrogate pair, which UTF-8 cannot express.
            TypeError: `texts` is a str.
        """
        if isinstance(texts, str):
            raise TypeError("texts is a str; expected a list of texts, such as [text]")
        least = _BYTES + end
        if vocab_size > _MOST:  # the library would run out of memory and abort the process
            raise ValueError(f"vocab_size is {vocab_size}; expected at most {_MOST}")
        if vocab_size < least:
            raise ValueError(
                f"vocab_size is {vocab_size}; expected at least {least}, one token a byte"
                f"{' and one that ends a document' if end else ''}"
            )
        inner = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - end,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(_in_utf8(texts), trainer)
        if end:
            inner.add_special_tokens([END])
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        """V: the number of tokens."""
        return len(self._data)

    @property
    def end(self) -> int | None:
        """The id of `END`; None where the vocabulary has no such token."""
        end: int | None = self._inner.token_to_id(END)
        return end

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            ValueError: `text` holds half of a surrogate pair, which UTF-8 cannot express.
        """
        require_utf8(text)
        return list(self._inner.encode(text).ids)

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the ids of each of some texts, by all threads; `ValueError` as for `encode`."""
        for number, text in enumerate(texts):
            require_utf8(text, f"texts[{number}]")
        encodings = self._inner.encode_batch_fast(list(texts))
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; `ValueError` for an id outside the vocabulary.

        Bytes of an incomplete character are decoded as U+FFFD.
        """
        return self._bytes(ids).decode(errors="replace")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The text of each id; a token that is part of a character shows its bytes, as `<0xE2>`.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        return [displayable(self._bytes([i])) for i in ids]

    def to_json(self) -> str:
        """Return the tokenizer in the `tokenizers` library's own format."""
        return str(self._inner.to_str())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The tokenizer that `to_json` wrote; `ValueError` where `text` is something else."""
        try:
            with catching_panics():
                inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
            raise ValueError(f"not a tokenizer of the tokenizers library: {error}") from None
        inner.no_truncation()  # a finetuned model's file may enable it; text would be lost
        inner.no_padding()
        return cls(inner)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the tokenizer in `folder`; `ValueError` if it is of another kind."""
        return cls.from_json(Path(folder, TOKENIZER).read_text("utf-8"))

    @classmethod
    def from_files(cls, vocabulary: str | Path, merges: str | Path) -> Self:
        """GPT-2's tokenizer from its two original files.

        Args:
            vocabulary: `vocab.json`: the id of each token.
            merges: `merges.txt`: the pairs to join, one a line.

        Raises:
            ValueError: a file is damaged, or of another kind.
        """
        try:
            with catching_panics():
                model = models.BPE.from_file(str(vocabulary), str(merges))
        except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
            raise ValueError(f"{vocabulary} and {merges} make no BPE: {error}") from None
        inner = _byte_level(model)
        if inner.token_to_id(END) is not None:  # a special token in any context
            inner.add_special_tokens([END])
        return cls(inner)

    def _bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self._data[i] for i in checked(ids, self.vocab_size))


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _in_utf8(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        require_utf8(text, f"texts[{number}]")
        yield text
