"""`regard explain`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from regard._interrupt import quiet_interrupts
from regard.cli.arguments import Device, Fetch, Model, Weights
from regard.cli.errors import MisuseError, user_errors
from regard.cli.text import read_text
from regard.page.example import EXAMPLE

__all__ = ["explain"]


def explain(
    text: Annotated[
        str | None,
        typer.Argument(help="Text to explain; - reads standard input; by default an example."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Explain the text of this file.", metavar="FILE")
    ] = None,
    model: Model = None,
    layer: Annotated[
        int | None, typer.Option(help="With --head: show one head, step by step; from 0.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="The head of that layer; from 0.")] = None,
    query: Annotated[
        int | None, typer.Option(help="Token whose keys are shown; from 0; by default the last.")
    ] = None,
    chunk: Annotated[
        int, typer.Option(help="Which piece of a text longer than the model's context; from 0.")
    ] = 0,
    device: Device = "cpu",
    weights: Weights = None,
    *,
    fetch: Fetch = False,
) -> None:
    """Show what each token of a text attends to.

    For the whole model: what was found, what every head does, the strongest keys of one token.

    For one head: the strongest keys of every token, and the computation step by step.

    Score: strength of the role compared with controls, ± the 95 % interval, over so many queries.

    Previous, first, current: mean weight on the previous, the first and the current token.

    Induction, duplicate: mean weight after earlier copies of the token, and on the copies.

    Spread: entropy as a fraction of the highest possible. Distance: mean, in tokens.

    Examples:
    regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard explain --file notes.txt --layer 2 --head 1 --query 7
    """
    if (layer is None) != (head is None):
        raise MisuseError("--layer and --head go together: give both, or neither")
    with quiet_interrupts():
        from regard.cli.device import device_of
        from regard.cli.model import about, head_steps, open_model, read
        from regard.view.report import all_heads, one_head

    place = device_of(device)
    content = read_text(text, file)
    network, tokenizer = open_model(model, fetch=fetch, device=place, weights=weights)
    with user_errors(ValueError):  # a character that this tokenizer has no token for
        whole = tokenizer.encode(EXAMPLE if content is None else content)
    config = network.config
    chunks = [whole[i : i + config.context] for i in range(0, len(whole), config.context)]
    ids = chunks[_number("--chunk", chunk, len(chunks), "the text makes chunks")]
    query = len(ids) - 1 if query is None else query
    _number("--query", query, len(ids), "this text has tokens")

    notes = ["no text given: this is an example"] if content is None else []
    if len(chunks) > 1:
        notes.append(
            f"the text has {len(whole)} tokens and the context {config.context}: it is cut into "
            f"{len(chunks)} chunks, and this is --chunk {chunk} of 0 … {len(chunks) - 1}"
        )
    with user_errors(ValueError):  # of a model whose logits are NaN
        result = read(network, tokenizer, ids)
    if layer is None or head is None:
        report = all_heads(result, query)
    else:
        _number("--layer", layer, config.layers, "the model has layers")
        _number("--head", head, config.heads, "a layer has heads")
        chosen = result.heads.at(layer, head)
        report = one_head(result, chosen, head_steps(network, ids, layer, head), query)

    console = Console(highlight=False)
    for note in [*about(model, network, result, ids, query), *notes]:
        console.print(Text(note, "dim"))
    for renderable in report:
        console.print(renderable)


def _number(option: str, value: int, count: int, what: str) -> int:
    if not 0 <= value < count:
        has = f"0 … {count - 1}" if count > 1 else "0 only"
        raise MisuseError(f"there is no {option} {value}: {what} {has}")
    return value
