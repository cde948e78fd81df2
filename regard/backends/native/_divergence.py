"""How far the rows of two patterns are apart, by the kernels.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import Divergence
from regard.backends.native._arguments import Arguments
from regard.backends.native.library import call
from regard.inputs import Problem

_KINDS = {"kl": 0, "js": 1, "tv": 2}


def compare(
    one: Problem,
    other: Problem,
    logsumexps: tuple[Float[Tensor, "N L"], Float[Tensor, "N L"]],
    kind: Divergence,
) -> Float[Tensor, "N L"]:
    """Compare each row of one pattern with that of another, in float64.

    Args:
        one: a problem that `objection_to_comparing` has nothing against.
        other: the problem with which `objection_to_comparing` was called.
        logsumexps: of the rows of either.
        kind: KL divergence, Jensen–Shannon divergence or total variation distance.
    """
    result = torch.empty(logsumexps[0].shape, dtype=torch.float64, device="cpu")
    known = [logsumexp.float().contiguous() for logsumexp in logsumexps]
    packed = [Arguments.of(problem).pack() for problem in (one, other)]
    request = (_KINDS[kind], *(tensor.data_ptr() for tensor in known), result.data_ptr())
    call("regard_compare", *(each.numbers for each in packed), request)
    return result
