"""The pass over the rows: what it is handed to write to, and what becomes of that.

Axes: N heads numbered through, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.gpu.triton._inputs import Launch, power_of_two
from regard.backends.gpu.triton._partial_sums import CHUNKS, Parts, folded
from regard.backends.gpu.triton.kernels.rows import read_rows
from regard.backends.kernel_spec import KernelSpec, Kind


def take_rows(
    launch: Launch, specs: Sequence[KernelSpec], known: Float[Tensor, "N L"]
) -> list[tuple[Tensor, ...]]:
    """Take readouts in one pass: any number of readouts, an image at most."""
    kinds = {spec.kind for spec in specs}
    tops, marked, images = (
        [spec for spec in specs if spec.kind == kind] for kind in (Kind.TOP, Kind.MASS, Kind.IMAGE)
    )
    heads, queries = known.shape
    keys, blocks = launch.problem.keys, launch.query_blocks
    chunks = min(CHUNKS, blocks) if Kind.RECEIVED in kinds else blocks
    per_row = {
        kind: known.new_empty(known.shape) if kind in kinds else None
        for kind in (Kind.ENTROPY, Kind.DISTANCE, Kind.MAX)
    }

    marks = mass = None
    if marked:
        marks = known.new_zeros((power_of_two(len(marked)), keys), dtype=torch.uint8)
        for mark, spec in zip(marks, marked, strict=False):
            assert spec.operand is not None, "keys are marked"
            mark.copy_(spec.operand != 0)
        mass = known.new_empty((len(marks), heads, queries))

    top = top_positions = None
    top_size = max((spec.size for spec in tops), default=1)
    if tops:
        top = known.new_empty((heads, queries, top_size))
        top_positions = known.new_empty(top.shape, dtype=torch.int64)

    received = known.new_zeros((heads, chunks, keys)) if Kind.RECEIVED in kinds else None
    image = None
    image_rows, image_columns = images[0].shape if images else (1, 1)
    pixel_parts = Parts.of_image(queries, image_rows, launch.tiles.queries)
    if images:
        image = known.new_zeros((heads, blocks, pixel_parts.slots, image_columns))

    read_rows[(heads * chunks,)](
        **launch.arguments(),
        entropy=per_row[Kind.ENTROPY],
        distance=per_row[Kind.DISTANCE],
        largest=per_row[Kind.MAX],
        logsumexp=known,
        marks=marks,
        mass=mass,
        top=top,
        top_positions=top_positions,
        received=received,
        image=image,
        top_size=top_size,
        image_rows=image_rows,
        image_columns=image_columns,
        chunks=chunks,
        blocks=blocks,
        MARKS=1 if marks is None else len(marks),
        TOP=power_of_two(top_size),
        SLOTS=pixel_parts.slots,
    )

    by_kind: dict[Kind, tuple[Tensor, ...]] = {
        kind: (tensor,) for kind, tensor in per_row.items() if tensor is not None
    }
    if received is not None:
        by_kind[Kind.RECEIVED] = (folded(received, Parts.of_sum(chunks))[:, 0].float(),)
    if image is not None:
        area = (queries / image_rows) * (keys / image_columns)
        by_kind[Kind.IMAGE] = ((folded(image, pixel_parts) / area).float(),)
    masses = iter(() if mass is None else mass)

    def result(spec: KernelSpec) -> tuple[Tensor, ...]:
        if spec.kind == Kind.MASS:
            return (next(masses),)
        if spec.kind == Kind.TOP:
            assert top is not None and top_positions is not None, "a spec asks for it"  # noqa: PT018 - one invariant
            return top[..., : spec.size], top_positions[..., : spec.size]
        return by_kind[spec.kind]

    return [result(spec) for spec in specs]
