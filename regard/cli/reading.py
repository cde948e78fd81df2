"""What a model reads of a document and a question about it, and what it answers."""

from __future__ import annotations

from typing import NamedTuple

from regard.cli.errors import MisuseError, user_errors
from regard.cli.model import prompt_of
from regard.gpt import Sampling
from regard.lens.spans.links import Span
from regard.models import LanguageModel

__all__ = ["Encoded", "Reading"]


class Encoded(NamedTuple):
    """Tokens, and where each stands in the text."""

    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    """Start and stop of each token, in characters of the text."""


class Reading:
    """What a model reads of a document and a question, and its answer.

    Args:
        model: the model.
        content: document and question.
        chat: whether they are a message, which the model's template surrounds.
        system: what the system says there.
    """

    def __init__(
        self, model: LanguageModel, content: str, *, chat: bool, system: str | None
    ) -> None:
        self._model, self._chat, self._system = model, chat, system
        self._prompt = prompt_of(model, content, chat=chat, system=system)
        self._text = self._prompt.text
        count = self._text.count(content)
        if count == 0:
            raise MisuseError(
                "the model's chat template changes document and question, so that tokens cannot be "
                "placed; give a --question without white space at its end"
            )
        if count > 1:
            raise MisuseError(
                "document and question stand in the model's prompt more than once, so that tokens "
                "cannot be placed; give a --system that does not repeat them"
            )
        self.start = self._text.index(content)
        """Index in the text of the document's first character."""

    @property
    def text(self) -> str:
        """Document and question as the model reads them."""
        return self._text

    def with_answer(self, answer: str | None, tokens: int) -> tuple[Encoded, Span]:
        """Return the tokens of the text with its answer, and the span of the answer."""
        if answer is None:
            return self._own_answer(tokens)
        text = self._text
        apart = self._chat or text[-1:].isspace() or answer[:1].isspace()
        whole = self._model.read(f"{text}{'' if apart else ' '}{answer}", special=not self._chat)
        self._require_room(len(whole), "give a shorter document")
        own = [number for number, (_, stop) in enumerate(whole.offsets) if stop > len(text)]
        return Encoded(whole.ids, whole.offsets), (own[0], own[-1] + 1)

    def with_neutral(self, document: str, neutral: str) -> tuple[Encoded, Span]:
        """Return the same with question and answer replaced by a neutral text."""
        content = f"{document}\n\n{neutral}"
        try:
            other = Reading(self._model, content, chat=self._chat, system=self._system)
            return other.with_answer(neutral, 1)
        except MisuseError as error:
            raise MisuseError(f"{error}; --neutral is {neutral}: give another text") from None

    def _own_answer(self, tokens: int) -> tuple[Encoded, Span]:
        prompt = self._prompt
        self._require_room(len(prompt) + tokens, "give a shorter document or fewer --tokens")
        greedy = Sampling(temperature=0.0)
        with user_errors(ValueError):  # of a model whose logits are NaN
            drawn = list(self._model.stream(prompt.ids, tokens=tokens, sampling=greedy))
        ends = [number for number, token in enumerate(drawn) if token in self._model.ends]
        own = drawn[: ends[0]] if ends else drawn
        if not own:
            raise MisuseError("the model ends the text at once: give --answer TEXT")
        end = (len(self._text), len(self._text))
        whole = Encoded((*prompt.ids, *own), (*prompt.offsets, *[end] * len(own)))
        return whole, (len(prompt), len(whole.ids))

    def _require_room(self, length: int, cure: str) -> None:
        context = self._model.context
        if context is not None and length > context:
            raise MisuseError(
                f"document, question and answer have {length} tokens, but the model's context is "
                f"{context}: {cure}"
            )
