"""Turn text into a corpus on disk; `open_corpus` reads it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from regard._files import replace_file, require_writable, sync_folder
from regard.errors import Error
from regard.gpt.bpe import BPETokenizer
from regard.gpt.folder import TOKENIZER, dump_json
from regard.gpt.tokenizer import CharTokenizer, Tokenizer
from regard.gpt.training._sources import Piece, Source, source_of
from regard.gpt.training.checkpoints import FolderLock
from regard.gpt.training.metrics import print_line
from regard.gpt.training.packed_corpus import (
    FORMAT,
    MANIFEST,
    PARTS,
    VERSION,
    Corpus,
    open_corpus,
)

_BATCH = 1 << 20  # characters encoded at a time
_SAMPLE = 64 << 20  # maximum bytes of text that a vocabulary is learned from


def prepare(
    folder: str | Path,
    texts: Sequence[str] | Path,
    *,
    tokenizer: Literal["bpe", "char"] | Tokenizer = "bpe",
    vocab_size: int = 1024,
    validation: float = 0.05,
    seed: int = 0,
    utf8_only: bool = False,
    console: Console | None = None,
) -> Corpus:
    """Turn text into a corpus on disk, once.

    Memory does not grow with the text: a file is read, encoded by all threads and written piece by
    piece. A vocabulary is learned from at most 64 MiB, evenly sampled from the training text.

    Args:
        folder: the folder to write; it must not exist.
        texts: the texts; or the path of a UTF-8 file or of a folder of them, each a document.
        tokenizer: ``"bpe"`` learns byte-level BPE from the training text, ``"char"`` takes all
            characters of the text, or an existing tokenizer.
        vocab_size: V of a BPE that is learned, its end token included.
        validation: the share of text to hold out.
        seed: fixes what is held out.
        utf8_only: whether to skip files that are not UTF-8 text, and name them, instead of
            raising.
        console: the console for progress; None is standard error.

    Raises:
        Error: there is no text, or too little to hold some out; `folder` exists, or another
            process prepares it.
        TypeError: `texts` is a str, or one of them is not.
        ValueError: `vocab_size` is too small, `tokenizer` has no token for a character, or a
            text holds a lone surrogate, which UTF-8 cannot express.
        OSError: if `folder` cannot be written; it is removed.

    Example:
        >>> import io, tempfile
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from regard.gpt import prepare
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     texts = ["One text. " * 90, "Another. " * 90]
        ...     corpus = prepare(Path(folder, "corpus"), texts, tokenizer="char", console=quiet)
        ...     print(corpus.tokenizer.vocab_size, len(corpus.training) > len(corpus.validation))
        11 True
    """
    folder = Path(folder)
    if folder.exists():
        raise Error(f"{folder} already exists; prepare into a new folder, or remove it")
    source = source_of(texts, validation=validation, seed=seed, utf8_only=utf8_only)
    console = console or Console(stderr=True)
    if (notice := source.notice()) is not None:
        print_line(console, notice)
    kind = tokenizer if isinstance(tokenizer, str) else "given"
    made = folder.with_name(f".{folder.name}.tmp")
    with _write_errors(folder), FolderLock(folder.with_name(f".{folder.name}.lock")) as lock:
        require_writable(folder.parent)  # else acquiring the lock would fail as if it were held
        if not lock.acquire():
            raise Error(f"another process prepares {folder}; wait until it has ended")
        if made.exists():  # left by a killed process
            shutil.rmtree(made)
        made.mkdir()
        try:
            with _bar(console) as progress:
                if isinstance(tokenizer, str):
                    tokenizer = _train_tokenizer(source, tokenizer, vocab_size, progress)
                parts = _write(made, source, tokenizer, progress)
            text = tokenizer.to_json()
            replace_file(made / TOKENIZER, text.encode())
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "kind": kind,
                "tokenizer": hashlib.sha256(text.encode()).hexdigest(),
                "vocab_size": tokenizer.vocab_size,
                **({"most_tokens": vocab_size} if kind == "bpe" else {}),
                "end": tokenizer.end,
                "dtype": _dtype(tokenizer).name,
                "split": {"validation": validation, "seed": seed},
                "parts": parts,
                "source": source.describe(),
            }
            replace_file(made / MANIFEST, dump_json(manifest))
            made.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return open_corpus(folder, verify=False)


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Add the cure to an `OSError` inside the block."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        cure = "free some space" if error.errno == ENOSPC else "prepare it elsewhere"
        why = error.strerror or str(error)
        if isinstance(error, FileExistsError):  # the parent is a file
            why = f"{error.filename} is a file"
        raise OSError(
            error.errno,
            f"the corpus could not be written, {why}: nothing of it stays; {cure}, and start again",
            str(folder),
        ) from error


@dataclass
class _Part:
    """A part of a corpus while it is written."""

    file: IO[bytes]
    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, ids: NDArray[np.integer]) -> None:
        data = ids.tobytes()
        self.file.write(data)
        self.digest.update(data)
        self.tokens += len(ids)


def _write(folder: Path, source: Source, tokenizer: Tokenizer, bar: Progress) -> dict[str, Any]:
    """Encode all pieces into the files of both parts, and return their manifest entries."""
    dtype = _dtype(tokenizer).newbyteorder("<")
    task = bar.add_task("encoding", total=source.size)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    with (
        (folder / "training.bin").open("xb") as training,
        (folder / "validation.bin").open("xb") as validation,
    ):
        parts = {False: _Part(training), True: _Part(validation)}
        for pieces in _batches(source):
            for piece, ids in zip(
                pieces, tokenizer.encode_all([piece.text for piece in pieces]), strict=True
            ):
                part = parts[piece.held_out]
                part.add(ids.astype(dtype))
                part.bytes += len(piece.text.encode())
                if piece.ends:
                    part.add(end)
                    part.documents += 1
            bar.advance(task, sum(len(piece.text.encode()) for piece in pieces))
        for part in parts.values():
            part.file.flush()
            os.fsync(part.file.fileno())
    for name, part in zip(PARTS, parts.values(), strict=True):
        if part.tokens < 2:
            raise Error(
                f"the text leaves {part.tokens} tokens for {name}; give more text, or another "
                "share to hold out"
            )
    return {
        name: {
            "tokens": part.tokens,
            "documents": part.documents,
            "bytes": part.bytes,
            "sha256": part.digest.hexdigest(),
        }
        for name, part in zip(PARTS, parts.values(), strict=True)
    }


def _batches(source: Source) -> Iterator[list[Piece]]:
    """Yield lists of pieces with a bounded number of characters."""
    pieces: list[Piece] = []
    size = 0
    for piece in source:
        pieces.append(piece)
        size += len(piece.text)
        if size >= _BATCH:
            yield pieces
            pieces, size = [], 0
    if pieces:
        yield pieces


def _train_tokenizer(source: Source, kind: str, vocab_size: int, bar: Progress) -> Tokenizer:
    """Return a tokenizer of this kind, made from the text."""
    task = bar.add_task("vocabulary", total=source.size)

    def texts(pieces: Iterator[Piece], is_used: Callable[[Piece], bool]) -> Iterator[str]:
        for piece in pieces:
            if is_used(piece):
                yield piece.text
            bar.advance(task, len(piece.text.encode()))

    if kind == "char":  # held-out characters need ids too
        characters: set[str] = set()
        for text in texts(iter(source), lambda _: True):
            characters.update(text)
        return CharTokenizer("".join(characters))
    stride = max(1, -(-source.size // _SAMPLE))
    sample = (piece for number, piece in enumerate(source) if number % stride == 0)
    return BPETokenizer.train(
        texts(sample, lambda piece: not piece.held_out), vocab_size=vocab_size, end=True
    )


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
