"""The matrices of a GGUF in a model of transformers, in the blocks that they have in the file.

Transformers may want rows in another order: of Llama's queries and keys, channels that are rotated
together lie side by side in the file. Whole rows are moved; a matrix that needs more is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.gpt import CheckpointError
from regard.gpt.blocks import KINDS, BlockEmbedding, BlockLinear, Blocks

__all__ = ["other_shape", "place_blocks"]


def place_blocks(
    module: Any,
    stored: Sequence[Any],
    names: Mapping[str, str],
    process: Callable[..., Any],
    file: Path,
) -> list[Any]:
    """Put a file's matrices, as they are, in the place of linear maps and embeddings.

    Args:
        module: the model, whose own matrices may be of any numbers.
        stored: the file's tensors.
        names: of a weight in the module, by that in the file.
        process: what transformers does with the numbers of a tensor.
        file: the file.

    Returns:
        The other tensors.

    Raises:
        CheckpointError: for blocks of another kind, in another layout or of another shape.
    """
    modules: dict[str, Any] = dict(module.named_modules())
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    outside = [path for path, part in modules.items() if tied and part is head]
    others = []
    for one in stored:
        path, _, kind = names.get(one.name, "").rpartition(".")
        place: Any = modules.get(path)
        factor = getattr(
            place, "scalar_embed_scale", None
        )  # of Gemma's embeddings, a class a model
        if kind != "weight" or (type(place) not in {nn.Linear, nn.Embedding} and factor is None):
            others.append(one)
            continue
        blocks = _blocks_of(one, process, file)
        if blocks.shape != place.weight.shape:
            raise other_shape(file, f"{path}.weight", one.shape, place.weight.shape)
        if isinstance(place, nn.Embedding):
            _replace(module, path, BlockEmbedding(blocks, 1.0 if factor is None else float(factor)))
        else:
            _replace(module, path, BlockLinear(blocks, place.bias))
        for other in outside if place is embedding else ():
            _replace(module, other, BlockLinear(blocks))
    return others


def _blocks_of(one: Any, process: Callable[..., Any], file: Path) -> Blocks:
    """Return the rows of a tensor in the order of transformers."""
    import numpy as np

    if one.type not in KINDS:
        known = ", ".join(kind.name for kind in KINDS.values())
        raise CheckpointError(
            f"{file} has {one.name} in {one.type.name}, and blocks are computed as they are in "
            f'{known}: open it without weights="blocks"'
        )
    # What is done with a matrix that has its row's number in each row shows where rows go.
    count = one.shape[0]
    rows = process(weights=np.arange(count)[:, None], name=one.name).weights
    if rows.shape != (count, 1) or set(rows.flat) != set(range(count)):
        raise CheckpointError(
            f"{file} has {one.name} in another layout than transformers: open it without "
            'weights="blocks"'
        )
    return Blocks(((int(one.type), torch.from_numpy(one.read_bytes(file)[rows[:, 0]])),))


def _replace(module: nn.Module, path: str, part: nn.Module) -> None:
    owner, _, attribute = path.rpartition(".")
    setattr(module.get_submodule(owner), attribute, part)


def other_shape(
    file: Path, name: str, shape: Sequence[int], expected: Sequence[int]
) -> CheckpointError:
    """Return the error for a tensor that the configuration has in another shape."""
    return CheckpointError(
        f"{file} has {name} of {list(shape)}, and its own configuration asks for "
        f"{list(expected)}: the file is damaged"
    )
