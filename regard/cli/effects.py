"""`regard effects`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from regard._interrupt import quiet_interrupts
from regard.cli.arguments import Device, Fetch, Model, Weights
from regard.cli.errors import MisuseError, user_errors
from regard.cli.text import as_unicode, read_text
from regard.page.example import EXAMPLE

if TYPE_CHECKING:
    from regard.gpt import Tokenizer

__all__ = ["effects"]

_OVER: dict[str, tuple[Literal["heads", "keys"], ...]] = {
    "heads": ("heads",),
    "keys": ("keys",),
    "both": ("heads", "keys"),
}


def effects(
    text: Annotated[
        str | None,
        typer.Argument(help="Text to continue; - reads standard input; by default an example."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Continue the text of this file.", metavar="FILE")
    ] = None,
    model: Model = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Next token whose probability is watched; by default the likeliest.",
            metavar="TOKEN",
        ),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            help="Switch off heads, hide tokens (keys), or first the one and then the other.",
            metavar="heads|keys|both",
        ),
    ] = "both",
    device: Device = "cpu",
    weights: Weights = None,
    *,
    fetch: Fetch = False,
) -> None:
    """Show which heads and tokens the prediction of the next token depends on.

    Each head in turn is switched off, and each token hidden from all later ones.

    Δ log p is the change of the prediction without it; a weight says where a head looks.

    Each Δ is of one change alone: if two heads or tokens are redundant, both may be 0.

    The last token's own query still sees it, so that its Δ is 0.

    Examples:
    regard effects "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard effects "Tom had a red kite and a blue drum. Tom wanted the blue" --target " drum"
    """
    if over not in _OVER:
        raise MisuseError(f"--over must be heads, keys or both, but is {over}")
    target = None if target is None else as_unicode(target, "--target")
    with quiet_interrupts():
        import torch

        from regard import lens
        from regard.cli.device import device_of
        from regard.cli.model import about, open_model, read
        from regard.view.effects import effects_report

    place = device_of(device)
    content = read_text(text, file)
    network, tokenizer = open_model(model, fetch=fetch, device=place, weights=weights)
    with user_errors(ValueError):  # a character that this tokenizer has no token for
        whole = tokenizer.encode(EXAMPLE if content is None else content)
        watched = None if target is None else _token(tokenizer, target)
    ids = whole[-network.config.context :]
    with user_errors(ValueError):  # of a model whose logits are NaN
        result = read(network, tokenizer, ids)
    text_ids = torch.tensor(ids, device=place)
    if watched is None:
        with torch.inference_mode():
            watched = int(network(text_ids)[-1].argmax())

    console = Console(highlight=False)
    for note in about(model, network, result, ids, len(ids) - 1):
        console.print(Text(note, "dim"))
    if content is None:
        console.print(Text("no text given: this is an example", "dim"))
    if len(whole) > len(ids):
        note = f"the text has {len(whole)} tokens: its last {len(ids)} are the model's context"
        console.print(Text(note, "dim"))
    number = lens.LogProbability(watched)
    measured = [
        lens.effects(network, text_ids, number, over=what, tokens=tokenizer) for what in _OVER[over]
    ]
    (name,) = tokenizer.tokens([watched])
    for renderable in effects_report(result, name, measured):
        console.print(renderable)


def _token(tokenizer: Tokenizer, target: str) -> int:
    """Return the id of a token by its text.

    Raises:
        MisuseError: if the text is not exactly one token.
    """
    ids = tokenizer.encode(target)
    if len(ids) != 1:
        pieces = ", ".join(map(repr, tokenizer.tokens(ids))) or "none"
        raise MisuseError(
            f"--target {target!r} must be one token, but is {len(ids)}: {pieces}; a word after a "
            "space begins with that space, such as ' on'"
        )
    return ids[0]
