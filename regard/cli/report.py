"""`regard report`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.device import Device
from regard.cli.model import Fetch, Model, Weights
from regard.cli.subject import (
    Live,
    Shown,
    one_name,
    print_notes,
    require_float,
    subject_of,
    write_report,
)
from regard.cli.text import read_text, require_other_file

__all__ = ["report"]


def report(
    shown: Shown = None,
    text: Annotated[str | None, typer.Option(help="Text to look into.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="File with the text to look into.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="File to write; one that is there is replaced.", metavar="FILE")
    ] = Path("report.html"),
    model: Model = None,
    device: Device = "cpu",
    weights: Weights = None,
    *,
    live: Live = False,
    fetch: Fetch = False,
) -> None:
    """Write the explorer's page as one HTML file that opens offline.

    Every weight is recomputed in the page, which says how exactly.

    With --live the model runs in it: type other texts, generate, switch heads off.

    Examples:
    regard report --text "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard report runs/mine --file notes.txt --out notes.html

    regard report --live --out live.html
    """
    require_float(live=live, weights=weights)
    require_other_file(file, out, "--out")
    name, opened = one_name(shown, model), read_text(text, file)
    subject = subject_of(name, opened, fetch=fetch, device=device, weights=weights)
    line = write_report(subject, out, live=live)
    if opened is not None:
        print_notes(subject)
    typer.echo(line)
