"""The pass over the rows: what it is handed to write to, and what becomes of that.

Axes: N heads numbered through, L queries, S keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.backends.kernel_spec import KernelSpec, Kind
from regard_experiments.gpu.triton._inputs import Launch, power_of_two
from regard_experiments.gpu.triton._partial_sums import CHUNKS, Parts, folded
from regard_experiments.gpu.triton.kernels.rows import read_rows

_OF_ROWS = {
    "entropy": Kind.ENTROPY,
    "distance": Kind.DISTANCE,
    "largest": Kind.MAX,
    "max_score": Kind.MAX_SCORE,
}
_OF_KEYS = {Kind.RECEIVED, Kind.MEAN_RECEIVED, Kind.MAX_RECEIVED}

# Arguments of the kernel, and among them what it writes.
Memory = dict[str, Any]


def take_rows(
    launch: Launch, specs: Sequence[KernelSpec], known: Float[Tensor, "N L"]
) -> list[tuple[Tensor, ...]]:
    """Take readouts in one pass: any number of readouts, an image at most."""
    by_kind: defaultdict[Kind, list[KernelSpec]] = defaultdict(list)
    for spec in specs:
        by_kind[spec.kind].append(spec)
    chunks = launch.query_blocks
    if by_kind.keys() & _OF_KEYS:
        chunks = min(CHUNKS, chunks)
    image, parts = _image_memory(launch, by_kind[Kind.IMAGE], known)
    memory: Memory = {
        **{n: known.new_empty(known.shape) if by_kind[k] else None for n, k in _OF_ROWS.items()},
        **_lag_memory(launch, by_kind[Kind.LAG], known),
        **_mass_memory(launch, by_kind[Kind.MASS], known),
        **_top_memory(by_kind[Kind.TOP], known),
        **_key_memory(launch, {kind for kind, some in by_kind.items() if some}, known, chunks),
        **image,
    }
    read_rows[(launch.heads * chunks,)](
        **launch.arguments(),
        **memory,
        logsumexp=known,
        chunks=chunks,
        blocks=launch.query_blocks,
    )
    results = {
        **{kind: repeat((memory[name],)) for name, kind in _OF_ROWS.items()},
        Kind.LAG: zip(_each(memory["lag"]), strict=True),
        Kind.MASS: zip(_each(memory["mass"]), strict=True),
        Kind.TOP: _top_results(by_kind[Kind.TOP], memory),
        **{kind: repeat((t,)) for kind, t in _key_results(memory, chunks).items()},
    }
    if by_kind[Kind.IMAGE]:
        results[Kind.IMAGE] = repeat((_image_result(by_kind[Kind.IMAGE][0], memory, parts),))
    return [next(results[spec.kind]) for spec in specs]


def _lag_memory(launch: Launch, specs: Sequence[KernelSpec], known: Tensor) -> Memory:
    """Lay down which key each query wants; a number of no key where there is none."""
    if not specs:
        return {"lag_keys": None, "lag": None, "LAGS": 1}
    shape = (power_of_two(len(specs)), *known.shape)
    lag_keys = known.new_full(shape, -1, dtype=torch.int32)
    for wanted, spec in zip(lag_keys, specs, strict=False):
        wanted.copy_(_keys_before(launch, spec.size) if spec.operand is None else spec.operand)
    return {"lag_keys": lag_keys, "lag": known.new_empty((*shape, 2)), "LAGS": len(lag_keys)}


def _keys_before(launch: Launch, distance: int) -> Int[Tensor, "N L"]:
    return (launch.position - distance).expand(*launch.problem.heads, -1).flatten(0, 1)


def _mass_memory(launch: Launch, specs: Sequence[KernelSpec], known: Tensor) -> Memory:
    if not specs:
        return {"marks": None, "mass": None, "MARKS": 1}
    shape = (power_of_two(len(specs)), launch.problem.keys)
    marks = known.new_zeros(shape, dtype=torch.uint8)
    for mark, spec in zip(marks, specs, strict=False):
        assert spec.operand is not None, "keys are marked"
        mark.copy_(spec.operand != 0)
    mass = known.new_empty((len(marks), *known.shape))
    return {"marks": marks, "mass": mass, "MARKS": len(marks)}


def _top_memory(specs: Sequence[KernelSpec], known: Tensor) -> Memory:
    size = max((spec.size for spec in specs), default=1)
    top = known.new_empty((*known.shape, size)) if specs else None
    positions = None if top is None else torch.empty_like(top, dtype=torch.int64)
    return {"top": top, "top_positions": positions, "top_size": size, "TOP": power_of_two(size)}


def _top_results(specs: Sequence[KernelSpec], memory: Memory) -> Iterator[tuple[Tensor, ...]]:
    for spec in specs:
        yield memory["top"][..., : spec.size], memory["top_positions"][..., : spec.size]


def _key_memory(launch: Launch, kinds: set[Kind], known: Tensor, chunks: int) -> Memory:
    """Lay down what is added up over queries, a chunk of them at a time."""
    shape = (launch.heads, chunks, launch.problem.keys)
    wanted = {
        "received": (kinds & {Kind.RECEIVED, Kind.MEAN_RECEIVED}, torch.float32),
        "max_received": (kinds & {Kind.MAX_RECEIVED}, torch.float32),
        "seen_by": (kinds & {Kind.MEAN_RECEIVED}, torch.int32),
    }
    return {
        name: known.new_zeros(shape, dtype=dtype) if some else None
        for name, (some, dtype) in wanted.items()
    }


def _key_results(memory: Memory, chunks: int) -> dict[Kind, Tensor]:
    results: dict[Kind, Tensor] = {}
    whole = Parts.of_sum(chunks)
    if memory["received"] is not None:
        sums = folded(memory["received"], whole).float()
        results[Kind.RECEIVED] = sums[:, 0]
        if memory["seen_by"] is not None:
            counts = folded(memory["seen_by"], whole).float()
            results[Kind.MEAN_RECEIVED] = torch.cat((sums, counts), dim=1)
    if memory["max_received"] is not None:
        most = memory["max_received"].amax(dim=1)
        results[Kind.MAX_RECEIVED] = most.masked_fill(most == torch.inf, torch.nan)
    return results


def _image_memory(
    launch: Launch, specs: Sequence[KernelSpec], known: Tensor
) -> tuple[Memory, Parts]:
    queries, keys = launch.problem.queries, launch.problem.keys
    none = KernelSpec(kind=Kind.IMAGE, shape=(1, 1), height=queries, width=keys)
    spec = specs[0] if specs else none
    rows, columns = spec.shape
    parts = Parts.of_image(queries, spec.height, rows, launch.tiles.queries)
    shape = (launch.heads, launch.query_blocks, parts.slots, columns)
    memory = {
        "image": known.new_zeros(shape) if specs else None,
        "image_rows": rows,
        "image_columns": columns,
        "image_height": spec.height,
        "image_width": spec.width,
        "SLOTS": parts.slots,
    }
    return memory, parts


def _image_result(spec: KernelSpec, memory: Memory, parts: Parts) -> Tensor:
    """Turn sums over pixels into means."""
    rows, columns = spec.shape
    area = (spec.height / rows) * (spec.width / columns)
    return (folded(memory["image"], parts) / area).float()


def _each(tensor: Tensor | None) -> Sequence[Tensor]:
    return () if tensor is None else tensor.unbind()
