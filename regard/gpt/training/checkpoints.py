"""A training run's folder: its files are written in an order that is safe against interruption.

::

    DIR/config.json  model.safetensors  tokenizer.json  training.json    the model, for `load`
    DIR/run.json                                   which run, and which checkpoint is its latest
    DIR/.lock                                      while a process trains
    DIR/run/metrics.jsonl                          a line an update
    DIR/run/corpus/                                the text in tokens, unless it lies elsewhere
    DIR/run/patterns/00000200.safetensors          what the heads did, where that is recorded
    DIR/run/checkpoints/00000200/                  a model's folder, and beside its four files:
        optimizer.safetensors                      the optimizer's state
        state.json                                 the update's number, the recipe, the corpus

A checkpoint is written under a temporary name, synced and renamed; then `run.json` is replaced,
which makes it the latest. Only then is the model in DIR replaced, and the previous checkpoint
removed. So a training run always resumes from files of one update. A training run that replaces
another has a new folder; the old one is removed at its first checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from errno import ENOSPC
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout
from torch import Tensor

from regard._files import replace_file, sync_folder
from regard.gpt.checkpoint import load
from regard.gpt.errors import CheckpointError, SaveError
from regard.gpt.folder import (
    CONFIG,
    TOKENIZER,
    TRAINING,
    WEIGHTS,
    dump_json,
    json_checksum,
    json_checksums,
    load_json,
)
from regard.gpt.model import GPT
from regard.gpt.model_files import write
from regard.gpt.tokenizer import Tokenizer

POINTER, STATE, OPTIMIZER = "run.json", "state.json", "optimizer.safetensors"
METRICS, CORPUS, PATTERNS, CHECKPOINTS = "metrics.jsonl", "corpus", "patterns", "checkpoints"
TENSORBOARD, LOCK = "tensorboard", ".lock"
FORMAT, VERSION = "regard run", 1
_MOST_STEPS, _CHECKSUM = 2**63 - 1, "sha256"
# Names of incomplete files, and of the mark in `Ranks.require_shared`.
_LEFT = re.compile(r"\.(config|tokenizer|training|run|model)\.\w+\.\d+\.tmp|\.together\w+")
_OURS = {METRICS, CORPUS, PATTERNS, CHECKPOINTS, TENSORBOARD}


class TrainingRunFolder:
    """The folder of a training run.

    Args:
        root: the user's folder.
        name: name of the training run's own folder in it.
        step: the update of its latest checkpoint; None if it has none yet.
    """

    def __init__(self, root: Path, name: str, step: int | None) -> None:
        self.root, self.path, self.step = root, root / name, step

    @classmethod
    def new(cls, root: Path) -> TrainingRunFolder:
        """Return a folder for a new training run; others without a checkpoint are removed."""
        before = _latest(root)
        for path in _runs(root):
            if before is None or path != before.path:
                shutil.rmtree(path)
        name = "run-2" if before is not None and before.path.name == "run" else "run"
        (root / name).mkdir(parents=True)
        return cls(root, name, None)

    @classmethod
    def latest(cls, root: Path) -> TrainingRunFolder:
        """Return the folder of a training run that has a checkpoint.

        Raises:
            CheckpointError: the folder has no training run with a checkpoint.
        """
        folder = _latest(root)
        if folder is None:
            raise CheckpointError(
                f"{root} holds no checkpoint to resume from: it has no {POINTER}; start the "
                "training run without resuming it"
            )
        if not folder.latest_checkpoint.is_dir():
            raise CheckpointError(
                f"{root / POINTER} names the checkpoint {folder.latest_checkpoint}, which is not "
                "there; start the training run anew, in another folder"
            )
        return folder

    def describe_latest(self) -> str:
        """Describe the latest checkpoint, for an error's message."""
        if self.step is None:
            return "no checkpoint was written before it"
        return f"the checkpoint of update {self.step} is whole"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.path / CHECKPOINTS / f"{step:08}"

    @property
    def latest_checkpoint(self) -> Path:
        """The folder of the latest one."""
        assert self.step is not None, "the run has a checkpoint"
        return self.checkpoint(self.step)

    def load(self) -> tuple[GPT, Tokenizer, dict[str, Any]]:
        """Model, tokenizer and `state.json` of the latest checkpoint.

        Raises:
            CheckpointError: it is damaged; the message names the file.
        """
        return *load(self.latest_checkpoint), self.state()

    def state(self) -> dict[str, Any]:
        """Return the content of `state.json` of the latest checkpoint.

        Raises:
            CheckpointError: it is damaged.
        """
        path = self.latest_checkpoint / STATE
        if not path.is_file():
            raise CheckpointError(f"{path.parent} is damaged: it has no {STATE}")
        state = load_json(path)
        _require_version(path, state)
        # States of earlier versions have no checksum.
        if _CHECKSUM in state and state.pop(_CHECKSUM) != json_checksum(state):
            raise CheckpointError(
                f"{path} is damaged: it was changed after it was written, as its checksum differs"
            )
        if state.get("step") != self.step:
            raise CheckpointError(f"{path} is damaged: it is of update {state.get('step')!r}")
        return state

    def save(
        self,
        step: int,
        model: GPT,
        tokenizer: Tokenizer,
        optimizer: Mapping[str, Tensor],
        *,
        state: Mapping[str, Any],
        record: Mapping[str, Any],
        keep_every: int,
    ) -> None:
        """Write a checkpoint, and make it the latest.

        Args:
            step: its update.
            model: the model.
            tokenizer: its tokenizer.
            optimizer: the optimizer's state, by name.
            state: what else resuming needs, as JSON.
            record: the content of `training.json`.
            keep_every: keep checkpoints of multiples of this update; 0 keeps none.

        Raises:
            SaveError: if a file could not be written; the previous checkpoint is intact.
        """
        folder = self.checkpoint(step)
        with self.save_errors(f"the checkpoint of update {step}"):
            if self.step != step:  # else an interrupt came right after this checkpoint
                texts = {
                    CONFIG: dump_json(asdict(model.config)),
                    TOKENIZER: tokenizer.to_json().encode(),
                }
                tensors = {WEIGHTS: model.state_dict(), OPTIMIZER: optimizer}
                self._write(folder, texts, tensors, {**state, "step": step})
                pointer = {"format": FORMAT, "version": VERSION, "run": self.path.name}
                replace_file(self.root / POINTER, dump_json({**pointer, "step": step}))
                sync_folder(self.root)
                self.step = step
            self._publish(folder, record)
            self._remove_old(keep_every)

    def finish_save(self, record: Mapping[str, Any], keep_every: int) -> None:
        """Complete the latest checkpoint, if `save` was interrupted."""
        with self.save_errors(f"the model of update {self.step}"):
            self._publish(self.latest_checkpoint, record)
            self._remove_old(keep_every)

    def _write(
        self,
        folder: Path,
        texts: Mapping[str, bytes],
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
    ) -> None:
        made = folder.with_name(f".{folder.name}.tmp")
        for path in (made, folder):  # left by an interruption
            if path.exists():
                shutil.rmtree(path)
        made.mkdir(parents=True)
        try:
            for name, data in texts.items():
                (made / name).write_bytes(data)
            for name, contents in tensors.items():
                about = json_checksums(texts) if name == WEIGHTS else None
                write(made / name, contents, about=about)
            state = {"format": FORMAT, "version": VERSION, **state}
            (made / STATE).write_bytes(dump_json({**state, _CHECKSUM: json_checksum(state)}))
            for path in made.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(made)
            made.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    def _publish(self, checkpoint: Path, record: Mapping[str, Any]) -> None:
        """Replace the model in the user's folder, the weights last."""
        for name in (CONFIG, TOKENIZER, WEIGHTS):
            _link(checkpoint / name, self.root / name)
        replace_file(self.root / TRAINING, dump_json(record))
        _link(self.root / TRAINING, checkpoint / TRAINING)
        sync_folder(self.root)

    def _remove_old(self, keep_every: int) -> None:
        """Remove other training runs, and checkpoints that are not kept."""
        for path in _runs(self.root):
            if path != self.path:
                shutil.rmtree(path)
        for path in (self.path / CHECKPOINTS).iterdir():
            is_kept = keep_every and path.name.isdigit() and int(path.name) % keep_every == 0
            if path.name != f"{self.step:08}" and not is_kept:
                shutil.rmtree(path)

    @contextmanager
    def save_errors(self, what: str) -> Iterator[None]:
        """Convert an `OSError` inside the block to a `SaveError` with the cure.

        Raises:
            SaveError: for an `OSError`.
        """
        try:
            yield
        except SaveError:
            raise
        except OSError as error:
            cure = "free some space and resume" if error.errno == ENOSPC else "resume from it"
            cure = cure if self.step is not None else "start the training run again"
            raise SaveError(
                error.errno,
                f"{what} could not be written, {error.strerror or error}: "
                f"{self.describe_latest()}; {cure}",
                error.filename or str(self.root),
            ) from error


