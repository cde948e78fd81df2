"""`regard train`."""

import shlex
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated

import click

from regard._importing import importing
from regard.cli.checks import require_device
from regard.cli.errors import MisuseError, memory_errors, naming_options, user_errors
from regard.cli.options import Overrides, config_options
from regard.cli.parameters import Option
from regard.cli.text import UTF8Only
from regard.errors import Error
from regard.gpt.config import GPTConfig
from regard.gpt.folder import holds_model
from regard.gpt.training.config import TrainConfig

if TYPE_CHECKING:
    from regard.gpt import Callback, TrainResult

__all__ = ["train"]


@config_options(gpt=GPTConfig, train=TrainConfig)
def train(
    *,
    gpt: Overrides[GPTConfig],
    train: Overrides[TrainConfig],
    out: Annotated[Path, Option(help="Folder to write the model to.", metavar="DIR")],
    text: Annotated[
        Path | None,
        Option(
            help="UTF-8 text file, or a folder of them; without it, the documentation in Python.",
            metavar="PATH",
            exists=True,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        Option(
            help="In place of --text: a folder that regard prepare made.",
            metavar="CORPUS_DIR",
            exists=True,
        ),
    ] = None,
    utf8_only: UTF8Only = False,
    resume: Annotated[
        bool,
        Option("--resume", help="Resume from the latest checkpoint in DIR, with its recipe."),
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the model that DIR holds.")
    ] = False,
    tensorboard: Annotated[
        bool, Option("--tensorboard", help="Write for TensorBoard too, to DIR/tensorboard.")
    ] = False,
    device: Annotated[
        str,
        Option(
            help="Where to train: cpu, or an accelerator such as cuda, of which each process under "
            "torchrun uses its own.",
        ),
    ] = "cpu",
) -> None:
    """Train a GPT on text and write it to a folder.

    Ctrl-C, or a SIGTERM, stops it, with status 130 or 143, and keeps the latest model; before the
    first update nothing is kept.
    After any interruption, --resume continues from the latest checkpoint.

    Examples:
    regard train --out runs/mine --text book.txt --steps 1000

    regard train --out runs/mine --config recipe.toml

    regard train --out runs/mine --resume

    torchrun --nnodes 2 --rdzv-endpoint first:29400 -m regard train --out shared/mine
    """
    if out.exists() and not out.is_dir():
        raise MisuseError(f"{out} is a file: give --out a folder")
    if text is not None and corpus is not None:
        raise MisuseError("the text is given twice: leave out --text, or --corpus")
    if resume and overwrite:
        raise MisuseError("--resume and --overwrite exclude each other: leave out one of them")
    if holds_model(out) and not overwrite and not resume:
        raise MisuseError(
            f"{out} already holds a model: choose another --out, or add --overwrite, or go on with "
            "its training run by --resume"
        )
    require_device(device)
    if not resume:  # else the options are changes of the run's own recipe
        gpt.apply()
        train.apply()
    with importing():
        from regard.cli.device import device_of
        from regard.gpt import TensorBoard, recipe_of
        from regard.gpt import train as train_model
        from regard.gpt.training.ranks import init_distributed, is_main_process
        from regard.gpt.training.signals import Terminated

    chosen_device = device_of(device)
    of_tokenizer = naming_options("vocab_size")  # the argument's name in Python
    with (
        memory_errors("lower --batch and raise --accumulate, or choose a smaller model"),
        user_errors(
            *(Error, OSError, ValueError, ModuleNotFoundError),
            rewrite=lambda message: train.with_option_names(
                of_tokenizer(message.replace("overwrite=True", "--overwrite"))
            ),
        ),
        init_distributed(chosen_device) as own_device,
    ):
        before = recipe_of(out) if resume else (None, None)
        callbacks: list[Callback] = []
        if tensorboard and is_main_process():
            callbacks.append(TensorBoard(out / "tensorboard"))
        try:
            result = train_model(
                out,
                texts=text,
                corpus=corpus,
                gpt=gpt.apply(before[0]),
                config=train.apply(before[1]),
                resume=resume,
                overwrite=overwrite,
                utf8_only=utf8_only,
                device=own_device,
                callbacks=callbacks,
            )
        except Terminated:  # before the first update, or sent twice
            raise click.exceptions.Exit(128 + SIGTERM) from None
        is_main = is_main_process()
    if is_main:
        _print_summary(out, result)
    if result.signal is not None:
        raise click.exceptions.Exit(128 + result.signal)


def _print_summary(out: Path, result: "TrainResult") -> None:
    from regard.gpt import parameter_counts

    loss = result.record["validation_loss"]
    measured = "" if loss is None else f", validation loss {loss:.4f}"
    total = parameter_counts(result.model.config).total
    steps = result.record["step"]
    made = f"{steps} update{'' if steps == 1 else 's'}"
    click.echo(f"{out}: {total:,} parameters, {made}{measured}")
    folder = shlex.quote(str(out))
    resumed = f"regard train --out {folder} --resume"
    click.echo(f"Next: {resumed if result.interrupted else f'regard explore --model {folder}'}")
