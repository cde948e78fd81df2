"""Arguments and options that several commands share, without imports of torch."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.gpt.config import HAS_READ

__all__ = ["SHIPPED", "Device", "Fetch", "Model", "Shown", "Weights"]

SHIPPED = "the model that comes with regard"

Shown = Annotated[
    str | None,
    typer.Argument(
        help="Folder of a recording; or a model, as --model names it.",
        metavar="[RECORDING_DIR | MODEL]",
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        help="Folder of a model, or name of a GPT-2 of the Hugging Face hub, such as "
        f"openai-community/gpt2; by default {SHIPPED}. {HAS_READ}",
        metavar="DIR|NAME",
    ),
]

Fetch = Annotated[
    bool,
    typer.Option("--fetch", help="Fetch a model of the hub that is not on this machine yet."),
]

Weights = Annotated[
    str | None,
    typer.Option(
        help="Keep the matrices as int8, in a quarter of the memory; by default float32.",
        metavar="int8",
    ),
]

Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, or an accelerator such as cuda or cuda:1.")
]
