"""The tokenizers of other libraries, and what a model reads of a text: its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.gpt import CheckpointError
from regard.lens.spans.links import Span
from regard.record.token_names import TokenNames

__all__ = ["PretrainedTokenizer", "Prompt", "prompt_of"]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model reads: a text as tokens, with what was added to it.

    Example:
        >>> import regard
        >>> prompt = regard.models.open().read("The cat")
        >>> len(prompt), prompt.offsets
        (2, ((0, 3), (3, 7)))
    """

    text: str
    """The text that is read, the template included."""
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    """Start and stop of each token in characters of the text; equal for one that has none."""
    added: tuple[bool, ...]
    """True for each token that the user did not write: of the template, or a special one."""
    roles: tuple[tuple[str, Span], ...] = ()
    """Who says what: "system" or "user", and start and stop in tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def characters(self, span: Span) -> str:
        """Return the text of a span of tokens."""
        own = self.offsets[slice(*span)]
        return self.text[own[0][0] : own[-1][1]] if own else ""


class PretrainedTokenizer:
    """A tokenizer of transformers as regard uses one; it has the methods of `regard.gpt`'s.

    Args:
        tokenizer: a fast one, which knows the characters of each token.
        name: what it belongs to, for errors.

    Raises:
        CheckpointError: for a tokenizer without offsets.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError(
                f"the tokenizer of {name} does not say which characters a token holds; it needs a "
                "tokenizer.json: tokenizers.Tokenizer writes one"
            )
        self.inner = tokenizer
        self._names = TokenNames(tokenizer)

    @property
    def vocab_size(self) -> int:
        """V: ids run from 0 to V − 1; a model may have more."""
        return len(self.inner)

    @property
    def end(self) -> int | None:
        """The id of the token that ends a document; None for a tokenizer without one."""
        end: int | None = self.inner.eos_token_id
        return end

    @property
    def is_chat(self) -> bool:
        """Whether there is a template for conversations."""
        return self.inner.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        ids: list[int] = self.inner(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids."""
        text: str = self.inner.decode(list(ids))
        return text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each id, as a displayable piece."""
        return self._names(ids)


def prompt_of(
    tokenizer: PretrainedTokenizer,
    text: str,
    *,
    chat: bool,
    system: str | None,
    special: bool,
) -> Prompt:
    """Return what a model reads of a text.

    Args:
        tokenizer: the model's.
        text: what the user wrote.
        chat: whether it is a message, which the tokenizer's template surrounds.
        system: with `chat`, what the system says; None is what the template says by itself.
        special: whether the tokens that the tokenizer adds to every text are added.
    """
    if not chat:
        encoded = tokenizer.inner(
            text, add_special_tokens=special, return_offsets_mapping=True, verbose=False
        )
        marks = encoded.encodings[0].special_tokens_mask
        return Prompt(
            text=text,
            ids=tuple(encoded["input_ids"]),
            offsets=tuple(tuple(one) for one in encoded["offset_mapping"]),
            added=tuple(map(bool, marks)),
        )
    turns = [] if system is None else [{"role": "system", "content": system}]
    whole: str = tokenizer.inner.apply_chat_template(
        [*turns, {"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    encoded = tokenizer.inner(
        whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    offsets = tuple(tuple(one) for one in encoded["offset_mapping"])
    said = [("user", text.strip())] + ([] if system is None else [("system", system.strip())])
    roles = []
    for role, content in said:
        start = whole.rfind(content) if role == "user" else whole.find(content)
        if content and start >= 0:
            roles.append((role, _tokens_of(offsets, start, start + len(content))))
    own = {number for _, span in roles for number in range(*span)}
    return Prompt(
        text=whole,
        ids=tuple(encoded["input_ids"]),
        offsets=offsets,
        added=tuple(number not in own for number in range(len(offsets))),
        roles=tuple(roles),
    )


def _tokens_of(offsets: Sequence[Span], start: int, stop: int) -> Span:
    """Return the tokens that hold a character of a span."""
    held = [n for n, (first, last) in enumerate(offsets) if first < stop and last > start]
    return (held[0], held[-1] + 1) if held else (0, 0)
