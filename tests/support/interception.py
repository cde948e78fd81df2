"""Models whose attention calls are recorded, and what their patterns must be.

Weights lie in [0, 1], and float32 with head dimensions below 10 keeps their error below 1e-6.
"""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import regard
from regard.intercept._operators import is_intercepting

B, H, L, S, D = 2, 3, 7, 5, 4


def recorded(model, *args, **options):
    """Run a model without and with a recording, which must change no bit of its output."""
    plain = model(*args, **options)
    with regard.record(model) as recording:
        seen = model(*args, **options)
    for one, other in zip(tree_leaves(plain), tree_leaves(seen), strict=True):
        assert one is other is None or torch.equal(one, other)
    return recording


def check_nothing_left_behind():
    assert not torch_modules._global_forward_hooks
    assert not torch_modules._global_forward_pre_hooks
    assert not torch_modules._global_forward_hooks_always_called
    assert not torch_modules._global_forward_hooks_with_kwargs
    assert not is_intercepting()
    assert not any(type(finder).__module__.startswith("regard") for finder in sys.meta_path)
    assert _get_current_function_mode_stack() == []
    assert _get_current_dispatch_mode_stack() == []
    assert torch._C._is_torch_function_enabled()
    flex, dynamo = (
        sys.modules.get(name)
        for name in ("torch.nn.attention.flex_attention", "torch._dynamo.eval_frame")
    )
    if flex is not None:
        assert flex.flex_attention.__code__.co_filename == flex.__file__
        assert "__signature__" not in vars(flex.flex_attention)
    assert checkpoint.__code__.co_filename == torch._compile.__file__  # which wraps it
    assert dynamo is None or dynamo._stance.stance == "default"
    for kind in (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder):
        assert kind.forward.__code__.co_filename == sys.modules[kind.__module__].__file__
        assert "__signature__" not in vars(kind.forward)


def written_out(query, key, *, mask=None, scale=None, is_causal=False, groups=False):
    """The weights in float64; a row that sees nothing has none."""
    query, key = query.detach().double(), key.detach().double()
    if groups:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.double()
    return torch.softmax(scores, -1).nan_to_num(0)


def close(pattern, exact, atol=1e-6):
    assert pattern.shape == exact.shape
    torch.testing.assert_close(pattern.dense().double(), exact.double(), rtol=0, atol=atol)


class Block(nn.Module):
    """Attention as nanoGPT writes it."""

    def __init__(self, dim=12, heads=3, dropout=0.0):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return x + self.c_proj(y.transpose(1, 2).flatten(2))

    def exact(self, x):
        q, k, _ = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1)
        )
        return written_out(q, k, is_causal=True)


class Stack(nn.Module):
    def __init__(self, layers=2, **options):
        super().__init__()
        self.h = nn.ModuleList(Block(**options) for _ in range(layers))

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x


def encoder(*, dim=12, dropout=0.0, norm_first=False, batch_first=True, nested=True, **options):
    layer = nn.TransformerEncoderLayer(
        dim, 4, 16, dropout, norm_first=norm_first, batch_first=batch_first, **options
    )
    nested = nested and batch_first and not norm_first
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
