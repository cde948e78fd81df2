"""`regard trace`."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click

from regard._files import replace_file
from regard._importing import importing
from regard.cli.arguments import SHIPPED, Chat, Device, Dtype, Fetch, System, Weights
from regard.cli.checks import require_choice, require_model
from regard.cli.errors import MisuseError, memory_errors, user_errors
from regard.cli.parameters import Argument, Option
from regard.cli.text import as_unicode, read_text
from regard.errors import Error
from regard.gpt.config import HAS_READ

if TYPE_CHECKING:
    import torch

    from regard.cli.reading import Encoded, Reading
    from regard.lens import Answer, Deletion, Effects, Passage, SpanWeights, Trace
    from regard.lens.spans.links import Span
    from regard.models import LanguageModel
    from regard.view.trace_report import TracedText

__all__ = ["trace"]

_UNLIKELY = 0.05  # probability a token below which a given answer is called poor; docs/trace.md
_MEASURES = ("attention", "difference", "moved", "toward")
_HOPS, _STEPS, _HIDDEN_FROM = 1, 6, "question"


def trace(
    model: Annotated[
        str | None,
        Argument(
            help="A language model: its name on the Hugging Face hub, a folder, a .gguf file, "
            f"ollama:NAME, or smollm2; by default {SHIPPED}. {HAS_READ}",
        ),
    ] = None,
    *,
    file: Annotated[Path, Option(help="Document, Markdown or plain text.", metavar="FILE")],
    question: Annotated[str, Option(help="What follows the document.")],
    answer: Annotated[
        str | None,
        Option(help="Answer to explain; by default the model's own, token by token."),
    ] = None,
    by: Annotated[
        str,
        Option(
            help="Colour each token, or list paragraphs with what the answer needs of each.",
            metavar="tokens|passages",
        ),
    ] = "tokens",
    measure: Annotated[
        str | None,
        Option(
            help="Of tokens: what colours and ranks them in the terminal; by default moved.",
            metavar="attention|difference|moved|toward",
        ),
    ] = None,
    hops: Annotated[
        int | None,
        Option(
            help="Of tokens: how often what falls on question and answer is propagated to where "
            "those looked; by default once. 0 is what the answer took directly."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        Option(
            help="Of tokens: how many numbers of them are deleted, in every order, a forward pass "
            "each; by default 6. 0 leaves the curves out."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="Of tokens: write all of it as one HTML file, which opens offline.",
            metavar="FILE",
        ),
    ] = None,
    tokens: Annotated[int, Option(help="Tokens of the model's own answer at most.")] = 16,
    neutral: Annotated[
        str,
        Option(
            help="Text in place of question and answer in the run whose weights are subtracted.",
            metavar="TEXT",
        ),
    ] = "N/A",
    hidden_from: Annotated[
        str | None,
        Option(
            help="Of passages: hide them from question and answer, as by default, or from the "
            "answer alone.",
            metavar="question|answer",
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    chat: Chat = False,
    system: System = None,
    as_json: Annotated[bool, Option("--json", help="Print all numbers as JSON.")] = False,
    fetch: Fetch = False,
) -> None:
    """Show what an answer took from each token or passage of a document, and what it needed.

    By tokens: what each gave to the answer by its weights, by what heads moved, and toward the
    answer, directly and through question and answer; and what the answer loses without the first.

    By passages, which are paragraphs and headings: the weight less that under a neutral question,
    the weight itself, and what the answer's log-probability loses without it.

    Document and question are what the model reads; with --chat they are a message to it.

    Examples:
    regard trace smollm2 --file notes.md --question "When was it built?" --out trace.html

    regard trace NAME --file notes.md --question "When was it built?" --by passages --chat
    """
    _check(by, measure, hops, steps, out, hidden_from, tokens, answer, neutral)
    question, neutral = as_unicode(question, "--question"), as_unicode(neutral, "--neutral")
    answer = None if answer is None else as_unicode(answer, "--answer")
    document = (read_text(None, file) or "").rstrip()
    if not document:
        raise MisuseError(f"{file} holds white space alone: give a file with text")
    if out is not None and out.exists() and file.samefile(out):
        raise MisuseError(f"--out {out} is the document, which would be lost: name another")
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        from regard.cli.device import device_of
        from regard.cli.model import open_model, require_next_token
        from regard.cli.reading import Reading

    place = device_of(device)
    opened = open_model(model, fetch=fetch, device=place, weights=weights, dtype=dtype)
    require_next_token(opened, "trace")
    reading = Reading(opened, f"{document}\n\n{question}", chat=chat, system=system)
    with memory_errors("give a shorter document, or a smaller model"):
        encoded, span = reading.with_answer(answer, tokens)
        asked = _Asked(opened, reading, document, question, neutral, encoded, span, place)
        if by == "passages":
            found: _Tokens | _Passages = _passages(asked, hidden_from or _HIDDEN_FROM)
        else:
            chosen = _HOPS if hops is None else hops, _STEPS if steps is None else steps
            found = _tokens(asked, measure, *chosen)
    if out is not None and isinstance(found, _Tokens):
        found.write(out, asked)
    lines = asked.notes(found.log_probability, given=answer is not None)
    if as_json:
        for line in lines:
            click.echo(f"regard: {line}", err=True)
        content = {"answer": asked.said, "answer_tokens": list(span), **found.as_dict()}
        click.echo(json.dumps(content, ensure_ascii=False))
    else:
        _print(asked, lines, found)
        if out is not None:
            click.echo(f"{out}: {out.stat().st_size / 1e6:.2f} MB, opens offline in a browser")


def _print(asked: _Asked, lines: list[str], found: _Tokens | _Passages) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{asked.model.name}: {len(asked.encoded.ids)} tokens", "dim"))
    for line in lines:
        console.print(Text(line, "dim"))
    for renderable in found.report():
        console.print(renderable)


def _check(
    by: str,
    measure: str | None,
    hops: int | None,
    steps: int | None,
    out: Path | None,
    hidden_from: str | None,
    tokens: int,
    answer: str | None,
    neutral: str,
) -> None:
    """Reject options without a meaning."""
    require_choice("--by", by, ("tokens", "passages"))
    of_tokens = {"--measure": measure, "--hops": hops, "--steps": steps, "--out": out}
    for name, value in (of_tokens if by == "passages" else {"--hidden-from": hidden_from}).items():
        if value is not None:
            other = "tokens" if by == "passages" else "passages"
            raise MisuseError(f"{name} goes with --by {other}, and --by is {by}: leave out one")
    if hidden_from is not None:
        require_choice("--hidden-from", hidden_from, ("question", "answer"))
    if measure is not None:
        require_choice("--measure", measure, _MEASURES)
    if out is not None:
        _check_out(out)
    for name, number, least in (
        ("--hops", hops, 0),
        ("--steps", steps, 0),
        ("--tokens", tokens, 1),
    ):
        if number is not None and number < least:
            raise MisuseError(f"{name} must be at least {least}, but is {number}")
    if answer is not None and not answer.strip():
        raise MisuseError("--answer is empty: give a word, or leave it out")
    if not neutral.strip():
        raise MisuseError("--neutral is empty: give a word, or leave it out")


def _check_out(out: Path) -> None:
    if not out.parent.is_dir():
        raise MisuseError(f"--out {out} is in no folder that exists: make it first")
    if out.is_dir():
        raise MisuseError(f"--out {out} is a folder: name a file, such as {out / 'trace.html'}")


@dataclass(frozen=True)
class _Asked:
    """A model, a document, a question and an answer, in tokens."""

    model: LanguageModel
    reading: Reading
    document: str
    question: str
    neutral: str
    encoded: Encoded
    span: Span
    """Start and stop of the answer."""
    place: torch.device

    @cached_property
    def ids(self) -> torch.Tensor:
        import torch

        return torch.tensor(self.encoded.ids, device=self.place)

    @cached_property
    def target(self) -> Answer:
        from regard.lens import Answer

        return Answer(slice(*self.span))

    @cached_property
    def of_neutral(self) -> tuple[torch.Tensor, Answer]:
        """Tokens and answer of the neutral run."""
        import torch

        from regard.lens import Answer

        other, span = self.reading.with_neutral(self.document, self.neutral)
        return torch.tensor(other.ids, device=self.place), Answer(slice(*span))

    @cached_property
    def said(self) -> str:
        """The answer."""
        said: str = self.model.tokenizer.decode(self.encoded.ids[slice(*self.span)])
        return said

    @property
    def document_tokens(self) -> Span:
        """Start and stop of the tokens that hold a character of the document."""
        start, stop = self.reading.start, self.reading.start + len(self.document)
        own = [
            at
            for at, (first, last) in enumerate(self.encoded.offsets[: self.span[0]])
            if first < stop and last > start
        ]
        return own[0], own[-1] + 1

    @property
    def pieces(self) -> list[str]:
        """What each token adds to the text."""
        text, end, pieces = self.reading.text, 0, []
        for _, stop in self.encoded.offsets:
            last = min(stop, len(text))
            pieces.append(text[end:last])
            end = max(end, last)
        if self.encoded.offsets[self.span[0]][1] <= len(text):  # the model's own: it has no places
            pieces[slice(*self.span)] = self._own_pieces()
        return pieces

    def _own_pieces(self) -> list[str]:
        """What each token of the model's own answer adds; nothing before a character is whole."""
        decode, ids = self.model.tokenizer.decode, self.encoded.ids
        first = max(0, self.span[0] - 4)  # a decoder strips the space that begins a text
        shown, pieces = len(decode(ids[first : self.span[0]])), []
        for stop in range(self.span[0] + 1, self.span[1] + 1):
            whole = decode(ids[first:stop]).rstrip("\ufffd")
            pieces.append(whole[shown:])
            shown = max(shown, len(whole))
        return pieces

    def notes(self, log_probability: float, *, given: bool) -> list[str]:
        """Say what is to be known of the model, and of an answer that was given."""
        from regard.cli.model import has_read
        from regard.lens.effect.caveats import hybrid_note

        read = None
        if self.model.has_read is not None:
            ids = self.encoded.ids[: self.span[0]]
            read = has_read(self.model, ids, math.exp(log_probability))
        poor = _poor(log_probability, self.span) if given else None
        return [line for line in (read, poor, hybrid_note(self.model.module)) if line is not None]


