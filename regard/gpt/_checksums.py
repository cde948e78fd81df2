"""Checksums of a model's JSON files, kept in the header of its weights.

A changed number in `config.json` can leave every shape as it is and make another model of the same
weights. So the file of weights, which is written last, says what the others held.

The checksum is of what a file says and not of its bytes: a tool that ends lines in another way, or
indents otherwise, does not change it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from regard.gpt._tensors import about
from regard.gpt.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def checksum(content: Any) -> str:
    """SHA-256 of what a JSON file says."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    """What the header of the weights says of JSON files: by a key for each name, its checksum."""
    return {_key(name): checksum(json.loads(data)) for name, data in files.items()}


def require_written(weights: Path, contents: Mapping[str, Any]) -> None:
    """Hold JSON files to their checksums in the header of the weights.

    A file whose checksum the header does not have is accepted: weights that were written before
    there were any have none.

    Args:
        weights: the file of weights.
        contents: by the name of each JSON file beside it, what it says.

    Raises:
        CheckpointError: one says something else than when the weights were written.
    """
    expected = about(weights)
    for name, content in contents.items():
        if _key(name) in expected and expected[_key(name)] != checksum(content):
            raise CheckpointError(
                f"{weights.with_name(name)} is damaged: it was changed after {weights.name} was "
                "written, or belongs to another model, since its checksum differs; copy the "
                "model's files together from where they are whole"
            )


def _key(name: str) -> str:
    return f"sha256.{name}"
