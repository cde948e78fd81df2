"""The optimizer's state in a checkpoint, written by one process or by several, read by any number.

One process writes ``optimizer.safetensors``. Several write a folder ``optimizer`` through
`torch.distributed.checkpoint`, each its own shard. By default that library pickles the metadata of
the shards; its storage in safetensors, which is used here, keeps it in the headers of the files and
needs no pickle. The files' checksums are in ``state.json``. From either form, each of any number of
ranks reads its shard.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.gpt._checksums import checksums
from regard.gpt._tensors import read, write
from regard.gpt.checkpoint import CONFIG, WEIGHTS, dump_json
from regard.gpt.errors import CheckpointError
from regard.gpt.model import GPT
from regard.gpt.tokenizer import FILE as TOKENIZER
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.training.checkpoints import OPTIMIZER, SHARDS, TrainingRunFolder
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.optimizer import state_kinds
from regard.gpt.training.parallel import SingleProcess, shard_like
from regard.gpt.training.ranks import Ranks


def save_checkpoint(
    ranks: Ranks,
    folder: TrainingRunFolder,
    step: int,
    parallel: SingleProcess,
    tokenizer: Tokenizer,
    optimizer: Mapping[str, Tensor],
    *,
    state: Mapping[str, Any],
    record: Mapping[str, Any],
    keep_every: int,
) -> None:
    """Write a checkpoint; each rank writes its shard of the optimizer.

    See `TrainingRunFolder.save` for the rest of it.

    The shards are written first, under a temporary name, and rank 0 waits for all of them before
    it moves them into the checkpoint's folder; so `run.json` never names one that lacks a shard.

    Raises:
        SaveError: a file could not be written; the checkpoint before this one is whole.
        Error: another rank could not write, or is lost.
    """
    is_new = folder.step != step
    place = folder.checkpoint(step).with_name(f".{step:08}.{SHARDS}")
    if ranks.size > 1 and is_new:
        state = {**state, "shards": _write_shards(ranks, folder, place, optimizer, step)}
    weights = parallel.full_weights() if is_new else {}

    def write_files(made: Path) -> None:
        words = {
            CONFIG: dump_json(asdict(parallel.model.config)),
            TOKENIZER: tokenizer.to_json().encode(),
        }
        for name, data in words.items():
            (made / name).write_bytes(data)
        write(made / WEIGHTS, weights, about=checksums(words))
        if ranks.size == 1:
            write(made / OPTIMIZER, optimizer)
        else:
            place.rename(made / SHARDS)

    with ranks.synchronized():
        if ranks.is_main:
            folder.save(step, write_files, state=state, record=record, keep_every=keep_every)
    folder.step = step


def _write_shards(
    ranks: Ranks, folder: TrainingRunFolder, place: Path, optimizer: Mapping[str, Tensor], step: int
) -> dict[str, str]:
    """Write the shards of all ranks, each its own; the SHA-256 of each file, by name."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with ranks.synchronized(), folder.save_errors(f"the checkpoint of update {step}"):
        if ranks.is_main:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
    with ranks.synchronized() as status, folder.save_errors(f"the checkpoint of update {step}"):
        writer = HuggingFaceStorageWriter(str(place), save_distributed=True)
        try:
            save(dict(optimizer), storage_writer=writer)
        except CheckpointException as error:
            failures = [failure for failure, _ in error.failures.values()]
            raise next((f for f in failures if isinstance(f, OSError)), failures[0]) from error
        files = place.glob(f"shard-{ranks.rank + 1:05}-*.safetensors")
        status.own["shards"] = sorted((path.name, _checksum(path)) for path in files)
    return dict(pair for one in status.all for pair in one["shards"])


def read_optimizer(
    folder: Path, model: GPT, config: TrainConfig, checksums: Mapping[str, str], ranks: Ranks
) -> dict[str, Tensor]:
    """The optimizer's state at a checkpoint, sharded as the model is.

    Args:
        folder: the checkpoint's.
        model: the model, as the ranks are going to train it.
        config: the recipe, which names the optimizer.
        checksums: of the files, where several ranks wrote them.
        ranks: the ranks.

    Raises:
        CheckpointError: a file is missing or damaged; the message names it.
    """
    if (folder / SHARDS).is_dir():
        return _read_shards(folder / SHARDS, model, config, checksums, ranks)
    try:
        saved = read(folder / OPTIMIZER)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is damaged: it has no {OPTIMIZER}") from None
    state = {}
    for name, parameter in model.named_parameters():
        for kind in state_kinds(name, parameter, config):
            value = _tensor(saved, f"{kind}.{name}")
            if kind == "step":
                state[f"{kind}.{name}"] = value.to(parameter.device)
            else:
                state[f"{kind}.{name}"] = shard_like(parameter, value)
    return state


def _read_shards(
    folder: Path, model: GPT, config: TrainConfig, checksums: Mapping[str, str], ranks: Ranks
) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with ranks.synchronized():
        for name in sorted(checksums)[ranks.rank :: ranks.size]:
            _require_whole(folder / name, checksums[name])
        files = {path.name for path in folder.iterdir()}
        if files != checksums.keys():
            names = ", ".join(sorted(files ^ checksums.keys()))
            raise CheckpointError(f"{folder} is damaged: missing or unexpected files {names}")
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for kind in state_kinds(name, parameter, config):
            state[f"{kind}.{name}"] = (
                torch.zeros((), device=parameter.device)
                if kind == "step"
                else torch.empty_like(parameter, requires_grad=False)
            )
    reader = HuggingFaceStorageReader(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "torch.distributed is disabled"
        )  # a single process reads too
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


def _tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise CheckpointError(f"the checkpoint's optimizer lacks {name!r}; it is damaged")
    return state[name]
