"""How far the rows of two patterns are apart, by the kernel.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import Divergence
from regard.inputs import Problem
from regard_experiments.gpu.triton._inputs import Launch, Tiles, is_roomy, tiles_for
from regard_experiments.gpu.triton.kernels.divergence import read_divergence


def compare_all(
    one: Problem,
    other: Problem,
    logsumexps: tuple[Float[Tensor, "N L"], Float[Tensor, "N L"]],
    kind: Divergence,
) -> Float[Tensor, "N L"]:
    """Compare each row of one pattern with that of another; see `compare`."""
    device = one.query.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        # The tiles of both have to fit, as those of one with vectors as wide as both.
        depth = one.query.shape[-1] + other.query.shape[-1]
        tiles = tiles_for(depth, one.query.dtype, crowded=True, roomy=is_roomy(device))
        first, second = (_launch(problem, tiles) for problem in (one, other))
        result = torch.empty(logsumexps[0].shape, dtype=torch.float64, device=device)
        read_divergence[(first.heads * first.query_blocks,)](
            **first.arguments(),
            others=second.arguments()["inputs"],
            OTHERS_WIDTH=second.tiles.width,
            logsumexp=logsumexps[0].float().contiguous(),
            others_logsumexp=logsumexps[1].float().contiguous(),
            sink=first.per_head(one.sink),
            others_sink=second.per_head(other.sink),
            result=result,
            blocks=first.query_blocks,
            KIND=kind,
        )
    return result


def _launch(problem: Problem, tiles: Tiles) -> Launch:
    launch = Launch.of(problem, None)
    return replace(launch, tiles=tiles._replace(width=launch.tiles.width))