class FolderLock:
    """Keeps other processes out of a folder until it is released or this process ends.

    Args:
        lock: the file to lock; it exists only while the lock is held.
    """

    def __init__(self, lock: Path) -> None:
        self._path = lock
        self._lock = FileLock(lock)

    def acquire(self) -> bool:
        """Acquire the lock without waiting; return False if another process holds it.

        Raises:
            OSError: the file can't be written.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock.is_locked:
            with suppress(OSError):  # not every system removes an open file
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_folder(lock: FolderLock, root: Path) -> None:
    """Lock a folder against other training processes, and remove temporary files of a killed one.

    Raises:
        CheckpointError: if another process trains in it.
    """
    if not lock.acquire():
        raise CheckpointError(
            f"another process trains in {root}; wait until it has ended, or choose another folder"
        )
    for path in root.iterdir():
        if _LEFT.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _latest(root: Path) -> TrainingRunFolder | None:
    """Return the training run of `run.json`, if it exists; `CheckpointError` if it is damaged."""
    path = root / POINTER
    if not path.is_file():
        return None
    content = load_json(path)
    _require_version(path, content)
    run, step = content.get("run"), content.get("step")
    if run not in ("run", "run-2") or type(step) is not int or not 1 <= step <= _MOST_STEPS:
        raise CheckpointError(f"{path} is damaged: it names no checkpoint")
    return TrainingRunFolder(root, run, step)


def _require_version(path: Path, content: Mapping[str, Any]) -> None:
    form = content.get("format"), content.get("version")
    if form != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is {form[0]!r}, version {form[1]!r}, and this regard reads {FORMAT!r}, "
            f"version {VERSION}"
        )


def _runs(root: Path) -> list[Path]:
    """Return the folders of training runs; `CheckpointError` for another folder of that name."""
    folders = [root / name for name in ("run", "run-2") if (root / name).exists()]
    for path in folders:
        names = {inner.name for inner in path.iterdir()} if path.is_dir() else {""}
        if not all(name in _OURS or name.startswith(".") for name in names):
            raise CheckpointError(
                f"{path} is not a training run's folder, and a training run needs that name; "
                "choose another folder"
            )
    return folders


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    made = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    made.unlink(missing_ok=True)
    try:
        try:
            os.link(source, made)
        except OSError as error:
            if error.errno == ENOSPC:
                raise
            shutil.copyfile(source, made)
            with made.open("rb") as file:
                os.fsync(file.fileno())
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)  # a link is not renamed onto another of the same file