@dataclass(frozen=True)
class _Tokens:
    """What is shown by tokens."""

    found: Trace
    lost: Deletion | None
    log_probability: float
    text: TracedText
    measure: str
    offsets: tuple[Span, ...]
    """Start and stop of each token of the document, in its characters."""

    def report(self) -> Any:
        """Render it."""
        from regard.view.trace_report import trace_report

        return trace_report(self.text, self.measure)

    def write(self, out: Path, asked: _Asked) -> None:
        """Write the page."""
        from regard.view.trace_page import trace_page

        page = trace_page(self.text, asked.model.name, asked.question)
        try:
            replace_file(out, page.encode())
        except OSError as error:
            why = f"{out} cannot be written: {error.strerror}"
            raise MisuseError(f"{why}; choose another --out FILE") from None

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers; those of each token by hops, from none on."""
        first, stop = self.found.document
        shares = {name: values.T.tolist() for name, values in self.found.shares.items()}
        lost = self.lost
        return {
            "log_probability": self.log_probability,
            "hops": self.found.hops,
            "forwards": self.text.forwards,
            "sinks": list(self.found.sinks),
            "missing": dict(self.found.missing),
            "between": {
                name: [self.found.between(name, at) for at in range(self.found.hops + 1)]
                for name in shares
                if name != "difference"
            },
            "tokens": [
                {
                    "token": at,
                    "text": self.found.tokens[at],
                    "start_character": offset[0],
                    "stop_character": offset[1],
                    **{name: values[at] for name, values in shares.items()},
                }
                for at, offset in zip(range(first, stop), self.offsets, strict=True)
            ],
            "deleted": None
            if lost is None
            else {
                "counts": list(lost.counts),
                "changes": {name: values.tolist() for name, values in lost.changes.items()},
                "means": lost.means,
            },
        }


def _tokens(asked: _Asked, measure: str | None, hops: int, steps: int) -> _Tokens:
    """Trace the answer to the tokens of the document."""
    from regard import lens
    from regard.lens.trace import log_probability
    from regard.view.trace_report import TracedText, order_name

    first, stop = asked.document_tokens
    with user_errors(ValueError, Error):
        found = lens.trace(
            *(asked.model, asked.ids, asked.target, (first, stop)),
            hops=hops,
            neutral=asked.of_neutral,
        )
        orders = {
            order_name(name, at): found.ranked(name, at)
            for at in sorted({0, hops})
            for name in found.shares
        }
        if measure is not None and measure in found.missing:
            raise MisuseError(
                f"--measure {measure} is not known of this model: {found.missing[measure]}; give "
                "--measure attention"
            )
        measure = measure or ("moved" if "moved" in found.shares else "attention")
        lost = None
        if steps and len(next(iter(orders.values()))) > 1:
            lost = lens.deletion(asked.model, asked.ids, asked.target, orders, steps=steps)
        if lost is None:
            log = log_probability(asked.model, asked.ids, asked.target)
        else:
            log = lost.log_probability
    text = TracedText(
        found=found,
        pieces=asked.pieces,
        answer=asked.said,
        neutral=asked.neutral,
        lost=lost,
        forwards=2 + ("toward" in found.shares) + (1 if lost is None else lost.forwards),
    )
    start, size = asked.reading.start, len(asked.document)
    offsets = tuple(
        (min(max(a - start, 0), size), min(max(b - start, 0), size))
        for a, b in asked.encoded.offsets[first:stop]
    )
    return _Tokens(found, lost, log, text, measure, offsets)


@dataclass(frozen=True)
class _Passages:
    """What is shown by passages."""

    parts: tuple[Passage, ...]
    weights: SpanWeights
    effects: Effects
    said: str
    neutral: str

    @property
    def log_probability(self) -> float:
        """Of the answer, in nats."""
        return self.effects.unchanged

    def report(self) -> Any:
        """Render it."""
        from regard.view.passages_report import passages_report

        return passages_report(self.parts, self.weights, self.effects, self.said, self.neutral)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers except those of single heads."""
        return _as_dict(self.parts, self.weights, self.effects)


