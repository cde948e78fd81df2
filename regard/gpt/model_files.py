"""The tensors of a model's folder, in safetensors, with checksums of them and of the JSON beside.

A change in `config.json` can keep every shape and yet change the model. So the file of weights,
which is written last, has checksums of the JSON files in its header, and one of its own tensors. A
JSON file's checksum is of its content, not of its bytes, so line ends and indentation don't matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from regard import _huge_pages
from regard._files import as_any_new_file, as_os_error
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import json_checksum

_CHECKSUM = "sha256"
_PLAIN = (Tensor, nn.Parameter)
_PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_written(weights: Path, contents: Mapping[str, Any]) -> None:
    """Compare JSON files with their checksums in the header of the weights.

    A file without a checksum in the header is accepted: weights of earlier versions have none.

    Args:
        weights: the file of weights.
        contents: the content of each JSON file beside it, by name.

    Raises:
        CheckpointError: if one has changed since the weights were written.
    """
    header = about(weights)
    for name, content in contents.items():
        if header.get(f"sha256.{name}", actual := json_checksum(content)) != actual:
            raise CheckpointError(
                f"{weights.with_name(name)} is damaged: it was changed after {weights.name} was "
                "written, or belongs to another model, since its checksum differs; copy the "
                "model's files together from where they are whole"
            )


def dump(tensors: Mapping[str, Tensor], *, about: Mapping[str, str] | None = None) -> bytes:
    """Return the contents of a file of these tensors; arguments as for `write`."""
    tensors, about = _with_checksum(tensors, about)
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
        OSError: if it can't be written, such as on a full disk.
    """
    tensors, about = _with_checksum(tensors, about)
    with as_os_error(path):
        safetensors.torch.save_file(tensors, path, metadata=about)
    as_any_new_file(path)


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file; compared with the file's checksum, if it has one.

    Raises:
        CheckpointError: if the file is truncated, not a file of tensors, or was changed.
    """
    expected = about(path).get(_CHECKSUM)
    try:
        tensors = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if expected is not None and checksum(tensors) != expected:
        raise _changed(path)
    return tensors


def read_each(path: Path) -> Iterator[tuple[str, Tensor]]:
    """A model's weights in a file with their names, one after another, none of which is kept here.

    Raises:
        CheckpointError: as for `read`, before the first; or for an invalid weight.
    """
    with opened(path) as file:
        names = sorted(file.keys())
        expected = (file.metadata() or {}).get(_CHECKSUM)
        tensors = ((name, file.get_tensor(name)) for name in names)
        if expected is not None and _checksum_of(tensors) != expected:
            raise _changed(path)
        for name in names:
            tensor = file.get_tensor(name)
            require_weight(path, name, tensor)
            yield name, tensor


def why_no_weight(tensor: Tensor) -> str | None:
    """Why a tensor can't be a weight of a model, as the end of a sentence; None where it can."""
    if tensor.dtype not in _PRECISIONS:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _PRECISIONS)
        return f"is {str(tensor.dtype).removeprefix('torch.')}, and weights are one of {expected}"
    if tensor.numel() and not all(end.float().isfinite() for end in tensor.aminmax()):
        return "holds NaN, infinity or more than float32 does"
    return None


def require_weight(path: Path, name: str, tensor: Tensor) -> None:
    """Raise CheckpointError where a tensor in a file can't be a weight of a model."""
    if (why := why_no_weight(tensor)) is None:
        return
    if tensor.dtype not in _PRECISIONS:
        cure = "a quantised model's scales are not read; give the model as it was before"
    else:
        cure = "its training diverged, or the file was changed; give an earlier checkpoint"
    raise CheckpointError(f"{path}: {name} {why}: {cure}")


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: its tensors were changed after it was written, since their checksum "
        "differs"
    )


def about(path: Path) -> dict[str, str]:
    """Return the entries of a file's header, beside names and shapes.

    Raises:
        CheckpointError: the file is cut short, or no file of tensors.
    """
    with opened(path) as file:
        return dict(file.metadata() or {})


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, from the file's header; `CheckpointError` as for `about`."""
    with opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (the file is not a mapping)


def count_layers(names: Iterable[str]) -> int:
    """Return the layers of a GPT whose weights have these names."""
    return sum(name.endswith(".ln_1.weight") for name in names)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of tensors, which are read one by one; `CheckpointError` where it is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and numbers."""
    return _checksum_of((name, tensors[name]) for name in sorted(tensors))


def _checksum_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _with_checksum(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors on the CPU, and the header's entries with their checksum."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return tensors, {**(about or {}), _CHECKSUM: checksum(tensors)}


def load_into_huge_pages(
    shapes: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """Copy the weights of a file to huge pages, in float32; they come one by one.

    Reading them from the system's page cache of the file would be slower.
    """
    memory = _huge_pages.allocate(*((shape, torch.float32) for shape in shapes.values()))
    state = dict(zip(shapes, memory, strict=True))
    for name, weight in weights:
        state[name].copy_(weight)
    return state


def to_huge_pages(model: nn.Module) -> None:
    """Move the weights on the CPU to huge pages, next to each other.

    `load` returns a model with its weights there, until it is converted to another dtype.
    Parameters and buffers keep their identity.
    """
    tensors = [
        tensor
        for tensor in chain(model.parameters(), model.buffers())
        if type(tensor) in _PLAIN and tensor.is_cpu and tensor.is_contiguous()
    ]
    with torch.no_grad():
        memory = _huge_pages.allocate(*((tensor.shape, tensor.dtype) for tensor in tensors))
        for tensor, moved in zip(tensors, memory, strict=True):
            tensor.data = moved.copy_(tensor)
