"""The texts of a corpus: from files or strings, in one order, each once.

Axes: none; texts are strings, tokens are integers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from regard._extras import needing
from regard.errors import Error
from regard.lens.head_atlas.reading import Document

__all__ = ["Corpus", "Plan", "Text", "documents_of", "plan"]

_LONGEST = 64 * 2**20
"""Bytes of the longest document; a longer one is refused, since it is tokenized at once."""
_TEXT = "text"  # the field of JSON lines and Parquet that holds a document


@dataclass(frozen=True)
class Text:
    """One text of a corpus, and where it comes from."""

    source: str
    content: str


class Corpus:
    """Texts in a fixed order, which can be read more than once.

    Args:
        parts: texts as `str`, or files and folders as `Path`, or one of them. A file is one text,
            but for JSON lines (``.jsonl``) and Parquet (``.parquet``), whose field ``text`` holds
            one a row. Of a folder all files are taken, sorted by path, hidden ones left out.

    Raises:
        FileNotFoundError: for a path that does not exist.
        Error: for a folder without files, and while reading for a file that is not text.

    Example:
        >>> corpus = Corpus(["The cat sat.", "The dog ran."])
        >>> [text.source for text in corpus]
        ['text 0', 'text 1']
    """

    def __init__(self, parts: Iterable[str | Path] | str | Path) -> None:
        given = [parts] if isinstance(parts, (str, Path)) else list(parts)
        self._parts: list[str | Path] = []
        for part in given:
            self._parts += _files(part) if isinstance(part, Path) else [part]
        texts = sum(isinstance(part, str) for part in given)
        self._names = [_name(part) for part in given if isinstance(part, Path)]
        self._names += [f"{texts} texts"] if texts else []

    @property
    def names(self) -> tuple[str, ...]:
        """The files and folders that were given, and how many texts."""
        return tuple(self._names)

    def __iter__(self) -> Iterator[Text]:
        for number, part in enumerate(self._parts):
            if isinstance(part, str):
                yield Text(f"text {number}", part)
            else:
                yield from _texts(part)


def _name(path: Path) -> str:
    """Return a path that can be written in UTF-8, whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "replace")


def _files(path: Path) -> list[str | Path]:
    if not path.exists():
        raise FileNotFoundError(
            2,
            "no such file or folder (of a dataset of the hub, bring the files: "
            "hf download OWNER/NAME --repo-type dataset --local-dir FOLDER)",
            str(path),
        )
    if not path.is_dir():
        return [path]
    found: list[str | Path] = [
        one
        for one in sorted(path.rglob("*"))
        if one.is_file() and not any(p.startswith(".") for p in one.relative_to(path).parts)
    ]
    if not found:
        raise Error(f"the folder {path} holds no file: give one with texts")
    return found


def _texts(path: Path) -> Iterator[Text]:
    if path.suffix == ".parquet":
        yield from _rows(path)
    elif path.suffix == ".jsonl":
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_LONGEST + 1), b"")
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Text(f"{_name(path)}:{number}", _field(line, path, number))
    else:
        if path.stat().st_size > _LONGEST:
            raise Error(
                f"{path} has {path.stat().st_size:,} bytes, and a document may have {_LONGEST:,}: "
                "divide it, or give JSON lines with a document a line"
            )
        yield Text(_name(path), _decoded(path.read_bytes(), str(path)))


def _field(line: bytes, path: Path, number: int) -> str:
    where = f"{path}, line {number}"
    if len(line) > _LONGEST:
        raise Error(f"{where} has more than {_LONGEST:,} bytes, which a document may have")
    try:
        row = json.loads(_decoded(line, where))
    except (ValueError, RecursionError) as error:
        raise Error(f"{where} is no JSON: {error}") from None
    content = row.get(_TEXT) if isinstance(row, dict) else None
    if not isinstance(content, str):
        raise Error(f"{where} has no field {_TEXT!r} with a text")
    return content


def _decoded(content: bytes, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")  # a byte order mark is no text
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Error(f"{where} is no text in UTF-8: leave it out of the corpus, or convert it")
    return text


def _rows(path: Path) -> Iterator[Text]:
    """Yield the rows of a Parquet file, read in pieces."""
    with needing("corpus"):
        from datasets import load_dataset
    try:
        rows = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, row in enumerate(rows):
            content = row.get(_TEXT)
            if not isinstance(content, str):
                raise Error(f"{path}, row {number} has no column {_TEXT!r} with a text")
            yield Text(f"{_name(path)}:{number}", content)
    except (OSError, ValueError) as error:
        raise Error(f"{path} can't be read as Parquet: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an atlas will read, counted before the model runs.

    Attributes:
        documents: number of documents that are read.
        tokens: number of their tokens.
        duplicates: number of documents that repeat an earlier one, and are left out.
        too_short: number of documents of fewer than two tokens, which are left out.
        strided: number of documents longer than a window, which are cut.
        last: number behind the last document's.
        fingerprint: a hash of the tokens of all documents in order.
    """

    documents: int
    tokens: int
    duplicates: int
    too_short: int
    strided: int
    last: int
    fingerprint: str


def documents_of(
    corpus: Iterable[Text],
    model: Any,
    *,
    tokens: int | None,
    length: int,
    found: list[str] | None = None,
) -> Iterator[Document]:
    """Yield the documents of a corpus as a model reads them, each once.

    The last one is that with which the number of tokens is reached; it is read whole.

    Args:
        corpus: the texts.
        model: a `regard.models.LanguageModel`.
        tokens: how many tokens are read at least; None is all.
        length: tokens of a window, of which a longer document has several, one behind the other.
        found: takes "duplicate" or "short" for each text that is left out.
    """
    seen: set[bytes] = set()
    total = 0
    for number, text in enumerate(corpus):
        if tokens is not None and total >= tokens:
            return
        try:
            ids = model.read(text.content).ids if text.content.strip() else ()
        except ValueError as error:  # such as a character without a token
            raise Error(f"{text.source}: {error}") from error
        key = _hash(ids)
        if len(ids) < 2 or key in seen:
            if found is not None:
                found.append("short" if len(ids) < 2 else "duplicate")
            continue
        seen.add(key)
        total += len(ids)
        yield Document.of(number, text.source, ids, length)


def plan(corpus: Iterable[Text], model: Any, *, tokens: int | None, length: int) -> Plan:
    """Count what an atlas will read.

    Raises:
        Error: for a corpus without a document of two tokens.
    """
    left_out: list[str] = []
    chain, documents, count, strided, last = blake2b(digest_size=16), 0, 0, 0, 0
    for one in documents_of(corpus, model, tokens=tokens, length=length, found=left_out):
        documents, last = documents + 1, one.number + 1
        count += one.tokens
        strided += len(one.windows) > 1
        for ids in one.windows:
            chain.update(_hash(ids))
    if not documents:
        raise Error("corpus holds no text of two tokens or more: there is nothing to read")
    return Plan(
        documents=documents,
        tokens=count,
        duplicates=left_out.count("duplicate"),
        too_short=left_out.count("short"),
        strided=strided,
        last=last,
        fingerprint=chain.hexdigest(),
    )


def _hash(ids: Sequence[int]) -> bytes:
    return blake2b(b"".join(one.to_bytes(4, "little") for one in ids), digest_size=16).digest()
