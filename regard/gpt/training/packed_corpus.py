"""A corpus on disk: text as token ids in memory-mapped files.

A folder holds the manifest ``corpus.json``, ``tokenizer.json``, and the ids of each
part, ``training.bin`` and ``validation.bin``: unsigned integers of 2 or 4 bytes, lowest byte first,
one after another, with an end token after each document where the tokenizer has one.
"""

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

from regard._files import replace_file, sync_folder
from regard.gpt.bpe import BPETokenizer
from regard.gpt.checkpoint import dump_json, load_json, load_tokenizer
from regard.gpt.errors import CheckpointError, CorpusError
from regard.gpt.tokenizer import FILE as TOKENIZER
from regard.gpt.tokenizer import CharTokenizer, Tokenizer
from regard.gpt.training._console import print_line
from regard.gpt.training._folder_lock import FolderLock
from regard.gpt.training._sources import Piece, Source, source_of

MANIFEST = "corpus.json"
FORMAT, VERSION = "regard corpus", 1
_PARTS = ("training", "validation")
_BATCH = 1 << 20  # characters encoded at a time
_SAMPLE = 64 << 20  # bytes of text that a vocabulary is learned from, at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A prepared corpus, opened.

    Attributes:
        folder: where it is.
        tokenizer: of the ids.
        training: ``(N,)`` ids to train on, memory-mapped.
        validation: ``(M,)`` ids held out, likewise.
        manifest: the content of ``corpus.json``.

    Example:
        >>> import io, tempfile
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from regard.gpt import prepare
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     texts = ["One text. " * 90]
        ...     corpus = prepare(Path(folder, "new"), texts, tokenizer="char", console=quiet)
        ...     print(corpus.tokenizer.decode(corpus.training[:9]), corpus.bytes_per_token)
        One text. 1.0
    """

    folder: Path
    tokenizer: Tokenizer
    training: NDArray[np.integer]
    validation: NDArray[np.integer]
    manifest: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """A checksum of its ids and its tokenizer."""
        parts = [self.manifest["parts"][part]["sha256"] for part in _PARTS]
        return hashlib.sha256("".join([self.manifest["tokenizer"], *parts]).encode()).hexdigest()

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of a token of the held-out text."""
        part = self.manifest["parts"]["validation"]
        return float(part["bytes"] / part["tokens"])


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
    piece. A vocabulary is learned from 64 MiB of the training text at most, spread over all of it.

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
        console: where progress is shown; None is standard error.

    Raises:
        CorpusError: there is no text, or too little to hold some out; `folder` exists, or another
            process prepares it.
        TypeError: `texts` is a str, or one of them is not.
        ValueError: `vocab_size` is too small, `tokenizer` has no token for a character, or a
            text holds a lone surrogate, which UTF-8 cannot express.
        OSError: `folder` cannot be written; nothing of it stays.

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
        raise CorpusError(f"{folder} already exists; prepare into a new folder, or remove it")
    source = source_of(texts, validation=validation, seed=seed, utf8_only=utf8_only)
    console = console or Console(stderr=True)
    if (notice := source.notice()) is not None:
        print_line(console, notice)
    kind = tokenizer if isinstance(tokenizer, str) else "given"
    made = folder.with_name(f".{folder.name}.tmp")
    with _write_errors(folder), FolderLock(folder.with_name(f".{folder.name}.lock")) as lock:
        if not lock.acquire():
            raise CorpusError(f"another process prepares {folder}; wait until it has ended")
        if made.exists():  # a process was killed
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
    """Raise `OSError` for what can't be written inside the block, with the cure."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        cure = "free some space" if error.errno == ENOSPC else "prepare it elsewhere"
        raise OSError(
            error.errno,
            f"the corpus could not be written, {error.strerror or error}: nothing of it stays; "
            f"{cure}, and start again",
            str(folder),
        ) from error


def open_corpus(folder: str | Path, *, verify: bool = True) -> Corpus:
    """A corpus that `prepare` made.

    Args:
        folder: its folder.
        verify: whether to read it once and compare checksums.

    Raises:
        CorpusError: `folder` holds no corpus, or a damaged one.

    Example:
        >>> import io, tempfile
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from regard.gpt import open_corpus, prepare
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "corpus")
        ...     corpus = prepare(path, ["One text. " * 90], tokenizer="char", console=quiet)
        ...     print(open_corpus(path).fingerprint == corpus.fingerprint)
        True
    """
    folder = Path(folder)
    try:
        manifest = load_json(folder / MANIFEST)
        tokenizer = load_tokenizer(folder / TOKENIZER)
        _require_ours(folder, manifest, tokenizer)
        dtype = np.dtype({"uint16": np.uint16, "uint32": np.uint32}[manifest["dtype"]])
        training, validation = (
            _mapped(folder / f"{part}.bin", dtype, manifest["parts"][part], verify=verify)
            for part in _PARTS
        )
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise CorpusError(
            f"{folder} holds no corpus: it has no {name}; make one with `regard prepare`"
        ) from None
    except NotADirectoryError:
        raise CorpusError(f"{folder} is a file; expected a folder of `regard prepare`") from None
    except CorpusError:
        raise
    except CheckpointError as error:
        raise CorpusError(str(error)) from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CorpusError(f"{folder / MANIFEST} is damaged: {reason}") from None
    return Corpus(
        folder=folder,
        tokenizer=tokenizer,
        training=training,
        validation=validation,
        manifest=manifest,
    )


def _require_ours(folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer) -> None:
    if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
        raise CorpusError(
            f"{folder / MANIFEST} is {manifest['format']!r}, version {manifest['version']!r}, "
            f"and this regard reads {FORMAT!r}, version {VERSION}: prepare it anew"
        )
    for part in _PARTS:
        for name in ("tokens", "bytes"):
            count = manifest["parts"][part][name]
            if type(count) is not int or not 0 < count < 2**63:
                raise ValueError(f"its {part} has {name} {count!r}")
        if not isinstance(manifest["parts"][part]["sha256"], str):
            raise TypeError(f"its {part} has no checksum")
    if not isinstance(manifest["source"], dict):
        raise TypeError(f"its source is {manifest['source']!r}")
    if type(manifest["split"]["validation"]) is not float:
        raise TypeError(f"its split is {manifest['split']!r}")
    if manifest["kind"] not in ("bpe", "char", "given"):
        raise ValueError(f"its kind is {manifest['kind']!r}")
    if hashlib.sha256(tokenizer.to_json().encode()).hexdigest() != manifest["tokenizer"]:
        raise CorpusError(
            f"{folder / TOKENIZER} is not the tokenizer that the corpus was made with: its "
            "checksum differs; prepare the corpus anew"
        )


def _mapped(
    path: Path, dtype: np.dtype[Any], part: dict[str, Any], *, verify: bool
) -> NDArray[np.integer]:
    expected, size = part["tokens"] * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise CorpusError(
            f"{path} has {size:,} bytes and {MANIFEST} says {expected:,}: it was cut short or "
            "changed; prepare the corpus anew"
        )
    if verify:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != part["sha256"]:
            raise CorpusError(
                f"{path} was changed: its checksum is not the one in {MANIFEST}; prepare the "
                "corpus anew"
            )
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="r")


@dataclass
class _Part:
    """One part while it is written."""

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
    """Encode all pieces into the files of both parts; their entries in the manifest."""
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
    for name, part in zip(_PARTS, parts.values(), strict=True):
        if part.tokens < 2:
            raise CorpusError(
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
        for name, part in zip(_PARTS, parts.values(), strict=True)
    }


def _batches(source: Source) -> Iterator[list[Piece]]:
    """Lists of pieces, each of a bounded number of characters."""
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
    """A tokenizer of this kind, made from the text."""
    task = bar.add_task("vocabulary", total=source.size)

    def texts(pieces: Iterator[Piece], is_used: Callable[[Piece], bool]) -> Iterator[str]:
        for piece in pieces:
            if is_used(piece):
                yield piece.text
            bar.advance(task, len(piece.text.encode()))

    if kind == "char":  # held-out characters need ids, too
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