def _passages(asked: _Asked, hidden_from: str) -> _Passages:
    """Measure what the answer looked at and needed of each passage."""
    from regard import lens
    from regard.lens.spans.weights import read_passages

    parts = lens.split_passages(asked.document, asked.encoded.offsets, start=asked.reading.start)
    # Raised for NaN in the logits, or attention that cannot be recorded.
    with user_errors(ValueError, Error), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tokens reach", RuntimeWarning)  # a note says it
        module, ids = asked.model.module, asked.ids
        looked = read_passages(module, ids, parts, asked.target, neutral=asked.of_neutral)
        effects = lens.effects(
            module,
            ids,
            asked.target,
            over=parts,
            hidden_from=cast("Literal['question', 'answer']", hidden_from),
        )
    return _Passages(parts, looked, effects, asked.said, asked.neutral)


def _poor(log_probability: float, answer: Span) -> str | None:
    """Say if the model would hardly give an answer: by the geometric mean over its tokens."""
    probability = math.exp(log_probability / (answer[1] - answer[0]))
    if probability >= _UNLIKELY:
        return None
    return (
        f"the model would hardly give this answer: log p {log_probability:.1f}, a probability of "
        f"{probability:.1g} a token; where the weights of such an answer lie says less"
    )


def _as_dict(parts: tuple[Passage, ...], weights: SpanWeights, effects: Effects) -> dict[str, Any]:
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
