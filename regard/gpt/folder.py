"""A model's folder: the names of its files, and those that are JSON; read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.gpt.errors import CheckpointError

CONFIG, WEIGHTS, TRAINING = "config.json", "model.safetensors", "training.json"
TOKENIZER = "tokenizer.json"
INDEX = "model.safetensors.index.json"
"""Names the file of each weight, where there are several."""


def dump_json(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file."""
    return (json.dumps(content, indent=2) + "\n").encode()


def load_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; `CheckpointError` where it is damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise CheckpointError(f"{path} is damaged: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path} is damaged: its brackets are nested too deep") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: expected a JSON object")
    return content


def json_checksum(content: Any) -> str:
    """SHA-256 of the content of a JSON file."""
    import hashlib  # here, since every help of the command would wait for it

    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def json_checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the checksums of JSON files for the header of the weights, by a key for each name."""
    return {f"sha256.{name}": json_checksum(json.loads(data)) for name, data in files.items()}


def holds_model(folder: str | Path) -> bool:
    """Return whether a folder holds a model's weights."""
    return Path(folder, WEIGHTS).exists()


def holds_pretrained(folder: Path) -> bool:
    """Return True if a folder's `config.json` is of `transformers`: it has a `model_type`."""
    return (folder / CONFIG).is_file() and "model_type" in load_json(folder / CONFIG)
