"""A run's folder: what is written into it, in which order, so that it can be cut off anywhere.

::

    DIR/config.json  model.safetensors  tokenizer.json  training.json    the model, for `load`
    DIR/run.json                                   which run, and which checkpoint is its latest
    DIR/.lock                                      while a process trains
    DIR/run/metrics.jsonl                          a line an update
    DIR/run/corpus/                                the text in tokens, unless it lies elsewhere
    DIR/run/patterns/00000200.safetensors          what the heads did, where that is recorded
    DIR/run/checkpoints/00000200/                  a model's folder, and beside its four files:
        optimizer.safetensors                      what AdamW remembers, or
        optimizer/                                 the same, in a file a rank (`_shards`)
        state.json                                 the update's number, the recipe, the corpus

A checkpoint is written under a temporary name, synced, renamed; then `run.json` is replaced, and
from that moment on it is the latest. Only then is the model in DIR exchanged for it, and the
checkpoint before it removed. So what a run goes on from always belongs to one update. A run that
replaces another has a folder of its own, and the other one's is removed when it has a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from errno import ENOSPC
from typing import TYPE_CHECKING, Any

from regard._files import replace_file, sync_folder
from regard.gpt._checksums import checksum, checksums
from regard.gpt._tensors import write
from regard.gpt.checkpoint import CONFIG, TRAINING, WEIGHTS, load, load_json
from regard.gpt.errors import CheckpointError, SaveError
from regard.gpt.tokenizer import FILE as TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from regard.gpt.config import GPTConfig
    from regard.gpt.model import GPT
    from regard.gpt.tokenizer import Tokenizer
    from regard.gpt.training._folder_lock import FolderLock

RUN, STATE, OPTIMIZER, SHARDS = "run.json", "state.json", "optimizer.safetensors", "optimizer"
METRICS, CORPUS, PATTERNS, CHECKPOINTS = "metrics.jsonl", "corpus", "patterns", "checkpoints"
TENSORBOARD, LOCK = "tensorboard", ".lock"
FORMAT, VERSION = "regard run", 1
_MOST_STEPS, _CHECKSUM = 2**63 - 1, "sha256"
# Names that our files have until they are whole, and what ranks find each other's folder by.
_LEFT = re.compile(r"\.(config|tokenizer|training|run|model)\.\w+\.\d+\.tmp|\.together\w+")
_OURS = {METRICS, CORPUS, PATTERNS, CHECKPOINTS, TENSORBOARD}


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """What `run.json` says."""

    run: str
    """The run's folder in DIR."""
    step: int
    """The update of its latest checkpoint."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Restored:
    """What a run goes on from."""

    model: GPT
    tokenizer: Tokenizer
    state: dict[str, Any]


class RunFolder:
    """The folder of a run.

    Args:
        root: the folder that the user named.
        name: of the run's own folder in it.
        step: the update of its latest checkpoint; None where it has none yet.
    """

    def __init__(self, root: Path, name: str, step: int | None) -> None:
        self.root, self.path, self.step = root, root / name, step

    @classmethod
    def fresh(cls, root: Path) -> RunFolder:
        """A folder for a run that begins; what broken-off beginnings left is removed."""
        before = read_pointer(root)
        for path in _runs(root):
            if before is None or path.name != before.run:
                shutil.rmtree(path)
        name = "run-2" if before is not None and before.run == "run" else "run"
        (root / name).mkdir(parents=True)
        return cls(root, name, None)

    @classmethod
    def latest(cls, root: Path) -> RunFolder:
        """The folder of a run that has a checkpoint.

        Raises:
            CheckpointError: there is none.
        """
        pointer = read_pointer(root)
        if pointer is None:
            raise CheckpointError(
                f"{root} holds no checkpoint to resume from: it has no {RUN}; start the run "
                "without resuming it"
            )
        folder = cls(root, pointer.run, pointer.step)
        if not folder.checkpoint(pointer.step).is_dir():
            raise CheckpointError(
                f"{root / RUN} names the checkpoint {folder.checkpoint(pointer.step)}, which is "
                "not there; start the run anew, in another folder"
            )
        return folder

    def kept(self) -> str:
        """What is left when something goes wrong now, in words."""
        if self.step is None:
            return "no checkpoint was written before it"
        return f"the checkpoint of update {self.step} is whole"

    def checkpoint(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.path / CHECKPOINTS / f"{step:08}"

    def restore(self) -> Restored:
        """The latest checkpoint, but for what the optimizer remembers (`_shards`).

        Raises:
            CheckpointError: it is damaged; the message names the file.
        """
        assert self.step is not None
        model, tokenizer = load(self.checkpoint(self.step))
        return Restored(model=model, tokenizer=tokenizer, state=self.state())

    def state(self) -> dict[str, Any]:
        """What `state.json` of the latest checkpoint says.

        Raises:
            CheckpointError: it is damaged.
        """
        assert self.step is not None
        path = self.checkpoint(self.step) / STATE
        if not path.is_file():
            raise CheckpointError(f"{path.parent} is damaged: it has no {STATE}")
        state = load_json(path)
        _require_version(path, state)
        # A state that was written before there was a checksum has none.
        if _CHECKSUM in state and state.pop(_CHECKSUM) != checksum(state):
            raise CheckpointError(
                f"{path} is damaged: it was changed after it was written, as its checksum differs"
            )
        if state.get("step") != self.step:
            raise CheckpointError(f"{path} is damaged: it is of update {state.get('step')!r}")
        return state

    def save(
        self,
        step: int,
        config: GPTConfig,
        weights: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        optimizer: Callable[[Path], None],
        *,
        state: Mapping[str, Any],
        record: Mapping[str, Any],
        keep_every: int,
    ) -> None:
        """Write a checkpoint, and let it be the latest.

        Args:
            step: its update.
            config: the model's shape.
            weights: the model's.
            tokenizer: its tokenizer.
            optimizer: puts what the optimizer remembers into the folder it is given.
            state: what else there is to know to go on, as JSON.
            record: what `training.json` says.
            keep_every: checkpoints of updates that this divides stay; 0: none.

        Raises:
            SaveError: a file could not be written; the checkpoint before this one is whole.
        """
        folder = self.checkpoint(step)
        with self.telling(f"the checkpoint of update {step}"):
            if self.step != step:  # else an interruption came right after this checkpoint
                self._write(folder, config, weights, tokenizer, optimizer, {**state, "step": step})
                pointer = {"format": FORMAT, "version": VERSION, "run": self.path.name}
                replace_file(self.root / RUN, _json({**pointer, "step": step}))
                sync_folder(self.root)
                self.step = step
            self._publish(folder, record)
            self._tidy(keep_every)

    def settle(self, record: Mapping[str, Any], keep_every: int) -> None:
        """Do what was left to do after the latest checkpoint, if `save` was cut off."""
        assert self.step is not None
        with self.telling(f"the model of update {self.step}"):
            self._publish(self.checkpoint(self.step), record)
            self._tidy(keep_every)

    def _write(
        self,
        folder: Path,
        config: GPTConfig,
        weights: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        optimizer: Callable[[Path], None],
        state: Mapping[str, Any],
    ) -> None:
        made = folder.with_name(f".{folder.name}.tmp")
        for left in (made, folder):  # by an interruption
            if left.exists():
                shutil.rmtree(left)
        made.mkdir(parents=True)
        try:
            words = {CONFIG: _json(asdict(config)), TOKENIZER: tokenizer.to_json().encode()}
            for name, data in words.items():
                (made / name).write_bytes(data)
            write(made / WEIGHTS, weights, about=checksums(words))
            optimizer(made)
            state = {"format": FORMAT, "version": VERSION, **state}
            (made / STATE).write_bytes(_json({**state, _CHECKSUM: checksum(state)}))
            for path in made.iterdir():
                if path.is_dir():
                    sync_folder(path)  # its files are synced as they are written
                    continue
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(made)
            made.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    def _publish(self, checkpoint: Path, record: Mapping[str, Any]) -> None:
        """Exchange the model in the user's folder, the weights last of what makes a model."""
        for name in (CONFIG, TOKENIZER, WEIGHTS):
            _link(checkpoint / name, self.root / name)
        replace_file(self.root / TRAINING, _json(record))
        _link(self.root / TRAINING, checkpoint / TRAINING)
        sync_folder(self.root)

    def _tidy(self, keep_every: int) -> None:
        """Remove what this checkpoint makes needless."""
        for path in _runs(self.root):
            if path != self.path:
                shutil.rmtree(path)
        for path in (self.path / CHECKPOINTS).iterdir():
            is_kept = keep_every and path.name.isdigit() and int(path.name) % keep_every == 0
            if path.name != f"{self.step:08}" and not is_kept:
                shutil.rmtree(path)

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Say of what can't be written inside the block what is left, and what to do.

        Raises:
            SaveError: an `OSError` came.
        """
        try:
            yield
        except SaveError:
            raise
        except OSError as error:
            cure = "free some space and resume" if error.errno == ENOSPC else "resume from it"
            cure = cure if self.step is not None else "start the run again"
            raise SaveError(
                error.errno,
                f"{what} could not be written, {error.strerror or error}: {self.kept()}; {cure}",
                error.filename or str(self.root),
            ) from error


def take(hold: FolderLock, root: Path) -> None:
    """Keep other processes from training in a folder, and clear away what a killed one left.

    Raises:
        CheckpointError: another one trains in it.
    """
    if not hold.take():
        raise CheckpointError(
            f"another process trains in {root}; wait until it has ended, or choose another folder"
        )
    for path in root.iterdir():
        if _LEFT.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_pointer(root: Path) -> Pointer | None:
    """What `run.json` in a folder says; None where there is no such file.

    Raises:
        CheckpointError: it is damaged.
    """
    path = root / RUN
    if not path.is_file():
        return None
    content = load_json(path)
    _require_version(path, content)
    run, step = content.get("run"), content.get("step")
    if run not in ("run", "run-2") or type(step) is not int or not 1 <= step <= _MOST_STEPS:
        raise CheckpointError(f"{path} is damaged: it names no checkpoint")
    return Pointer(run=run, step=step)


def _require_version(path: Path, content: Mapping[str, Any]) -> None:
    found = content.get("format"), content.get("version")
    if found != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is {found[0]!r}, version {found[1]!r}, and this regard reads {FORMAT!r}, "
            f"version {VERSION}"
        )


def _runs(root: Path) -> list[Path]:
    """The folders of runs; `CheckpointError` where one of that name is something else."""
    found = [root / name for name in ("run", "run-2") if (root / name).exists()]
    for path in found:
        names = {inner.name for inner in path.iterdir()} if path.is_dir() else {""}
        if not all(name in _OURS or name.startswith(".") for name in names):
            raise CheckpointError(
                f"{path} is no run's folder, and a run needs that name; choose another folder"
            )
    return found


def _link(source: Path, target: Path) -> None:
    """Let a file have a second name, or a copy where the file system gives it only one."""
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
        made.unlink(missing_ok=True)  # two names of one file are not renamed onto each other


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
