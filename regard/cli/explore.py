"""`regard explore`."""

from __future__ import annotations

import gc
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import click

from regard._importing import importing
from regard.cli.arguments import (
    Chat,
    Device,
    Dtype,
    Fetch,
    Model,
    NoBos,
    RecordingFolder,
    System,
    Weights,
)
from regard.cli.checks import Asked, require_between, require_text
from regard.cli.errors import user_errors
from regard.cli.parameters import Argument, Option
from regard.cli.text import read_text

__all__ = ["explore"]


def explore(
    text: Annotated[
        str | None, Argument(help="Text that is open at first; - reads standard input.")
    ] = None,
    file: Annotated[
        Path | None, Option(help="File whose text is open at first.", metavar="FILE")
    ] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 takes one that is free.")] = 0,
    model: Model = None,
    recording: RecordingFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    *,
    fetch: Fetch = False,
    chat: Chat = False,
    system: System = None,
    no_bos: NoBos = False,
    open_page: Annotated[
        bool, Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show what every token attends to on a page, at any length, until interrupted.

    Examples:
    regard explore "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard explore --model HuggingFaceTB/SmolLM2-135M "The capital of France is"

    regard explore --model runs/mine --file notes.txt
    """
    require_text("explore", text, model)
    require_between("--port", port, 0, 65535)
    opened = read_text(text, file)
    asked = Asked(
        recording=recording,
        text=opened,
        model=model,
        fetch=fetch,
        device=device,
        dtype=dtype,
        weights=weights,
        chat=chat,
        system=system,
        no_bos=no_bos,
    )
    with importing():
        from regard.cli.subject import print_notes, subject_of
        from regard.page import Explorer

    subject = subject_of(asked)
    with user_errors(OSError):
        explorer = Explorer(subject, host=host, port=port)
    if opened is not None:
        print_notes(subject)
    gc.freeze()  # searching what is loaded for garbage would pause answers for 0.1 s
    click.echo(f"{explorer.url}  (Ctrl-C ends)")
    if explorer.is_everywhere:
        click.echo(
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
