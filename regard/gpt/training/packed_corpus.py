"""A corpus on disk: text as token ids in memory-mapped files.

A folder holds the manifest ``corpus.json``, ``tokenizer.json``, and the ids of each
part, ``training.bin`` and ``validation.bin``: unsigned integers of 2 or 4 bytes, lowest byte first,
one after another, with an end token after each document where the tokenizer has one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import Error
from regard.gpt.checkpoint import load_tokenizer
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import TOKENIZER, load_json
from regard.gpt.tokenizer import Tokenizer

MANIFEST = "corpus.json"
FORMAT, VERSION = "regard corpus", 1
PARTS = ("training", "validation")


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A prepared corpus.

    Attributes:
        folder: its folder.
        tokenizer: its tokenizer.
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
        parts = [self.manifest["parts"][part]["sha256"] for part in PARTS]
        return hashlib.sha256("".join([self.manifest["tokenizer"], *parts]).encode()).hexdigest()

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of a token of the held-out text."""
        part = self.manifest["parts"]["validation"]
        return float(part["bytes"] / part["tokens"])


def open_corpus(folder: str | Path, *, verify: bool = True) -> Corpus:
    """Return a corpus that `prepare` made.

    Args:
        folder: its folder.
        verify: whether to read it completely and verify checksums.

    Raises:
        Error: `folder` holds no corpus, or a damaged one.

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
            for part in PARTS
        )
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise Error(
            f"{folder} holds no corpus: it has no {name}; make one with `regard prepare`"
        ) from None
    except NotADirectoryError:
        raise Error(f"{folder} is a file; expected a folder of `regard prepare`") from None
    except CheckpointError as error:
        raise Error(str(error)) from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise Error(f"{folder / MANIFEST} is damaged: {reason}") from None
    return Corpus(
        folder=folder,
        tokenizer=tokenizer,
        training=training,
        validation=validation,
        manifest=manifest,
    )


def _require_ours(folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer) -> None:
    if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
        raise Error(
            f"{folder / MANIFEST} is {manifest['format']!r}, version {manifest['version']!r}, "
            f"and this regard reads {FORMAT!r}, version {VERSION}: prepare it anew"
        )
    for part in PARTS:
        for name in ("tokens", "bytes"):
            count = manifest["parts"][part][name]
            if type(count) is not int or not 0 < count < 2**63:
                raise ValueError(f"its {part} has {name} {count!r}")
        checksum = manifest["parts"][part]["sha256"]
        if not (isinstance(checksum, str) and re.fullmatch("[0-9a-f]{64}", checksum)):
            raise ValueError(f"its {part} has no checksum")
    if not isinstance(manifest["source"], dict):
        raise TypeError(f"its source is {manifest['source']!r}")
    if type(manifest["split"]["validation"]) is not float:
        raise TypeError(f"its split is {manifest['split']!r}")
    if manifest["kind"] not in ("bpe", "char", "given"):
        raise ValueError(f"its kind is {manifest['kind']!r}")
    if hashlib.sha256(tokenizer.to_json().encode()).hexdigest() != manifest["tokenizer"]:
        raise Error(
            f"{folder / TOKENIZER} is not the tokenizer that the corpus was made with: its "
            "checksum differs; prepare the corpus anew"
        )


def _mapped(
    path: Path, dtype: np.dtype[Any], part: dict[str, Any], *, verify: bool
) -> NDArray[np.integer]:
    expected, size = part["tokens"] * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise Error(
            f"{path} has {size:,} bytes and {MANIFEST} says {expected:,}: it was cut short or "
            "changed; prepare the corpus anew"
        )
    if verify:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != part["sha256"]:
            raise Error(
                f"{path} was changed: its checksum is not the one in {MANIFEST}; prepare the "
                "corpus anew"
            )
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="r")
