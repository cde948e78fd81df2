"""Calls of regard's own attention and layers, and of every kind of attention in one run."""

import itertools

import pytest
import torch
from support.interception import B, Block, D, H, L, close, recorded, written_out
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig
from regard.nn import MultiHeadAttention


@pytest.mark.parametrize("grad", [False, True])
def test_regards_own_attention(grad):
    query = torch.randn(B, 6, L, D, requires_grad=grad)
    key, value = torch.randn(2, B, 2, L, D)
    options = {
        "mask": regard.causal() & regard.window(4),
        "scale": 0.4,
        "softcap": 3.0,
        "alibi": 0.5 ** torch.arange(1, 7),
        "sink": torch.randn(6),
        "bias": torch.randn(6, L, L),
    }
    plain, pattern = regard.attention_with_pattern(query, key, value, **options)
    with regard.record() as recording:
        seen = regard.attention(query, key, value, **options)
        other, own = regard.attention_with_pattern(query, key, value, **options)
    assert torch.equal(plain, seen)
    assert torch.equal(plain, other)
    assert len(recording) == 2
    for seen_pattern in (*recording, own):
        close(seen_pattern, pattern.dense())


def test_regards_drop_in_and_layer():
    query, key = torch.randn(2, B, H, L, D)
    layer, x = MultiHeadAttention(12, H, mask=regard.causal()), torch.randn(B, L, 12)
    _, exact = layer.with_pattern(x)
    with regard.record() as recording:
        regard.scaled_dot_product_attention(query, key, key, is_causal=True)
        layer(x)
    close(recording[0], written_out(query, key, is_causal=True))
    close(recording[1], exact.dense())
    assert recording.layers[1].name == "MultiHeadAttention"


def test_regards_gpt():
    config = GPTConfig(vocab_size=11, context=L, layers=3, heads=H, dim=12)
    model, ids = GPT(config).eval(), torch.randint(11, (B, L))
    with torch.no_grad():
        plain, exact = model.with_patterns(ids)
        with regard.record(model) as recording:
            seen = model(ids)
    seen = seen[0] if isinstance(seen, tuple) else seen
    assert torch.equal(plain, seen)
    assert len({layer.name for layer in recording.layers}) == 3
    assert [layer.index for layer in recording.layers] == [0, 1, 2]
    for pattern, weights in zip(recording, exact, strict=True):
        close(pattern, weights.dense())


def test_a_run_with_every_kind_of_call():
    """One run that mixes what can be seen keeps the order of the calls."""
    x = torch.randn(B, L, 12)
    parts = nn.ModuleList(
        [
            Block(),
            nn.TransformerEncoderLayer(12, H, 16, batch_first=True),
            MultiHeadAttention(12, H),
            nn.MultiheadAttention(12, H, batch_first=True),
        ]
    ).eval()

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def forward(self, x):
            for part in itertools.islice(self.parts, 3):
                x = part(x)
            return self.parts[3](x, x, x, need_weights=False)[0]

    model = Mixed().eval()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            recording = recorded(model, x)
        assert [layer.name for layer in recording.layers] == [
            "parts.0",
            "parts.1.self_attn",
            "parts.2",
            "parts.3",
        ]
