"""`regard explore`."""

import gc
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from regard._interrupt import quiet_interrupts
from regard.cli.arguments import Device, Fetch, Model, Shown, Weights
from regard.cli.errors import user_errors
from regard.cli.text import read_text

__all__ = ["explore"]


def explore(
    shown: Shown = None,
    text: Annotated[str | None, typer.Option(help="Text that is open at first.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="File whose text is open at first.", metavar="FILE")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes one that is free.", min=0, max=65535)
    ] = 0,
    model: Model = None,
    device: Device = "cpu",
    weights: Weights = None,
    *,
    fetch: Fetch = False,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show what every token attends to on a page, at any length, until interrupted.

    Examples:
    regard explore --text "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard explore runs/mine --file notes.txt
    """
    with quiet_interrupts():
        from regard.cli.subject import one_name, print_notes, subject_of
        from regard.page import Explorer

    name, opened = one_name(shown, model), read_text(text, file)
    subject = subject_of(name, opened, fetch=fetch, device=device, weights=weights)
    with user_errors(OSError):
        explorer = Explorer(subject, host=host, port=port)
    if opened is not None:
        print_notes(subject)
    gc.freeze()  # searching what is loaded for garbage would pause answers for 0.1 s
    typer.echo(f"{explorer.url}  (Ctrl-C ends)")
    if explorer.is_everywhere:
        typer.echo(
            "Other machines reach it, without a password, at this machine's own addresses, port "
            f"{explorer.port}"
        )
    if open_page:
        webbrowser.open(explorer.url)
    try:
        explorer.serve()
    except KeyboardInterrupt:
        if explorer.computing:  # native code can't be interrupted
            sys.stdout.flush()
            os._exit(130)
        raise
