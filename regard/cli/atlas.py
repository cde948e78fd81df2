"""`regard atlas`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from regard._extras import needing
from regard._importing import importing
from regard.cli.arguments import SHIPPED, Device, Dtype, Fetch, Weights
from regard.cli.checks import require_model
from regard.cli.errors import MisuseError, memory_errors, naming_options, user_errors
from regard.cli.parameters import Argument, Option
from regard.errors import Error

if TYPE_CHECKING:
    from regard.lens import Atlas

__all__ = ["atlas"]

_EFFECTS = 0.05
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}


def atlas(
    model: Annotated[
        str | None,
        Argument(
            help="A language model: its name on the Hugging Face hub, a folder, a .gguf file, "
            f"ollama:NAME, or smollm2; by default {SHIPPED}.",
        ),
    ] = None,
    *,
    corpus: Annotated[
        tuple[Path, ...],
        Option(
            help="Text file, JSON lines or Parquet with a column text, or a folder of such; "
            "can be given several times.",
            metavar="PATH",
            exists=True,
        ),
    ],
    out: Annotated[Path, Option(help="Folder to make.", metavar="DIR")],
    tokens: Annotated[
        str | None,
        Option(help="Read so many tokens, such as 200k or 1M; by default all.", metavar="N"),
    ] = None,
    length: Annotated[
        int | None,
        Option(help="Tokens that are read at once; by default the model's context."),
    ] = None,
    effects: Annotated[
        float, Option(help="Share of the documents on which effects are measured.")
    ] = _EFFECTS,
    seed: Annotated[int, Option(help="Of the samples.")] = 0,
    shard: Annotated[
        str,
        Option(help="Read one of several parts of the corpus, counted from 0.", metavar="I/N"),
    ] = "0/1",
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    resume: Annotated[bool, Option("--resume", help="Continue what is in --out.")] = False,
    join: Annotated[
        bool, Option("--join", help="Put parts together that were read into --out.")
    ] = False,
    headvis: Annotated[
        Path | None,
        Option(help="Also write the tree that HeadVis' pages read.", metavar="DIR"),
    ] = None,
    parquet: Annotated[
        Path | None, Option(help="Also write the table as Parquet.", metavar="FILE")
    ] = None,
    ray: Annotated[bool, Option("--ray", help="Read with the processes of a Ray cluster.")] = False,
    fetch: Fetch = False,
) -> None:
    """Show what each head of a model does over a corpus, as a folder of pages.

    Scores with controls and intervals, what rests, what is moved, and examples of each head. Open
    index.html in the folder; it needs no server.

    Examples:
    regard atlas --corpus stories.txt --out atlas

    regard atlas HuggingFaceTB/SmolLM2-135M --corpus docs/ --tokens 1M --length 2048 --out atlas
    """
    count, part = _number(tokens), _part(shard)
    _check(
        part,
        headvis,
        parquet,
        resume=resume,
        join=join,
        ray=ray,
        given=(count, length, effects, seed) != (None, None, _EFFECTS, 0),
        elsewhere=device != "cpu" or bool(dtype or weights),
    )
    require_model(model, fetch=fetch, device=device, dtype=dtype, weights=weights)
    with importing():
        from regard import lens
        from regard.cli.device import device_of
        from regard.cli.model import open_model
        from regard.page.atlas import write_atlas

    opened = open_model(model, fetch=fetch, device=device_of(device), weights=weights, dtype=dtype)
    named = naming_options("tokens", "length", "effects", "seed")
    with (
        memory_errors("give a smaller --length"),
        user_errors(
            ValueError,
            Error,
            FileNotFoundError,
            ModuleNotFoundError,
            rewrite=lambda message: named(message.replace("resume=True", "--resume")),
        ),
    ):
        texts = lens.Corpus(corpus)
        if join:
            found = lens.join_atlas(opened, texts, out)
        elif ray:
            from regard.integrations.ray import atlas_on_ray

            found = atlas_on_ray(
                model, texts, tokens=count, length=length, effects=effects, seed=seed
            )
        else:
            found = lens.atlas(
                opened,
                texts,
                tokens=count,
                length=length,
                effects=effects,
                seed=seed,
                folder=out,
                shard=part,
                resume=resume,
                announce=lambda line: click.echo(line, err=True),
            )
    if part[1] > 1 and not join:
        click.echo(f"{out}: part {shard} is read; --join puts all {part[1]} together")
        return
    found.save(out)
    write_atlas(found, out)
    with user_errors(FileExistsError, ValueError, ModuleNotFoundError):
        if headvis is not None:
            lens.export_headvis(found, headvis, dataset=corpus[0].resolve().name)
        if parquet is not None:
            found.to_parquet(parquet)
    _show(found, out)


def _check(
    part: tuple[int, int],
    headvis: Path | None,
    parquet: Path | None,
    *,
    resume: bool,
    join: bool,
    ray: bool,
    given: bool,
    elsewhere: bool,
) -> None:
    """Refuse options that do not go together, before anything is read."""
    if join and (resume or part != (0, 1) or ray):
        raise MisuseError("--join goes with none of --resume, --shard and --ray: it reads nothing")
    if join and given:
        raise MisuseError(
            "--join goes with none of --tokens, --length, --effects and --seed: the parts have them"
        )
    if ray and (resume or part != (0, 1) or elsewhere):
        raise MisuseError(
            "--ray goes with none of --resume, --shard, --device, --dtype and --weights: workers "
            "open the model by its name"
        )
    if part[1] > 1 and (headvis or parquet):
        raise MisuseError("--headvis and --parquet are of the whole corpus: give them with --join")
    if headvis is not None and headvis.exists():
        raise MisuseError(f"--headvis {headvis} exists: give another folder")
    if parquet is not None:
        with user_errors(ModuleNotFoundError), needing("corpus"):
            import pyarrow as pa  # noqa: F401 - missed before what takes long


def _number(tokens: str | None) -> int | None:
    """Return the number that "200k" or "1M" is.

    >>> _number("1.5M"), _number("300"), _number(None)
    (1500000, 300, None)
    """
    if tokens is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", tokens)
    if match is None:
        raise MisuseError(f"--tokens is {tokens!r}; expected a number such as 5000, 200k or 1M")
    return int(float(match[1]) * _UNITS[match[2]])


def _part(shard: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    part = (0, 0) if match is None else (int(match[1]), int(match[2]))
    if part[0] >= part[1]:
        raise MisuseError(f"--shard is {shard!r}; expected a part from 0 and their number, as 0/4")
    return part


def _show(atlas: Atlas, folder: Path) -> None:
    """Print how many heads have each role, and the clearest of each."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    about = atlas.about
    console.print(
        Text(
            f"{about['model']}: {len(atlas.rows)} heads over {about['tokens']:,} tokens of "
            f"{about['documents']:,} documents",
            "dim",
        )
    )
    for what, why in about["unmeasured"].items():
        console.print(Text(f"{what} was not measured: {why}", "dim"))
    resting = sum((row["resting"] or 0) > 0.5 for row in atlas.rows)
    console.print(f"{resting} heads rest with more than half of their weight")
    counts = Counter(row["role"] for row in atlas.rows)
    table = Table("role, beside the sinks", "heads", "clearest", "its score", box=None)
    best = {head.role: head for head in reversed(atlas.heads.most_informative(len(atlas.rows)))}
    for role, count in counts.most_common():
        head = best[next(own for own in best if own.value == role)]
        table.add_row(role, str(count), f"{head.layer}.{head.head}", head.evidence)
    console.print(table)
    console.print(f"open {folder / 'index.html'}", soft_wrap=True)
