"""The tensors of a folder's safetensors files, converted to another dtype some rows at a time.

A file that is mapped into memory takes its own size beside the converted weights; read in pieces,
it takes a piece.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from regard.gpt import CheckpointError
from regard.gpt.folder import INDEX, WEIGHTS, load_json

__all__ = ["StoredTensor", "stored_tensors"]

_PIECE = 2**22  # bytes that are read at a time
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    transformers loads a state dict by ``tensor[...].to(device, dtype)``, as of the slices of
    safetensors; here the second step reads.
    """

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Of its first byte in the file."""

    def __getitem__(self, index: EllipsisType) -> StoredTensor:
        return self

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Tensor:
        """Read it, converted."""
        result = torch.empty(self.shape, device=device, dtype=dtype or self.dtype)
        flat = result.view(-1)
        size = min(_PIECE, len(flat) * self.dtype.itemsize)
        with self.file.open("rb") as opened:
            opened.seek(self.start)
            # Memory of its own: what is freed again would tear holes into the heap.
            piece = mmap(-1, max(size, 1))
            for first in range(0, len(flat), _PIECE // self.dtype.itemsize):
                count = min(_PIECE // self.dtype.itemsize, len(flat) - first)
                if opened.readinto(piece) < count * self.dtype.itemsize:
                    raise ValueError(f"{self.file.name} ends within a tensor")
                flat[first : first + count] = torch.frombuffer(piece, dtype=self.dtype, count=count)
        return result


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by their names; nothing is read yet.

    Raises:
        CheckpointError: if it has none in safetensors.
    """
    files = [folder / WEIGHTS]
    if not files[0].is_file():
        if not (folder / INDEX).is_file():
            pickled = next(iter(sorted(folder.glob("*.bin"))), None)
            cure = (
                f" but {pickled.name}, and reading a pickle runs any code in it; if you trust it, "
                "convert it once with save_pretrained of transformers"
                if pickled
                else ": give the folder of a model with its weights"
            )
            raise CheckpointError(f"{folder} has no {WEIGHTS}{cure}")
        files = sorted({folder / str(n) for n in load_json(folder / INDEX)["weight_map"].values()})
    found: dict[str, StoredTensor] = {}
    for file in files:
        with safe_open(file, framework="pt"):
            pass  # which checks that all of it is there
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        header.pop("__metadata__", None)
        found |= {
            name: StoredTensor(
                file, _DTYPES[one["dtype"]], tuple(one["shape"]), 8 + size + one["data_offsets"][0]
            )
            for name, one in header.items()
        }
    return found
