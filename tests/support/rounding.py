"""Matrix products whose last bits follow their shapes, as libraries' may on any processor."""

from __future__ import annotations

import hashlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

_ATEN = torch.ops.aten
# Everything that torch's products on a CPU come down to, its fused attention included.
PRODUCTS = {
    getattr(_ATEN, name)
    for name in (
        "mm", "bmm", "addmm", "addbmm", "baddbmm", "addmv", "addr", "mv", "dot", "vdot", "linear",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
}  # fmt: skip


class RoundedByShape(TorchDispatchMode):
    """Moves about half of a product's numbers to the next one, by the shapes that went into it."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket not in PRODUCTS:
            return result
        self.products += 1
        shapes = [tuple(t.shape) for t in tree_flatten(args)[0] if isinstance(t, torch.Tensor)]
        seed = int.from_bytes(hashlib.sha256(repr(shapes).encode()).digest()[:6])
        return tree_map(lambda part: _moved(part, seed), result)


def _moved(result, seed):
    if not (isinstance(result, torch.Tensor) and result.is_floating_point()):
        return result
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(result.shape, generator=generator) < 0.5
    return torch.where(chosen, torch.nextafter(result, torch.full_like(result, torch.inf)), result)
