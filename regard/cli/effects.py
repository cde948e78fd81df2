"""`regard effects`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from regard._importing import importing
from regard.cli.arguments import (
    Chat,
    Device,
    Dtype,
    Fetch,
    Model,
    NoBos,
    Role,
    Sort,
    System,
    Weights,
)
from regard.cli.checks import listing_of, require_choice, require_model, require_text
from regard.cli.errors import MisuseError, user_errors
from regard.cli.parameters import Argument, Option
from regard.cli.text import as_unicode, read_text

__all__ = ["effects"]

_OVER: dict[str, tuple[Literal["heads", "keys"], ...]] = {
    "heads": ("heads",),
    "keys": ("keys",),
    "both": ("heads", "keys"),
}


def effects(
    text: Annotated[
        str | None,
        Argument(help="Text to continue; - reads standard input; by default an example."),
    ] = None,
    file: Annotated[
        Path | None, Option(help="Continue the text of this file.", metavar="FILE")
    ] = None,
    model: Model = None,
    target: Annotated[
        str | None,
        Option(
            help="Next token whose probability is watched; by default the likeliest.",
            metavar="TOKEN",
        ),
    ] = None,
    over: Annotated[
        str,
        Option(
            help="Switch off heads, hide tokens (keys), or first the one and then the other.",
            metavar="heads|keys|both",
        ),
    ] = "both",
    role: Role = None,
    sort: Sort = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    *,
    fetch: Fetch = False,
    chat: Chat = False,
    system: System = None,
    no_bos: NoBos = False,
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
    require_choice("--over", over, _OVER)
    if over == "keys" and (role, sort) != (None, None):
        raise MisuseError("--role and --sort are for heads, and --over is keys: leave them out")
    target = None if target is None else as_unicode(target, "--target")
    require_text("effects", text, model)
    listing = listing_of(role, sort)
    content = read_text(text, file)
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        import torch
        from rich.console import Console
        from rich.text import Text

        from regard import lens
        from regard.cli.device import device_of
        from regard.cli.model import (
            about,
            added_note,
            open_model,
            prompt_of,
            read,
            require_next_token,
        )
        from regard.page.example import examples_for
        from regard.view.effects import effects_report

    place = device_of(device)
    opened = open_model(model, fetch=fetch, device=place, weights=weights, dtype=dtype)
    require_next_token(opened, "effects")
    example = next(iter(examples_for(opened).values()))
    prompt = prompt_of(
        opened, example if content is None else content, chat=chat, system=system, bos=not no_bos
    )
    with user_errors(ValueError, rewrite="--target {}".format):
        watched = None if target is None else opened.token(target)
    size = opened.context or len(prompt)
    ids, added = prompt.ids[-size:], prompt.added[-size:]
    with user_errors(ValueError):  # of a model whose logits are NaN
        result, logits = read(opened, ids, len(ids) - 1)
    assert logits is not None, "it has a next token"
    text_ids = torch.tensor(ids, device=place)
    if watched is None:
        watched = int(logits.argmax())

    console = Console(highlight=False)
    for note in [*about(opened, result, ids, len(ids) - 1), *added_note(prompt)]:
        console.print(Text(note, "dim"))
    if content is None:
        console.print(Text("no text given: this is an example", "dim"))
    if len(prompt) > len(ids):
        note = f"the text has {len(prompt)} tokens: its last {len(ids)} are the model's context"
        console.print(Text(note, "dim"))
    number = lens.LogProbability(watched)
    measured = [
        lens.effects(opened, text_ids, number, over=what, tokens=opened.tokenizer)
        for what in _OVER[over]
    ]
    (name,) = opened.tokenizer.tokens([watched])
    for renderable in effects_report(result, name, measured, added, listing):
        console.print(renderable)
