"""`regard prepare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import click

from regard._importing import importing
from regard.cli.checks import require_between
from regard.cli.errors import MisuseError, naming_options, user_errors
from regard.cli.parameters import Option
from regard.cli.text import UTF8Only
from regard.errors import Error
from regard.gpt.config import GPTConfig
from regard.gpt.folder import TOKENIZER
from regard.gpt.training.config import TrainConfig

if TYPE_CHECKING:
    from regard.gpt import Tokenizer

__all__ = ["prepare"]

_DEFAULT = TrainConfig()


def prepare(
    *,
    text: Annotated[
        Path,
        Option(
            help="UTF-8 text file, or a folder of them, each a document.",
            metavar="PATH",
            exists=True,
        ),
    ],
    out: Annotated[Path, Option(help="Folder to make.", metavar="CORPUS_DIR")],
    tokenizer: Annotated[
        str,
        Option(
            help="bpe: learned from the text; char: one token a character; or a folder with a "
            "tokenizer.json, such as a model's.",
            metavar="bpe|char|DIR",
        ),
    ] = _DEFAULT.tokenizer,
    vocab_size: Annotated[
        int, Option(help="With bpe: number of different tokens.")
    ] = GPTConfig().vocab_size,
    validation: Annotated[
        float, Option(help="Share of the text to hold out.")
    ] = _DEFAULT.validation,
    seed: Annotated[int, Option(help="Fixes what is held out.")] = _DEFAULT.seed,
    utf8_only: UTF8Only = False,
) -> None:
    """Turn text of any size into tokens on disk, once, for any number of trainings.

    Example: regard prepare --text books/ --out corpus --vocab-size 8192
    """
    require_between("--seed", seed, 0, 2**63 - 1)
    if not 0 < validation < 1:
        raise MisuseError(f"--validation is {validation}; expected a share above 0 and below 1")
    is_folder = (Path(tokenizer) / TOKENIZER).is_file()
    if tokenizer not in {"bpe", "char"} and not is_folder:
        raise MisuseError(
            f"--tokenizer is {tokenizer}; expected bpe, char, or a folder with a {TOKENIZER}"
        )
    with importing():
        from regard.gpt import prepare as prepare_corpus
        from regard.gpt.checkpoint import load_tokenizer

    with user_errors(Error, OSError, ValueError, rewrite=naming_options("vocab_size")):
        kind: Literal["bpe", "char"] | Tokenizer
        if tokenizer in {"bpe", "char"}:
            kind = cast("Literal['bpe', 'char']", tokenizer)
        else:
            kind = load_tokenizer(Path(tokenizer) / TOKENIZER)
        corpus = prepare_corpus(
            out,
            text,
            tokenizer=kind,
            vocab_size=vocab_size,
            validation=validation,
            seed=seed,
            utf8_only=utf8_only,
        )
    parts = corpus.manifest["parts"]
    click.echo(
        f"{out}: {parts['training']['tokens']:,} tokens to train on and "
        f"{parts['validation']['tokens']:,} held out, of {corpus.tokenizer.vocab_size:,} kinds"
    )
