"""What the optimizer remembers, kept by one process or by several, for any number of them.

One process writes ``optimizer.safetensors``. Several write a folder ``optimizer`` through
`torch.distributed.checkpoint`: each its own piece of the state, none the whole of it. By default
that library pickles its description of the pieces; its storage in safetensors, which is used here,
keeps it in the headers of the files, and needs no pickle. The files' checksums stand in
``state.json``. Whichever form there is, any number of ranks reads of it what each of them holds.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import torch

from regard.gpt._tensors import read, write
from regard.gpt.errors import CheckpointError
from regard.gpt.training.checkpoints import OPTIMIZER, SHARDS
from regard.gpt.training.parallel import empty_like, like

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from regard.gpt.model import GPT
    from regard.gpt.tokenizer import Tokenizer
    from regard.gpt.training.checkpoints import RunFolder
    from regard.gpt.training.parallel import SingleProcess
    from regard.gpt.training.ranks import Ranks

_KINDS = ("exp_avg", "exp_avg_sq")


def keep_together(
    ranks: Ranks,
    folder: RunFolder,
    step: int,
    spread: SingleProcess,
    tokenizer: Tokenizer,
    optimizer: Mapping[str, Tensor],
    *,
    state: Mapping[str, Any],
    record: Mapping[str, Any],
    keep_every: int,
) -> None:
    """Write a checkpoint (`RunFolder.save`), of which each rank writes its piece.

    The pieces are written first, under a temporary name, and rank 0 waits for all of them before
    it moves them into the checkpoint's folder; so `run.json` never names one that lacks a piece.

    Raises:
        SaveError: a file could not be written; the checkpoint before this one is whole.
        DistributedError: another rank could not write, or is lost.
    """
    config, is_new = spread.model.config, folder.step != step
    weights: Mapping[str, Tensor] = {}
    place = folder.checkpoint(step).with_name(f".{step:08}.{SHARDS}")
    if ranks.size == 1:
        weights = spread.weights()
    elif is_new:
        state = {**state, "shards": _write_pieces(ranks, folder, place, optimizer, step)}
        weights = spread.weights()

    def put(made: Path) -> None:
        if ranks.size == 1:
            write(made / OPTIMIZER, optimizer)
        else:
            place.rename(made / SHARDS)

    with ranks.agreeing():
        if ranks.leads:
            folder.save(
                step,
                config,
                weights,
                tokenizer,
                put,
                state=state,
                record=record,
                keep_every=keep_every,
            )
    folder.step = step


def _write_pieces(
    ranks: Ranks, folder: RunFolder, place: Path, optimizer: Mapping[str, Tensor], step: int
) -> dict[str, str]:
    with ranks.agreeing(), folder.telling(f"the checkpoint of update {step}"):
        if ranks.leads:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
    with ranks.agreeing() as said, folder.telling(f"the checkpoint of update {step}"):
        said.own["shards"] = sorted(write_shards(place, optimizer, ranks).items())
    return dict(pair for one in said.all for pair in one["shards"])


def write_shards(folder: Path, state: Mapping[str, Tensor], ranks: Ranks) -> dict[str, str]:
    """Write this rank's pieces into a folder; every rank has to.

    Returns:
        The names of this rank's files, and their SHA-256.

    Raises:
        OSError: a rank could not write.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(state), storage_writer=writer)
    except CheckpointException as error:
        failures = [failure for failure, _ in error.failures.values()]
        raise next((f for f in failures if isinstance(f, OSError)), failures[0]) from error
    files = folder.glob(f"shard-{ranks.rank + 1:05}-*.safetensors")
    return {path.name: _checksum(path) for path in files}


def read_optimizer(
    folder: Path, model: GPT, checksums: Mapping[str, str], ranks: Ranks
) -> dict[str, Tensor]:
    """What the optimizer remembered at a checkpoint, as this rank holds it.

    Args:
        folder: the checkpoint's.
        model: the model, spread over the ranks as it is going to be trained.
        checksums: of the files, where several ranks wrote it.
        ranks: the ranks.

    Raises:
        CheckpointError: a file is missing or damaged; the message names it.
    """
    if (folder / SHARDS).is_dir():
        return _read_shards(folder / SHARDS, model, checksums, ranks)
    try:
        kept = read(folder / OPTIMIZER)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is damaged: it has no {OPTIMIZER}") from None
    found = {}
    for name, parameter in model.named_parameters():
        found[f"step.{name}"] = _kept(kept, f"step.{name}").to(parameter.device)
        for kind in _KINDS:
            found[f"{kind}.{name}"] = like(parameter, _kept(kept, f"{kind}.{name}"))
    return found


def _read_shards(
    folder: Path, model: GPT, checksums: Mapping[str, str], ranks: Ranks
) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with ranks.agreeing():
        for name in sorted(checksums)[ranks.rank :: ranks.size]:
            _require_whole(folder / name, checksums[name])
        found = {path.name for path in folder.iterdir()}
        if found != checksums.keys():
            names = ", ".join(sorted(found ^ checksums.keys()))
            raise CheckpointError(f"{folder} is damaged: it lacks, or has too much, {names}")
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state[f"step.{name}"] = torch.zeros((), device=parameter.device)
        state |= {f"{kind}.{name}": empty_like(parameter) for kind in _KINDS}
    reader = HuggingFaceStorageReader(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process: meant
        try:
            load(state, storage_reader=reader, no_dist=ranks.size == 1)
        except CheckpointException as error:
            reason = next(iter(error.failures.values()))[0]
            raise CheckpointError(f"{folder} is damaged: {reason}") from None
    return state


def _require_whole(path: Path, expected: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path.parent} is damaged: it has no {path.name}")
    if _checksum(path) != expected:
        raise CheckpointError(
            f"{path} is damaged: it was changed after it was written, since its checksum differs"
        )


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise CheckpointError(f"the checkpoint's optimizer lacks {name!r}; it is damaged")
    return state[name]
