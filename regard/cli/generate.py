"""`regard generate`."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, cast

import click

from regard._importing import importing
from regard.cli.arguments import Chat, Device, Dtype, Fetch, Model, NoBos, System, Weights
from regard.cli.checks import require_choice, require_model, require_text
from regard.cli.errors import MisuseError, memory_errors, naming_options, user_errors
from regard.cli.options import Overrides, config_options
from regard.cli.parameters import Argument, Option
from regard.cli.text import as_unicode, read_text
from regard.gpt.config import Sampling

if TYPE_CHECKING:
    from regard.gpt import GPT, Tokenizer
    from regard.gpt.generate import Past
    from regard.models import LanguageModel

__all__ = ["generate"]

_SHOWN = 40  # maximum characters of a text in a note


@config_options(sampling=Sampling)
def generate(
    *,
    prompt: Annotated[
        tuple[str, ...],
        Argument(help="Texts to continue, each by itself; - reads standard input."),
    ] = (),
    file: Annotated[
        Path | None, Option(help="Continue the text of this file.", metavar="FILE")
    ] = None,
    tokens: Annotated[int, Option(help="How many tokens to add at most.")] = 400,
    stop: Annotated[
        tuple[str, ...],
        Option(help="End a text before this string; may be repeated.", metavar="TEXT"),
    ] = (),
    past: Annotated[
        str,
        Option(
            help="Past the context of a model of regard: drop the oldest tokens, or refuse.",
            metavar="slide|refuse",
        ),
    ] = "slide",
    model: Model = None,
    fetch: Fetch = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    chat: Chat = False,
    system: System = None,
    no_bos: NoBos = False,
    sampling: Overrides[Sampling],
) -> None:
    """Continue texts, one token after another.

    Several texts are continued together and shown one below the other, with a blank line between.

    With --chat each text is a message, and the answer alone is shown.

    Examples:
    regard generate "Once upon a time" --temperature 0.5

    regard generate --model HuggingFaceTB/SmolLM2-135M-Instruct --chat "What is a llama?"
    """
    arguments: list[str | None] = [*prompt] if prompt else [None]
    prompts = [text for one in arguments if (text := read_text(one, file)) is not None]
    if not prompts:
        raise MisuseError(
            "the text to continue is missing: write it here, or --file FILE, or - for stdin"
        )
    ends = [as_unicode(end, "--stop") for end in stop]
    settings = sampling.apply()
    if tokens < 0:
        raise MisuseError(f"--tokens is {tokens}; expected 0 or more")
    require_choice("--past", past, ("slide", "refuse"))
    require_text("generate", arguments[0] if len(arguments) == 1 else None, model)
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        from regard.cli.device import device_of
        from regard.cli.model import open_model, prompt_of, require_next_token
        from regard.gpt import Engine, stream_texts

    place = device_of(device)
    opened = open_model(model, fetch=fetch, device=place, weights=weights, dtype=dtype)
    require_next_token(opened, "generate")
    if not opened.is_own:
        if past != "slide":
            raise MisuseError(f"--past {past} is for models of regard: leave it out")
        for number, text in enumerate(prompts):
            read = prompt_of(opened, text, chat=chat, system=system, bos=not no_bos)
            with (
                memory_errors("lower --tokens, or give a shorter text"),
                user_errors(ValueError, rewrite=naming_options("tokens", "stop")),
            ):
                drawn = opened.stream_text(read.ids, tokens=tokens, sampling=settings, stop=ends)
                begun = next(drawn, "")  # fails before any output where logits are NaN
                click.echo(("\n" if number else "") + ("" if chat else text) + begun, nl=False)
                for piece in drawn:
                    click.echo(piece, nl=False)
            click.echo()
        return
    if chat or system is not None:
        prompt_of(
            opened, prompts[0], chat=chat, system=system
        )  # which says that it has no template
    network, tokenizer = cast("GPT", opened.module), cast("Tokenizer", opened.tokenizer)
    with (
        memory_errors("lower --tokens, or give fewer texts"),
        user_errors(ValueError, rewrite=naming_options("tokens", "past", "stop")),
    ):
        pieces = stream_texts(
            Engine(network) if Engine.objection(network) is None else network,
            tokenizer,
            prompts,
            tokens=tokens,
            sampling=settings,
            past=cast("Past", past),  # checked above
            stop=ends,
        )
        first = next(pieces, None)  # fails before any output where logits are NaN
    with user_errors(ValueError):
        _show(prompts, pieces if first is None else chain([first], pieces))
    if opened.has_read is not None:
        _note_what_it_has_read(opened, prompts)


def _note_what_it_has_read(model: "LanguageModel", prompts: list[str]) -> None:
    """Print a note on each text unlike the training text; if there is none, what that was."""
    from regard.cli.model import has_read
    from regard.gpt.outside import NOTE

    notes = {text: has_read(model, model.read(text).ids) for text in prompts}
    outside = [text for text, note in notes.items() if note == NOTE]
    for text in outside:
        start = shorten(text, _SHOWN, placeholder=" …")
        of = "" if len(prompts) == 1 else f"{start!r}: "
        click.echo(f"regard: {of}{NOTE}", err=True)
    if not outside:
        click.echo(f"regard: {model.has_read}", err=True)


def _show(prompts: list[str], pieces: Iterator[tuple[int, str]]) -> None:
    """Print the first text while it is generated, and the others afterwards."""
    texts = list(prompts)
    click.echo(prompts[0], nl=False)
    for row, piece in pieces:
        texts[row] += piece
        if row == 0:
            click.echo(piece, nl=False)
    click.echo()
    for text in texts[1:]:
        click.echo(f"\n{text}")
