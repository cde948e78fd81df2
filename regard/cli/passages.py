"""`regard passages`."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from regard._importing import importing
from regard.cli.arguments import Chat, Device, Dtype, Fetch, Model, System, Weights
from regard.cli.checks import require_choice, require_model
from regard.cli.errors import MisuseError, memory_errors, user_errors
from regard.cli.text import as_unicode, read_text
from regard.errors import Error

if TYPE_CHECKING:
    from regard.lens import Effects, Passage, SpanWeights
    from regard.lens.spans.links import Span
    from regard.models import LanguageModel

__all__ = ["passages"]

_UNLIKELY = 0.05  # probability a token below which a given answer is called poor; docs/passages.md


def passages(
    context: Annotated[
        Path, typer.Option(help="Document, Markdown or plain text.", metavar="FILE")
    ],
    question: Annotated[str, typer.Option(help="What follows the document.")],
    model: Model = None,
    answer: Annotated[
        str | None,
        typer.Option(help="Answer to explain; by default the model's own, token by token."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the model's own answer at most.")] = 16,
    neutral: Annotated[
        str,
        typer.Option(
            help="Text in place of question and of answer, of the run that weights are less.",
            metavar="TEXT",
        ),
    ] = "N/A",
    hidden_from: Annotated[
        str,
        typer.Option(
            help="Hide passages from question and answer, or from the answer alone.",
            metavar="question|answer",
        ),
    ] = "question",
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    *,
    chat: Chat = False,
    system: System = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    fetch: Fetch = False,
) -> None:
    """Show which parts of a document an answer looked at, and which it needed.

    The document is split into paragraphs and headings. Of each stand the weight less that under a
    neutral question, the weight itself, and what the answer's log-probability loses without it.

    Document and question are what the model reads; with --chat they are a message to it.

    Example: regard passages --context notes.md --question "When was it built?" --model NAME --chat
    """
    _check(hidden_from, tokens, answer, neutral)
    question, neutral = as_unicode(question, "--question"), as_unicode(neutral, "--neutral")
    answer = None if answer is None else as_unicode(answer, "--answer")
    document = (read_text(None, context) or "").rstrip()
    if not document:
        raise MisuseError(f"{context} holds white space alone: give a file with text")
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        import torch
        from rich.console import Console
        from rich.text import Text

        from regard import lens
        from regard.cli.device import device_of
        from regard.cli.model import has_read, open_model, require_next_token
        from regard.lens.effect.caveats import hybrid_note
        from regard.lens.spans.weights import read_passages
        from regard.view.passages_report import passages_report

    place = device_of(device)
    opened = open_model(model, fetch=fetch, device=place, weights=weights, dtype=dtype)
    require_next_token(opened, "passages")
    reading = _Reading(opened, f"{document}\n\n{question}", chat=chat, system=system)
    with memory_errors("give a shorter document, or a smaller model"):
        encoded, span = reading.with_answer(answer, tokens)
        parts = lens.split_passages(document, encoded.offsets, start=reading.start)
        # Raised for NaN in the logits, or attention that cannot be recorded.
        with user_errors(ValueError, Error), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "tokens reach", RuntimeWarning)  # `note` says it
            ids, target = torch.tensor(encoded.ids, device=place), lens.Answer(slice(*span))
            other, place_of_other = reading.with_neutral(document, neutral)
            of_other = torch.tensor(other.ids, device=place), lens.Answer(slice(*place_of_other))
            looked = read_passages(opened.module, ids, parts, target, neutral=of_other)
            effects = lens.effects(
                opened.module,
                ids,
                target,
                over=parts,
                hidden_from=cast("Literal['question', 'answer']", hidden_from),
            )
    said = opened.tokenizer.decode(encoded.ids[slice(*span)])
    note = hybrid_note(opened.module)
    read = None
    if opened.has_read is not None:
        read = has_read(opened, encoded.ids[: span[0]], math.exp(effects.unchanged))
    poor = None if answer is None else _poor(effects.unchanged, span)
    notes = [line for line in (read, poor, note) if line is not None]
    if as_json:
        content = {"answer": said, **_as_dict(parts, looked, effects, span)}
        for line in notes:
            typer.echo(f"regard: {line}", err=True)
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(Text(f"{opened.name}: {len(encoded.ids)} tokens", "dim"))
    for line in notes:
        console.print(Text(line, "dim"))
    for renderable in passages_report(parts, looked, effects, said, neutral):
        console.print(renderable)


def _check(hidden_from: str, tokens: int, answer: str | None, neutral: str) -> None:
    """Reject options without a meaning."""
    require_choice("--hidden-from", hidden_from, ("question", "answer"))
    if tokens < 1:
        raise MisuseError(f"--tokens must be at least 1, but is {tokens}")
    if answer is not None and not answer.strip():
        raise MisuseError("--answer is empty: give a word, or leave it out")
    if not neutral.strip():
        raise MisuseError("--neutral is empty: give a word, or leave it out")


def _poor(log_probability: float, answer: Span) -> str | None:
    """Say if the model would hardly give an answer: by the geometric mean over its tokens."""
    probability = math.exp(log_probability / (answer[1] - answer[0]))
    if probability >= _UNLIKELY:
        return None
    return (
        f"the model would hardly give this answer: log p {log_probability:.1f}, a probability of "
        f"{probability:.1g} a token; where the weights of such an answer lie says less"
    )


def _as_dict(
    parts: tuple[Passage, ...], weights: SpanWeights, effects: Effects, answer: Span
) -> dict[str, Any]:
    """Return all numbers except those of single heads, for JSON."""
    means, rows = weights.mean.tolist(), []
    differences, changes = weights.difference.tolist(), effects.values.tolist()
    for part, difference, weight, effect in zip(parts, differences, means, changes, strict=False):
        first, stop = part.tokens
        start_character, stop_character = part.characters or (None, None)
        rows.append(
            {
                "first": first,
                "stop": stop,
                "start_character": start_character,
                "stop_character": stop_character,
                "difference": difference,
                "weight": weight,
                "text": part.text,
                "effect": effect,
            }
        )
    sinks, elsewhere = means[-2:]
    return {
        "answer_tokens": list(answer),
        "log_probability": effects.unchanged,
        "without_any": effects.without_all,
        "hidden_from": list(effects.hidden_from or ()),
        "layers": list(weights.layers),
        "heads": list(weights.heads),
        "sinks": sinks,
        "sink_keys": [first for first, _ in weights.keys[-2]],
        "elsewhere": elsewhere,
        "passages": rows,
    }


class _Encoded(NamedTuple):
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    """Start and stop of each token, in characters of the text."""


class _Reading:
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
        from regard.cli.model import prompt_of

        self._model, self._chat, self._system = model, chat, system
        self._prompt = prompt_of(model, content, chat=chat, system=system)
        self._text = self._prompt.text
        if self._text.count(content) != 1:
            raise MisuseError(
                "the model's chat template changes the document, so its passages cannot be placed; "
                "give a document without white space at its ends"
            )
        self.start = self._text.index(content)
        """Index in the text of the document's first character."""

    def with_answer(self, answer: str | None, tokens: int) -> tuple[_Encoded, Span]:
        """Return the tokens of the text with its answer, and the span of the answer."""
        if answer is None:
            return self._own_answer(tokens)
        text = self._text
        apart = self._chat or text[-1:].isspace() or answer[:1].isspace()
        whole = self._model.read(f"{text}{'' if apart else ' '}{answer}", special=not self._chat)
        self._require_room(len(whole), "give a shorter document")
        own = [number for number, (_, stop) in enumerate(whole.offsets) if stop > len(text)]
        return _Encoded(whole.ids, whole.offsets), (own[0], own[-1] + 1)

    def with_neutral(self, document: str, neutral: str) -> tuple[_Encoded, Span]:
        """Return the same with question and answer replaced by a neutral text."""
        content = f"{document}\n\n{neutral}"
        try:
            other = _Reading(self._model, content, chat=self._chat, system=self._system)
            return other.with_answer(neutral, 1)
        except MisuseError as error:
            raise MisuseError(f"{error}; --neutral is {neutral}: give another text") from None

    def _own_answer(self, tokens: int) -> tuple[_Encoded, Span]:
        from regard.gpt import Sampling

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
        whole = _Encoded((*prompt.ids, *own), (*prompt.offsets, *[end] * len(own)))
        return whole, (len(prompt), len(whole.ids))

    def _require_room(self, length: int, cure: str) -> None:
        context = self._model.context
        if context is not None and length > context:
            raise MisuseError(
                f"document, question and answer have {length} tokens, but the model's context is "
                f"{context}: {cure}"
            )
