"""`regard train`."""

from pathlib import Path
from signal import SIGTERM
from typing import Annotated

import typer

from regard.cli.device import device_of
from regard.cli.errors import MisuseError, telling, telling_of_memory
from regard.cli.options import Given, takes
from regard.cli.text import UTF8Only
from regard.errors import Error
from regard.gpt import (
    Callback,
    GPTConfig,
    TensorBoard,
    TrainConfig,
    TrainResult,
    parameter_counts,
    recipe_of,
)
from regard.gpt import train as train_model
from regard.gpt.checkpoint import holds_model
from regard.gpt.training.ranks import init_distributed, is_main_process
from regard.gpt.training.signals import Terminated

__all__ = ["train"]


@takes(gpt=GPTConfig, train=TrainConfig)
def train(
    *,
    gpt: Given[GPTConfig],
    train: Given[TrainConfig],
    out: Annotated[Path, typer.Option(help="Folder to keep the model in.", metavar="DIR")],
    text: Annotated[
        Path | None,
        typer.Option(
            help="UTF-8 text file, or a folder of them; without it, the text that Python carries.",
            metavar="PATH",
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="In place of --text: a folder that regard prepare made.", metavar="CORPUS_DIR"
        ),
    ] = None,
    utf8_only: UTF8Only = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the latest checkpoint in DIR, by the recipe it has."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model that DIR holds.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write for TensorBoard too, to DIR/tensorboard.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            help="Where to train: cpu, or an accelerator such as cuda, of which each process under "
            "torchrun takes its own.",
        ),
    ] = "cpu",
) -> None:
    """Train a GPT on text and keep it in a folder.

    Ctrl-C, or a SIGTERM, ends it early, with status 130 or 143, and keeps the latest model; before
    the first update it changes nothing.
    Whatever ends it, --resume goes on from the latest checkpoint.

    Examples:
    regard train --out runs/mine --text book.txt --steps 1000

    regard train --out runs/mine --config recipe.toml

    regard train --out runs/mine --resume

    torchrun --nnodes 2 --rdzv-endpoint first:29400 -m regard.train --out shared/mine
    """
    if out.exists() and not out.is_dir():
        raise MisuseError(f"{out} is a file: give --out a folder")
    if text is not None and corpus is not None:
        raise MisuseError("the text is given twice: leave out --text, or --corpus")
    if resume and overwrite:
        raise MisuseError("--resume goes on and --overwrite begins anew: leave out one of them")
    if holds_model(out) and not overwrite and not resume:
        raise MisuseError(
            f"{out} already holds a model: choose another --out, or add --overwrite, or go on with "
            "its run by --resume"
        )
    place = device_of(device)
    with (
        telling_of_memory("lower --batch and raise --accumulate, or choose a smaller model"),
        telling(Error, OSError, ValueError, ModuleNotFoundError, tell=train.told),
        init_distributed(place) as place,
    ):
        before = recipe_of(out) if resume else (None, None)
        callbacks: list[Callback] = []
        if tensorboard and is_main_process():
            callbacks.append(TensorBoard(out / "tensorboard"))
        try:
            training = train_model(
                out,
                texts=text,
                corpus=corpus,
                gpt=gpt.over(before[0]),
                config=train.over(before[1]),
                resume=resume,
                overwrite=overwrite,
                utf8_only=utf8_only,
                device=place,
                callbacks=callbacks,
            )
        except Terminated:  # before there was anything to keep, or twice
            raise typer.Exit(128 + SIGTERM) from None
        leads = is_main_process()
    if leads:
        _tell(out, training)
    if training.signal is not None:
        raise typer.Exit(128 + training.signal)


def _tell(out: Path, training: TrainResult) -> None:
    loss = training.record["validation_loss"]
    measured = "" if loss is None else f", validation loss {loss:.4f}"
    total = parameter_counts(training.model.config).total
    typer.echo(f"{out}: {total:,} parameters, {training.record['step']} updates{measured}")
