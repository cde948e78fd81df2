"""Text in pieces of bounded size, each for training or validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from regard.errors import Error
from regard.gpt.tokenizer import require_utf8
from regard.gpt.training._permutation import mix
from regard.gpt.training.corpus import require_texts, sections, split_texts, text_files
from regard.gpt.utf8 import NotUTF8Error, decode_utf8

_BLOCK = 1 << 20  # bytes read at a time
_NAMED = 20  # maximum number of files that a message names


class Piece(NamedTuple):
    """A piece of text."""

    text: str
    held_out: bool
    ends: bool
    """True if a document ends here, or the next piece is on the other side of the split."""


class Source(Protocol):
    """An iterable of pieces."""

    size: int
    """Bytes of text, approximately."""

    def notice(self) -> str | None:
        """Return a line about skipped files, if any."""
        return None

    def __iter__(self) -> Iterator[Piece]:
        """Return the pieces, in order; those of a document follow each other."""

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum; after all pieces have been read."""


def source_of(
    texts: Sequence[str] | Path, *, validation: float, seed: int, utf8_only: bool
) -> Source:
    """Return the pieces of texts in memory, or of a file or a folder that is too large for it.

    Args:
        texts: the texts, or the path of a file or a folder.
        validation: the fraction to hold out.
        seed: seed of the choice of held-out text.
        utf8_only: whether files that are not UTF-8 text are skipped.

    Raises:
        Error: no file is UTF-8 text.
        TypeError: `texts` is a str, or one of them is not.
        ValueError: a text holds half of a surrogate pair, which UTF-8 cannot express.
    """
    require_texts(texts)
    if isinstance(texts, Path):
        files = text_files(texts)
        invalid = _not_utf8(files) if utf8_only else {}
        files = [file for file in files if file not in invalid]
        if not files:
            raise Error(f"{texts} holds no UTF-8 text: {_describe(texts, invalid)}")
        return Files(
            texts, files, sum(file.stat().st_size for file in files), validation, seed, [*invalid]
        )
    for number, text in enumerate(texts):
        require_utf8(text, f"texts[{number}]")
    return Texts(texts, *split_texts(texts, validation=validation, seed=seed))


@dataclass
class Texts(Source):
    """Texts in memory, split by `split_texts`."""

    texts: Sequence[str]
    training: Sequence[str]
    held_out: Sequence[str]

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.texts))

    def __iter__(self) -> Iterator[Piece]:
        """Training first; a piece is a whole text, or a part of one that was split."""
        for held_out, texts in ((False, self.training), (True, self.held_out)):
            for text in texts:
                yield Piece(text, held_out, ends=True)

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum."""
        summary = _Summary()
        for text in self.texts:
            summary.begin()
            summary.add(text)
        return summary.as_dict()


@dataclass
class Files(Source):
    """Files, read in blocks; each is a document.

    A file is cut into sections at line ends, of about 4,000 characters, or fewer if the text is
    small; held-out sections are evenly distributed.
    """

    path: Path
    files: Sequence[Path]
    size: int
    validation: float
    seed: int
    skipped: Sequence[Path]
    _summary: _Summary = field(init=False)

    def __post_init__(self) -> None:
        # Small enough that some sections are held out even of a small text.
        share = min(self.validation, 1 - self.validation)
        self.section = max(1, min(4000, self.size // 40, int(self.size * share / 4)))

    def notice(self) -> str | None:
        """Return a line about the skipped files, if any."""
        if not self.skipped:
            return None
        count, total = len(self.skipped), len(self.skipped) + len(self.files)
        names = _names(self.path, self.skipped)
        return f"skipped {count} of {total} files, which are not UTF-8 text: {names}"

    def __iter__(self) -> Iterator[Piece]:
        """File by file, each in order."""
        try:
            yield from self._pieces()
        except NotUTF8Error as error:
            if self.path.is_dir() and (invalid := _not_utf8(self.files)):
                raise Error(
                    f"{self.path} holds other files than UTF-8 text: "
                    f"{_describe(self.path, invalid)}; convert them first, or skip them by "
                    "utf8_only=True, on the command line --utf8-only"
                ) from None
            raise Error(f"{error}; convert it first, or leave it out") from None

    def _pieces(self) -> Iterator[Piece]:
        self._summary = _Summary()
        number = 0
        for file in self.files:
            before: tuple[str, bool] | None = None
            for section in self._sections(file):
                held_out = _is_held_out(number, self.validation, self.seed)
                number += 1
                if before is not None:
                    yield Piece(*before, ends=before[1] is not held_out)
                before = section, held_out
            if before is not None:
                yield Piece(*before, ends=True)
        if self._summary.blank:
            raise Error(f"{self.path} holds no text: {len(self.files)} file(s), all empty or blank")

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum, and how many files were skipped, if any."""
        summary = self._summary.as_dict()
        return summary | {"passed_over": len(self.skipped)} if self.skipped else summary

    def _sections(self, file: Path) -> Iterator[str]:
        """Yield the sections of a file; none where it is empty."""
        rest = ""
        for text in _decoded(file):
            if text and not rest:
                self._summary.begin()
            self._summary.add(text)
            if complete := list(sections(rest + text, self.section)):
                rest = complete.pop()  # may continue in the next block
            yield from complete
        if rest:
            yield rest


class _Summary:
    """Count, size and checksum of texts."""

    def __init__(self) -> None:
        self.texts = self.bytes = 0
        self.blank = True
        self.digest = hashlib.sha256()

    def begin(self) -> None:
        if self.texts:
            self.digest.update(b"\0")
        self.texts += 1

    def add(self, text: str) -> None:
        data = text.encode()
        self.blank = self.blank and not text.strip()
        self.bytes += len(data)
        self.digest.update(data)

    def as_dict(self) -> dict[str, Any]:
        return {"texts": self.texts, "bytes": self.bytes, "sha256": self.digest.hexdigest()}


def _is_held_out(number: int, share: float, seed: int) -> bool:
    """Return whether a section is held out.

    Multiples of the golden ratio cover the unit interval more evenly than random numbers, so about
    the same fraction of every part of the text is held out.
    """
    return (mix(seed) / 2**63 + number * 0.6180339887498949) % 1 < share


def _not_utf8(files: Sequence[Path]) -> dict[Path, str]:
    """Return the files that are not UTF-8 text, each with its error."""
    errors = {}
    for file in files:
        try:
            for _ in _decoded(file):
                pass
        except NotUTF8Error as error:
            errors[file] = str(error)
    return errors


def _describe(root: Path, errors: Mapping[Path, str]) -> str:
    """Return the error of the first of some files, and the names of the others."""
    first, *others = errors
    return errors[first] + (f"; neither are {_names(root, others)}" if others else "")


def _names(root: Path, files: Sequence[Path]) -> str:
    names = [str(file.relative_to(root)) if file != root else str(file) for file in files[:_NAMED]]
    left = len(files) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")


def _decoded(file: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file in blocks."""
    try:
        with file.open("rb") as opened:
            yield from decode_utf8(iter(lambda: opened.read(_BLOCK), b""), str(file))
    except OSError as error:
        raise Error(f"{file} cannot be read: {error.strerror}") from None
