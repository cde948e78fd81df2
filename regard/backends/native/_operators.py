"""The native kernels as torch operators: ``torch.ops.regard.attention`` and its backward.

Autograd, ``torch.compile``, dispatch modes and the profiler handle them like torch's own operators.
Importing this module registers them.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from functools import partial

import torch

from regard.backends.native import _backward, _forward
from regard.backends.native._derivatives import differentiate, refuse, save
from regard.backends.native._fold import fold_backward, fold_forward

# The arguments, as in `Arguments`.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? start, Tensor? stop, Tensor? positions, "
    "SymInt[] affine, Tensor? span_start, Tensor? span_stop, Tensor? span_added, float scale, "
    "float softcap, Tensor? allowed, Tensor? bias, Tensor? alibi, Tensor? sink, float dropout, "
    "Tensor? seed"
)
_LIBRARY = torch.library.Library("regard", "DEF")
_LIBRARY.define(f"attention({_ARGUMENTS}) -> (Tensor context, Tensor logsumexp)")
_LIBRARY.define(
    "attention_backward(Tensor gradient, Tensor context, Tensor logsumexp, bool[] wanted, "
    f"{_ARGUMENTS}) -> Tensor[]"
)


_LIBRARY.impl("attention", _forward.forward, "CPU")
_LIBRARY.impl("attention_backward", _backward.backward, "CPU")
torch.library.register_fake("regard::attention", _forward.like, lib=_LIBRARY)
torch.library.register_fake("regard::attention_backward", _backward.like, lib=_LIBRARY)
torch.library.register_vmap(
    "regard::attention", partial(fold_forward, torch.ops.regard.attention), lib=_LIBRARY
)
torch.library.register_vmap(
    "regard::attention_backward",
    partial(fold_backward, torch.ops.regard.attention_backward),
    lib=_LIBRARY,
)
torch.library.register_autograd(
    "regard::attention", differentiate, setup_context=save, lib=_LIBRARY
)
torch.library.register_autograd("regard::attention_backward", refuse, lib=_LIBRARY)
