"""Text to train on: Python's own documentation and code, or files."""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

import torch

from regard.errors import Error
from regard.gpt.utf8 import NotUTF8Error, decode_utf8

Part = Literal["topics", "docstrings", "sources"]

_COPY = 40  # minimum characters of a copied paragraph; shorter ones may recur by chance
# Other packages, tests, and the topics, which `_topics` reads.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data", "lib2to3"}


def python_texts(*parts: Part) -> list[str]:
    """Return texts and code of the running Python; nothing is downloaded.

    Args:
        parts: any of ``"topics"``, the language reference in `help()`; ``"docstrings"``,
            those of the standard library, a text a module; ``"sources"``, that library's code.
            Without any: topics and docstrings.

    Returns:
        The texts, in a fixed order. Paragraphs that repeat an earlier one, as in the reference, are
        left out, so that held-out text is unseen.

    Raises:
        ValueError: a part is not one of the three.
        Error: this Python was installed without the part.

    >>> any("with_stmt" in text for text in python_texts("topics"))
    True
    """
    readers = {"topics": _topics, "docstrings": _docstrings, "sources": _sources}
    texts: list[str] = []
    for part in parts or ("topics", "docstrings"):
        if part not in readers:
            raise ValueError(f"parts holds {part!r}; expected {', '.join(readers)}")
        part_texts = list(readers[part]())
        if not part_texts:
            raise Error(
                f"this Python has no {part}: its installation is a reduced one; "
                "give a text file or a folder of text files instead"
            )
        texts += part_texts
    return _without_copies(texts)


def read_texts(path: str | Path) -> list[str]:
    """Return the text of a UTF-8 file, or of every file below a folder, in order of path.

    Files and folders whose name begins with a dot are skipped. All line ends become line feeds, and
    a byte order mark is dropped.

    Raises:
        Error: `path` is missing, holds no text, or a file in it is not UTF-8.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from regard.gpt import read_texts
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_text("One text.")
        ...     read_texts(folder)
        ['One text.']
    """
    files = text_files(Path(path))
    texts = [text for text in map(_read, files) if text.strip()]
    if not texts:
        raise Error(f"{path} holds no text: {len(files)} file(s), all empty or blank")
    return texts


def text_files(path: Path) -> list[Path]:
    """Return a file itself, or every file below a folder, in order of path; see `read_texts`.

    Raises:
        Error: `path` is missing, a pipe, or a folder without files.
    """
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if _is_visible_file(file, path)]
        if not files:
            raise Error(f"{path} holds no file; expected text files (UTF-8)")
        return files
    if not path.exists():
        raise Error(f"{path} does not exist; expected a text file or a folder of them")
    if not path.is_file():
        raise Error(
            f"{path} is a pipe or a device, and text is read more than once; write it to a file "
            "first"
        )
    return [path]


def require_texts(texts: object) -> None:
    """Raise TypeError unless this is a sequence of texts or a path.

    A str is refused: it is a sequence of characters, each of which would become a document.
    """
    is_ordered = isinstance(texts, Sequence | PathLike)  # a set or a mapping is refused
    if not is_ordered or isinstance(texts, str | bytes):
        raise TypeError(
            f"texts is a {type(texts).__name__}; expected a list of texts, such as [text], or the "
            'path of a file or a folder, such as pathlib.Path("book.txt")'
        )
    if isinstance(texts, Sequence):
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"texts[{number}] is a {type(text).__name__}; expected a str; for a folder of "
                    "files, give its pathlib.Path in place of the list"
                )


def split_texts(
    texts: Sequence[str], *, validation: float, seed: int
) -> tuple[list[str], list[str]]:
    r"""Hold out part of the texts, the same part for the same seed.

    Texts are cut at line ends into sections of about 4,000 characters, or of a fortieth of the
    whole where that is less; sections are drawn at random until they make up the share.
    Neighbouring sections on the same side are joined again.

    Args:
        texts: the texts.
        validation: the share of characters to hold out, above 0 and below 1.
        seed: any integer.

    Returns:
        The training texts and the validation texts, each at least one.

    Raises:
        Error: the texts hold fewer than three characters.
        TypeError: `texts` is a str, or one of them is not.

    >>> training, held_out = split_texts(["a line\n" * 4000], validation=0.1, seed=0)
    >>> sum(map(len, training)), sum(map(len, held_out))
    (25200, 2800)
    """
    require_texts(texts)
    size = sum(map(len, texts))
    if size < 3:
        raise Error("the texts hold fewer than three characters; expected text to train on")
    cuts = [list(sections(text, max(1, min(4000, size // 40)))) for text in texts if text]
    flat = [(t, s) for t, text in enumerate(cuts) for s in range(len(text))]
    generator = torch.Generator(device="cpu").manual_seed(seed)
    order = torch.randperm(len(flat), generator=generator, device="cpu").tolist()
    held_out: set[tuple[int, int]] = set()
    taken = 0
    for i in order[:-1]:  # at least one section stays in training
        text, section = flat[i]
        held_out.add(flat[i])
        taken += len(cuts[text][section])
        if taken >= validation * size:
            break
    return _joined(cuts, flat, held_out, is_held_out=False), _joined(
        cuts, flat, held_out, is_held_out=True
    )


def _joined(
    cuts: list[list[str]],
    flat: list[tuple[int, int]],
    held_out: set[tuple[int, int]],
    *,
    is_held_out: bool,
) -> list[str]:
    """Return the texts of one side; neighbouring sections are joined."""
    texts: list[str] = []
    before = None
    for text, section in flat:
        if ((text, section) in held_out) is not is_held_out:
            continue
        if before == (text, section - 1):
            texts[-1] += cuts[text][section]
        else:
            texts.append(cuts[text][section])
        before = (text, section)
    return texts


def sections(text: str, size: int) -> Iterator[str]:
    """Cut after the first line end that follows `size` characters, or after twice as many."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + size - 1, start + 2 * size) + 1 or start + 2 * size
        yield text[start:end]
        start = end


def _is_visible_file(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.is_file()


def _read(file: Path) -> str:
    try:
        return "".join(decode_utf8([file.read_bytes()], str(file)))
    except NotUTF8Error as error:
        raise Error(f"{error}; convert it first, or leave it out") from None
    except OSError as error:
        raise Error(f"{file} cannot be read: {error.strerror}") from None


def _topics() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError:
        return
    yield from topics.values()


def _docstrings() -> Iterator[str]:
    for source in _sources():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the library's files
            tree = ast.parse(source)
        text = "\n\n\n".join(_docstrings_of(tree))
        if text:
            yield text + "\n"


def _docstrings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _sources() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if not _SKIPPED.intersection(file.relative_to(root).parts):
            yield file.read_text("utf-8")


def _without_copies(texts: list[str]) -> list[str]:
    """Return the texts without paragraphs that occurred before."""
    seen: set[str] = set()
    kept = []
    for text in texts:
        paragraphs = []
        for paragraph in re.split(r"\n[ \t]*\n", text):
            words = " ".join(paragraph.split())
            if len(words) < _COPY or words not in seen:
                paragraphs.append(paragraph)
            seen.add(words)
        if any(paragraph.strip() for paragraph in paragraphs):
            kept.append("\n\n".join(paragraphs))
    return kept
