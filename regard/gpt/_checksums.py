"""Checksums of a model's JSON files, stored in the header of its weights.

A changed number in `config.json` can leave every shape as it is and make another model of the same
weights. So the file of weights, which is written last, has checksums of the others.

The checksum is of a file's content and not of its bytes, so line ends and indentation don't matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.gpt._tensors import about
from regard.gpt.errors import CheckpointError


def checksum(content: Any) -> str:
    """SHA-256 of the content of a JSON file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    """The checksums of JSON files for the header of the weights, by a key for each name."""
    return {f"sha256.{name}": checksum(json.loads(data)) for name, data in files.items()}


def require_written(weights: Path, contents: Mapping[str, Any]) -> None:
    """Compare JSON files with their checksums in the header of the weights.

    A file without a checksum in the header is accepted: weights of earlier versions have none.

    Args:
        weights: the file of weights.
        contents: the content of each JSON file beside it, by name.

    Raises:
        CheckpointError: one has changed since the weights were written.
    """
    header = about(weights)
    for name, content in contents.items():
        if header.get(f"sha256.{name}", actual := checksum(content)) != actual:
            raise CheckpointError(
                f"{weights.with_name(name)} is damaged: it was changed after {weights.name} was "
                "written, or belongs to another model, since its checksum differs; copy the "
                "model's files together from where they are whole"
            )
