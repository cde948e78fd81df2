"""`regard generate`."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from regard.cli.device import Device, device_of
from regard.cli.errors import MisuseError, telling, telling_of_memory
from regard.cli.options import Given, takes
from regard.cli.text import read_text
from regard.gpt import CheckpointError, Sampling, load, stream_texts

if TYPE_CHECKING:
    from regard.gpt.generate import Past

__all__ = ["generate"]


@takes(sampling=Sampling)
def generate(
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to continue, each on its own; - reads standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Continue the text of this file.", metavar="FILE")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to add at most.")] = 100,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End a text before this string; may be given often.", metavar="TEXT"),
    ] = None,
    past: Annotated[
        str,
        typer.Option(
            help="Past the model's context: let the oldest tokens go, or refuse.",
            metavar="slide|refuse",
        ),
    ] = "slide",
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a model, a GPT-2 of transformers included; without it, the one that "
            "comes with regard.",
            metavar="DIR",
        ),
    ] = None,
    device: Device = "cpu",
    sampling: Given[Sampling],
) -> None:
    """Continue texts, one token after another.

    Several texts are drawn together and shown one below the other, a blank line between.

    Example: regard generate "The with statement" --tokens 50 --temperature 0.8
    """
    asked_for: list[str | None] = [*prompt] if prompt else [None]
    given = [text for one in asked_for if (text := read_text(one, file)) is not None]
    if not given:
        raise MisuseError("there is no text to continue: give some, or --file FILE, or - for stdin")
    drawing, place = sampling.over(), device_of(device)
    with telling(CheckpointError, OSError):
        network, tokenizer = load(model, device=place)
    with telling_of_memory("lower --tokens, or give fewer texts"), telling(ValueError):
        pieces = stream_texts(
            network,
            tokenizer,
            given,
            tokens=tokens,
            sampling=drawing,
            past=cast("Past", past),  # a word that is neither is refused
            stop=stop or [],
        )
        first = next(pieces, None)  # a model whose logits are no numbers is told before any output
    with telling(ValueError):
        _show(given, pieces if first is None else chain([first], pieces))


def _show(prompts: list[str], pieces: Iterator[tuple[int, str]]) -> None:
    """The first text as it is drawn; the others, which grow beside it, when it has ended."""
    texts = list(prompts)
    typer.echo(prompts[0], nl=False)
    for row, piece in pieces:
        texts[row] += piece
        if row == 0:
            typer.echo(piece, nl=False)
    typer.echo()
    for text in texts[1:]:
        typer.echo(f"\n{text}")
