"""`regard explain`."""

from pathlib import Path
from typing import Annotated

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
    View,
    Weights,
)
from regard.cli.checks import (
    listing_of,
    require_indices,
    require_model,
    require_text,
    require_view,
)
from regard.cli.errors import MisuseError, user_errors
from regard.cli.parameters import Argument, Option
from regard.cli.text import read_text

__all__ = ["explain"]


def explain(
    text: Annotated[
        str | None,
        Argument(help="Text to explain; - reads standard input; by default an example."),
    ] = None,
    file: Annotated[
        Path | None, Option(help="Explain the text of this file.", metavar="FILE")
    ] = None,
    model: Model = None,
    layer: Annotated[
        int | None, Option(help="With --head: show one head, step by step; from 0.")
    ] = None,
    head: Annotated[int | None, Option(help="The head of that layer; from 0.")] = None,
    query: Annotated[
        int | None, Option(help="Token whose keys are shown; from 0; by default the last.")
    ] = None,
    chunk: Annotated[
        int, Option(help="Which piece of a text longer than the model's context; from 0.")
    ] = 0,
    view: View = "weight",
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
    """Show what each token of a text attends to.

    For the whole model: what was found, what every head does, the strongest keys of one token.

    For one head: the strongest keys of every token, and the computation step by step.

    Score: strength of the role compared with controls, ± the 95 % interval, over so many queries.

    Resting: mean weight on the keys on which the head rests. First: on the first token. All other
    columns are of the weight beside the keys on which it rests.

    Previous, current, next: mean weight on the previous, the current and the next token.

    Induction, duplicate: mean weight after earlier copies of the token, and on the copies.
    Separator: on punctuation and special tokens.

    Spread: entropy as a fraction of the highest possible. Distance: mean, in tokens.

    Examples:
    regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard explain --file notes.txt --layer 2 --head 1 --query 7

    regard explain --model HuggingFaceTB/SmolLM2-135M "The capital of France is"
    """
    if (layer is None) != (head is None):
        raise MisuseError("--layer and --head go together: give both, or neither")
    if head is not None and (role, sort) != (None, None):
        raise MisuseError("--role and --sort are for tables of heads, and --head shows one")
    require_indices({"--layer": layer, "--head": head, "--query": query, "--chunk": chunk})
    require_text("explain", text, model)
    listing = listing_of(role, sort)
    require_view(view)
    content = read_text(text, file)
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        from rich.console import Console
        from rich.text import Text

        from regard.cli.device import device_of
        from regard.cli.model import (
            about,
            added_note,
            entries_of,
            head_of_prediction,
            head_steps,
            needed_heads,
            open_model,
            prompt_of,
            read,
        )
        from regard.page.example import examples_for
        from regard.view.report import all_heads, one_head

    place = device_of(device)
    opened = open_model(model, fetch=fetch, device=place, weights=weights, dtype=dtype)
    example = next(iter(examples_for(opened).values()))
    prompt = prompt_of(
        opened, example if content is None else content, chat=chat, system=system, bos=not no_bos
    )
    size = opened.context or len(prompt)
    chunks = [prompt.ids[i : i + size] for i in range(0, len(prompt), size)]
    ids = chunks[_number("--chunk", chunk, len(chunks), "the text makes chunks")]
    query = len(ids) - 1 if query is None else query
    _number("--query", query, len(ids), "this text has tokens")

    notes = ["no text given: this is an example"] if content is None else []
    notes += added_note(prompt)
    if len(chunks) > 1:
        notes.append(
            f"the text has {len(prompt)} tokens and the context {size}: it is cut into "
            f"{len(chunks)} chunks, and this is --chunk {chunk} of 0 … {len(chunks) - 1}"
        )
    added = prompt.added[chunk * size : (chunk + 1) * size]
    with user_errors(ValueError):  # of a model whose logits are NaN
        result, logits = read(opened, ids, query)
    entries = entries_of(opened, ids, query, view)
    if layer is None or head is None:
        needed = needed_heads(opened, len(result.heads), ids[: query + 1], logits)
        by = head_of_prediction(opened, ids[: query + 1], logits)
        report = all_heads(result, query, added, needed, listing, by, entries)
    else:
        _number("--layer", layer, len(result.layers), "the model has layers")
        _number("--head", head, len(result.layers[layer].heads), "a layer has heads")
        chosen = result.heads.at(layer, head)
        steps = head_steps(opened, ids, layer, head, without_sink=view == "without")
        report = one_head(result, chosen, steps, query, entries)

    console = Console(highlight=False)
    for note in [*about(opened, result, ids, query), *notes]:
        console.print(Text(note, "dim"))
    for renderable in report:
        console.print(renderable)


def _number(option: str, value: int, count: int, what: str) -> int:
    if not 0 <= value < count:
        has = f"0 … {count - 1}" if count > 1 else "0 only"
        raise MisuseError(f"there is no {option} {value}: {what} {has}")
    return value
