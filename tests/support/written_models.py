"""Models that compute their attention by `changed_attention` instead of their own way."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

from support.changed_attention import causal

NAME = "written_out"


class _Numbered:
    """Numbers the modules of a model that attend, a kind at a time, as they are first called."""

    def __init__(self, model):
        self._names = {id(module): name for name, module in model.named_modules()}
        self._sites = {}

    def __call__(self, module):
        if id(module) not in self._sites:
            name, kind = self._names[id(module)], "self"
            if name.startswith("encoder.") and any(
                other.startswith("decoder.") for other in self._names.values()
            ):
                kind = "encoder"
            if "EncDecAttention" in name:
                kind = "cross"
            count = sum(known == kind for known, _ in self._sites.values())
            self._sites[id(module)] = kind, count
        return self._sites[id(module)]


def transformers_model(case, attention, seed=0):
    """A model of `transformers`, whose layers call `attention`; of a case of tests/record."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def forward(
        module,
        query,
        key,
        value,
        attention_mask,
        scaling=None,
        softcap=None,
        s_aux=None,
        position_bias=None,
        **others,
    ):
        hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        if attention_mask is not None:
            hidden = attention_mask[..., : key.shape[2]] < torch.finfo(attention_mask.dtype).min / 2
        context = attention.attend(
            site(module),
            query,
            key,
            value,
            hidden=hidden,
            bias=position_bias,
            scale=scaling,
            softcap=softcap,
            sink=s_aux,
        )
        return context.transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, eager_mask)
    model = case.build(NAME, seed)
    site = _Numbered(model)
    return model


@contextmanager
def in_torch(attention, sites=None):
    """Let torch's own layers call `attention`: their n-th call is of the n-th site."""
    own, calls = F.scaled_dot_product_attention, []

    def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
        site = ("self", len(calls)) if sites is None else sites[len(calls)]
        calls.append(site)
        hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        if is_causal:
            hidden = causal(query.shape[2], key.shape[2])
        bias = None
        if attn_mask is not None:
            floats = attn_mask.dtype != torch.bool
            hidden = attn_mask == -torch.inf if floats else ~attn_mask
            bias = attn_mask.masked_fill(hidden, 0) if floats else None
        return attention.attend(site, query, key, value, hidden=hidden, bias=bias, scale=scale)

    F.scaled_dot_product_attention = sdpa
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def in_our_gpt(model, attention, monkeypatch):
    """Let our GPT call `attention`, with a mask made of its configuration alone."""
    config, calls = model.config, []

    def written(query, key, value, mask=None, dropout=0.0, scale=None, softcap=None):
        layer = len(calls) % config.layers
        calls.append(layer)
        hidden = causal(query.shape[2], key.shape[2], _window(config, layer))
        return attention.attend(("self", layer), query, key, value, hidden=hidden)

    with monkeypatch.context() as patch:
        patch.setattr("regard.gpt.layers.attention", written)
        yield


def _window(config, layer):
    if config.window is None:
        return None
    every = config.global_every
    return None if every and (layer + 1) % every == 0 else config.window
