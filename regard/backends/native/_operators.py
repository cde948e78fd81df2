"""The native kernels as torch operators: ``torch.ops.regard.attention`` and its backward.

Autograd, ``torch.compile``, dispatch modes and the profiler handle them like torch's own operators.
Importing this module registers them.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from functools import partial

import torch

from regard.backends.native._derivatives import RULES
from regard.backends.native._fold import fold

# The arguments, as in `Arguments`.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? start, Tensor? stop, Tensor? positions, "
    "SymInt[] affine, Tensor? span_start, Tensor? span_stop, Tensor? span_added, float scale, "
    "float softcap, Tensor? allowed, Tensor? bias, Tensor? alibi, Tensor? sink, float dropout, "
    "Tensor? seed"
)
_SCHEMAS = {
    "attention": f"{_ARGUMENTS}) -> (Tensor context, Tensor logsumexp)",
    "attention_backward": "Tensor gradient, Tensor context, Tensor logsumexp, bool[] wanted, "
    f"{_ARGUMENTS}) -> Tensor[]",
}
_LIBRARY = torch.library.Library("regard", "DEF")
for _name, _rules in RULES.items():
    _LIBRARY.define(f"{_name}({_SCHEMAS[_name]}")
    _LIBRARY.impl(_name, _rules.kernel, "CPU")
    _operator = f"regard::{_name}"
    torch.library.register_fake(_operator, _rules.like, lib=_LIBRARY)
    _vmap = partial(fold, getattr(torch.ops.regard, _name))
    torch.library.register_vmap(_operator, _vmap, lib=_LIBRARY)
    torch.library.register_autograd(
        _operator, _rules.differentiate, setup_context=_rules.save, lib=_LIBRARY
    )
