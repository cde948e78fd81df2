"""Tensors in a safetensors file that carries a checksum of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from regard._files import as_any_new_file, as_os_error
from regard.gpt.errors import CheckpointError

_CHECKSUM = "sha256"


def dump(tensors: Mapping[str, Tensor], *, about: Mapping[str, str] | None = None) -> bytes:
    """The contents of a file of these tensors; arguments as for `write`."""
    tensors = _on_cpu(tensors)
    about = {**(about or {}), _CHECKSUM: checksum(tensors)}
    return safetensors.torch.save(tensors, metadata=about)


def write(
    path: Path, tensors: Mapping[str, Tensor], *, about: Mapping[str, str] | None = None
) -> None:
    """Write a file of these tensors; it is not synced.

    Args:
        path: the file.
        tensors: its tensors.
        about: more entries of its header.

    Raises:
        OSError: it can't be written, such as on a full disk.
    """
    tensors = _on_cpu(tensors)
    about = {**(about or {}), _CHECKSUM: checksum(tensors)}
    with as_os_error(path):
        safetensors.torch.save_file(tensors, path, metadata=about)
    as_any_new_file(path)


def read(path: Path, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The tensors in a file; where it has a checksum of them, they are held to it.

    Raises:
        CheckpointError: the file is cut short, no file of tensors, or was changed.
    """
    expected = about(path).get(_CHECKSUM)
    try:
        tensors = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if expected is not None and checksum(tensors) != expected:
        raise CheckpointError(
            f"{path} is damaged: its tensors were changed after it was written, since their "
            "checksum differs"
        )
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def about(path: Path) -> dict[str, str]:
    """The entries of a file's header, beside names and shapes.

    Raises:
        CheckpointError: the file is cut short, or no file of tensors.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
