"""Text in pieces of bounded size, each for training or held out, as often as it is asked for."""

from __future__ import annotations

import codecs
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from regard.gpt.errors import CorpusError
from regard.gpt.tokenizer import require_utf8
from regard.gpt.training._permutation import mix
from regard.gpt.training.corpus import require_texts, sections, split_texts, text_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BLOCK = 1 << 20  # bytes read at a time
_NAMED = 20  # files that a message names


class Piece(NamedTuple):
    """A piece of text."""

    text: str
    held: bool
    """Whether it is held out."""
    ends: bool
    """Whether a document ends with it: it was the last piece, or the next is on the other side."""


class Source(Protocol):
    """Pieces of text, and what they are made of."""

    size: int
    """Bytes to be read, about."""

    def notice(self) -> str | None:
        """What was passed over, in words; None where nothing was."""

    def __iter__(self) -> Iterator[Piece]:
        """The pieces, in order; those of a document follow each other."""

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum; known when all pieces have been read."""


def source_of(
    texts: Sequence[str] | Path, *, validation: float, seed: int, utf8_only: bool
) -> Source:
    """The pieces of texts in memory, or of a file or a folder that is too large for it.

    Args:
        texts: the texts, or where they lie.
        validation: the share to hold out.
        seed: fixes what is held out.
        utf8_only: whether files that are not UTF-8 text are passed over.

    Raises:
        CorpusError: there is no text.
        TypeError: `texts` is a str, or one of them is none.
        ValueError: a text holds half of a surrogate pair, which UTF-8 cannot express.
    """
    require_texts(texts)
    if isinstance(texts, Path):
        files = text_files(texts)
        odd = _odd(files) if utf8_only else {}
        files = [file for file in files if file not in odd]
        if not files:
            raise CorpusError(f"{texts} holds no UTF-8 text: {_listed(texts, odd)}")
        return Files(
            texts, files, sum(file.stat().st_size for file in files), validation, seed, [*odd]
        )
    for number, text in enumerate(texts):
        require_utf8(text, f"texts[{number}]")
    return Texts(texts, *split_texts(texts, validation=validation, seed=seed))


@dataclass
class Texts:
    """Texts in memory, split by `split_texts`."""

    texts: Sequence[str]
    training: Sequence[str]
    held: Sequence[str]

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.texts))

    def notice(self) -> None:
        """Nothing was passed over."""
        return

    def __iter__(self) -> Iterator[Piece]:
        """Training first; a piece is a whole text, or what the split has left of it."""
        for held, texts in ((False, self.training), (True, self.held)):
            for text in texts:
                yield Piece(text, held, ends=True)

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum."""
        whole = _Whole()
        for text in self.texts:
            whole.begin()
            whole.add(text)
        return whole.told()


@dataclass
class Files:
    """Files, read in blocks; each is a document.

    A file is cut into sections at line ends, of about 4,000 characters or, where the whole is
    small, fewer; some are held out, spread evenly over all.
    """

    path: Path
    files: Sequence[Path]
    size: int
    validation: float
    seed: int
    passed_over: Sequence[Path]
    _whole: _Whole = field(init=False)

    def __post_init__(self) -> None:
        # Small enough that some are held out whatever the size of the text.
        share = min(self.validation, 1 - self.validation)
        self.section = max(1, min(4000, self.size // 40, int(self.size * share / 4)))

    def notice(self) -> str | None:
        """The files that were passed over, in words; None where there are none."""
        if not self.passed_over:
            return None
        count, whole = len(self.passed_over), len(self.passed_over) + len(self.files)
        names = _names(self.path, self.passed_over)
        return f"passed over {count} of {whole} files, which are not UTF-8 text: {names}"

    def __iter__(self) -> Iterator[Piece]:
        """File by file, each in order."""
        try:
            yield from self._pieces()
        except _NotTextError as error:
            if self.path.is_dir() and (odd := _odd(self.files)):
                raise CorpusError(
                    f"{self.path} holds other files than UTF-8 text: {_listed(self.path, odd)}; "
                    "convert them first, or pass over them by utf8_only=True, on the command line "
                    "--utf8-only"
                ) from None
            raise CorpusError(f"{error}; convert it first, or leave it out") from None

    def _pieces(self) -> Iterator[Piece]:
        self._whole = _Whole()
        number = 0
        for file in self.files:
            before: tuple[str, bool] | None = None
            for section in self._sections(file):
                held = _held(number, self.validation, self.seed)
                number += 1
                if before is not None:
                    yield Piece(*before, ends=before[1] is not held)
                before = section, held
            if before is not None:
                yield Piece(*before, ends=True)
        if self._whole.blank:
            raise CorpusError(
                f"{self.path} holds no text: {len(self.files)} file(s), all empty or blank"
            )

    def describe(self) -> dict[str, Any]:
        """Number of texts, bytes and checksum, and how many files were passed over, if any."""
        told = self._whole.told()
        return told | {"passed_over": len(self.passed_over)} if self.passed_over else told

    def _sections(self, file: Path) -> Iterator[str]:
        """The sections of a file; none where it is empty."""
        rest = ""
        for text in _decoded(file):
            if text and not rest:
                self._whole.begin()
            self._whole.add(text)
            if whole := list(sections(rest + text, self.section)):
                rest = whole.pop()  # may go on in the next block
            yield from whole
        if rest:
            yield rest


class _Whole:
    """Count and checksum of texts that pass by."""

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

    def told(self) -> dict[str, Any]:
        return {"texts": self.texts, "bytes": self.bytes, "sha256": self.digest.hexdigest()}


def _held(number: int, share: float, seed: int) -> bool:
    """Whether a section is held out.

    Multiples of the golden ratio spread over the unit interval more evenly than any draw, so that
    every stretch of text has about its share held out.
    """
    return (mix(seed) / 2**63 + number * 0.6180339887498949) % 1 < share


class _NotTextError(CorpusError):
    """A file is not UTF-8 text."""


def _odd(files: Sequence[Path]) -> dict[Path, str]:
    """The files that are not UTF-8 text, each with what is wrong with it."""
    found = {}
    for file in files:
        try:
            for _ in _decoded(file):
                pass
        except _NotTextError as error:
            found[file] = str(error)
    return found


def _listed(root: Path, odd: Mapping[Path, str]) -> str:
    """What is wrong with the first of some files, and the names of the others."""
    first, *others = odd
    return odd[first] + (f"; neither are {_names(root, others)}" if others else "")


def _names(root: Path, files: Sequence[Path]) -> str:
    names = [str(file.relative_to(root)) if file != root else str(file) for file in files[:_NAMED]]
    left = len(files) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")


def _decoded(file: Path) -> Iterator[str]:
    """The text of a UTF-8 file in blocks, every line end a line feed, without a leading mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    done = 0
    try:
        with file.open("rb") as opened:
            while True:
                data = opened.read(_BLOCK)
                yield lines.decode(decoder.decode(data, final=not data), final=not data)
                if not data:
                    return
                done += len(data)
    except UnicodeDecodeError as error:
        offset = done + len(data) - len(error.object) + error.start
        raise _NotTextError(
            f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {offset}"
        ) from None
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror}") from None
