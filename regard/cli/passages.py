"""`regard passages`."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.text import Text

from regard._interrupt import quiet_interrupts
from regard.cli.arguments import SHIPPED, Device, Fetch, Model, Weights
from regard.cli.errors import MisuseError, memory_errors, user_errors
from regard.cli.text import as_unicode, read_text
from regard.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

    from regard.cli.reader import Encoded, Reader
    from regard.gpt import GPT
    from regard.lens import Effects, Passage, SpanWeights
    from regard.lens.spans.links import Span

__all__ = ["passages"]


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
    hidden_from: Annotated[
        str,
        typer.Option(
            help="Hide passages from question and answer, or from the answer alone.",
            metavar="question|answer",
        ),
    ] = "question",
    device: Device = "cpu",
    weights: Weights = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    fetch: Fetch = False,
) -> None:
    """Show which parts of a document an answer looked at, and which it needed.

    The document is split into paragraphs and headings. The weight of each stands beside what the
    answer's log-probability loses without it.

    The model is one of regard, or a causal language model of transformers in a folder whose
    attention can be recorded.

    Example: regard passages --context notes.md --question "When was it built?" --model DIR
    """
    if hidden_from not in ("question", "answer"):
        raise MisuseError(f"--hidden-from must be question or answer, but is {hidden_from}")
    if tokens < 1:
        raise MisuseError(f"--tokens must be at least 1, but is {tokens}")
    if answer is not None and not answer.strip():
        raise MisuseError("--answer is empty: give a word, or leave it out")
    question = as_unicode(question, "--question")
    answer = None if answer is None else as_unicode(answer, "--answer")
    with quiet_interrupts():
        import torch

        from regard import lens
        from regard.cli.device import device_of
        from regard.cli.model import has_read
        from regard.cli.reader import open_reader
        from regard.lens.effect.caveats import hybrid_note
        from regard.view.passages_report import passages_report

    place = device_of(device)
    document = (read_text(None, context) or "").rstrip()
    if not document:
        raise MisuseError(f"{context} holds white space alone: give a file with text")
    reader = open_reader(model, fetch=fetch, device=place, weights=weights)
    text, start = _prompt(reader, document, question)
    with memory_errors("give a shorter document, or a smaller model"):
        encoded, span = _with_answer(reader, text, answer, tokens)
        parts = lens.split_passages(document, encoded.offsets, start=start)
        # Raised for NaN in the logits, or attention that cannot be recorded.
        with user_errors(ValueError, Error), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "tokens reach", RuntimeWarning)  # `note` says it
            ids, target = torch.tensor(encoded.ids, device=place), lens.Answer(slice(*span))
            looked = _weights(reader, ids, parts, target.queries(len(ids)))
            effects = lens.effects(
                reader.model,
                ids,
                target,
                over=parts,
                hidden_from=cast("Literal['question', 'answer']", hidden_from),
            )
    said, note = reader.decode(encoded.ids[slice(*span)]), hybrid_note(reader.model)
    read = None
    if getattr(reader.model, "has_read", None) is not None:  # a model of this package
        probability = math.exp(effects.unchanged)
        read = has_read(cast("GPT", reader.model), encoded.ids[: span[0]], probability)
    notes = [line for line in (read, note) if line is not None]
    if as_json:
        content = {"answer": said, **_as_dict(parts, looked, effects, span)}
        for line in notes:
            typer.echo(f"regard: {line}", err=True)
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(Text(f"{model or SHIPPED}: {len(encoded.ids)} tokens", "dim"))
    for line in notes:
        console.print(Text(line, "dim"))
    for renderable in passages_report(parts, looked, effects, said):
        console.print(renderable)


def _weights(reader: Reader, ids: Tensor, parts: tuple[Passage, ...], queries: Span) -> SpanWeights:
    """Read the weights on passages while the model runs, since a recording would keep all keys."""
    import torch

    from regard.intercept import last_logits, takes_logits_to_keep
    from regard.lens.spans.weights import passage_readouts, share_out
    from regard.record import read_while_running

    last = last_logits(1) if takes_logits_to_keep(reader.model) else {}
    reading = read_while_running(reader.model, *passage_readouts(queries))
    with torch.inference_mode(), reading as readings:
        reader.model(ids[None], **last)
    return share_out(readings.of_kind().layers, parts, queries)


def _as_dict(
    parts: tuple[Passage, ...], weights: SpanWeights, effects: Effects, answer: Span
) -> dict[str, Any]:
    """Return all numbers except those of single heads, for JSON."""
    means, rows = weights.mean.tolist(), []
    for part, weight, effect in zip(parts, means, effects.values.tolist(), strict=False):
        first, stop = part.tokens
        start_character, stop_character = part.characters or (None, None)
        rows.append(
            {
                "first": first,
                "stop": stop,
                "start_character": start_character,
                "stop_character": stop_character,
                "weight": weight,
                "text": part.text,
                "effect": effect,
            }
        )
    first_token, sinks, elsewhere = means[-3:]
    return {
        "answer_tokens": list(answer),
        "log_probability": effects.unchanged,
        "without_any": effects.without_all,
        "hidden_from": list(effects.hidden_from or ()),
        "layers": list(weights.layers),
        "heads": list(weights.heads),
        "first_token": first_token,
        "sinks": sinks,
        "sink_keys": [first for first, _ in weights.keys[-2]],
        "elsewhere": elsewhere,
        "passages": rows,
    }


def _prompt(reader: Reader, document: str, question: str) -> tuple[str, int]:
    """Return the prompt, and the index in it of the document's first character."""
    content = f"{document}\n\n{question}"
    text = reader.prompt(content)
    if text.count(content) != 1:
        raise MisuseError(
            "the model's chat template changes the document, so its passages cannot be placed; "
            "give a document without white space at its ends"
        )
    return text, text.index(content)


def _with_answer(
    reader: Reader, text: str, answer: str | None, tokens: int
) -> tuple[Encoded, Span]:
    """Return the tokens of a prompt with its answer, and the span of the answer."""
    from regard.cli.reader import Encoded

    if answer is None:
        prompt = reader.encode(text)
        _require_room(reader, len(prompt.ids) + tokens, "give a shorter document or fewer --tokens")
        own = reader.answer(prompt.ids, tokens)
        if not own:
            raise MisuseError("the model ends the text at once: give --answer TEXT")
        end = (len(text), len(text))
        whole = Encoded([*prompt.ids, *own], [*prompt.offsets, *[end] * len(own)])
        return whole, (len(prompt.ids), len(whole.ids))
    apart = reader.is_chat or text[-1:].isspace() or answer[:1].isspace()
    whole = reader.encode(f"{text}{'' if apart else ' '}{answer}")
    _require_room(reader, len(whole.ids), "give a shorter document")
    own = [number for number, (_, stop) in enumerate(whole.offsets) if stop > len(text)]
    return whole, (own[0], own[-1] + 1)


def _require_room(reader: Reader, length: int, cure: str) -> None:
    if reader.context is not None and length > reader.context:
        raise MisuseError(
            f"document, question and answer have {length} tokens, but the model's context is "
            f"{reader.context}: {cure}"
        )
