"""Scores of cached keys beside those that are read off written-out weights, as kvpress does."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

import regard
from regard_experiments.kv import cache_scores
from regard_experiments.kv._layer_pattern import layer_pattern

B, H, G, L, D = 2, 6, 3, 23, 5


@pytest.fixture
def pattern():
    torch.manual_seed(1)
    query = torch.randn(B, H, L, D, dtype=torch.float64)
    return regard.Pattern(query, torch.randn(B, G, L, D).double(), mask=regard.causal())


def test_scores_are_those_of_written_out_weights(pattern):
    w = pattern.dense()
    mean = w.sum(2) / torch.arange(L, 0, -1)
    observed = mean.unflatten(1, (G, -1)).mean(2)
    torch.testing.assert_close(cache_scores.observed_attention(pattern), observed)

    pooled = F.avg_pool1d(w[..., -7:, :-7].mean(2), 3, stride=1, padding=1)
    pooled = pooled.unflatten(1, (G, -1)).mean(2)
    snapkv = F.pad(pooled, (0, 7), value=pooled.max().item() + 1)
    torch.testing.assert_close(cache_scores.snapkv(pattern, 7, 3), snapkv)

    mean = w[..., -1, :-1].mean(1)
    tova = F.pad(mean, (0, 1), value=mean.max().item() + 1)[:, None].expand(B, G, L)
    torch.testing.assert_close(cache_scores.tova(pattern), tova)

    kvzip = w.unflatten(1, (G, -1)).amax((2, 3))
    torch.testing.assert_close(cache_scores.kvzip(pattern), kvzip)


def test_what_has_no_score_is_refused(pattern):
    with pytest.raises(ValueError, match="5 queries and 23 keys"):
        cache_scores.observed_attention(pattern.at(torch.arange(5)))
    with pytest.raises(ValueError, match="window must be"):
        cache_scores.snapkv(pattern, L)
    with pytest.raises(ValueError, match="kernel must be odd"):
        cache_scores.snapkv(pattern, 7, 4)
    with pytest.raises(ValueError, match="not of all heads"):
        cache_scores.tova(pattern[:, 1])


SIZES = {"hidden_size": 42, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": 10}
KEEP = torch.ones(B, L, dtype=torch.bool)
KEEP[1, :4] = False
VISIBLE = torch.ones(L, L, dtype=torch.bool).tril() & KEEP[:, None, None]  # (B, 1, L, L)
SEEN = VISIBLE.any(-1)


def masks():
    """The same mask as transformers makes it for eager attention, for SDPA, flash and flex."""
    yield torch.where(VISIBLE, 0.0, -torch.inf)
    yield VISIBLE
    yield KEEP.long()
    yield create_block_mask(
        lambda b, h, q, k: (q >= k) & KEEP[b, k], B, None, L, L, device="cpu", BLOCK_SIZE=8
    )


@pytest.mark.parametrize(
    "attention", [(LlamaConfig, LlamaAttention), (Qwen3Config, Qwen3Attention)]
)
@pytest.mark.parametrize("last", [None, 7, 1])
def test_a_layer_s_pattern_is_found_from_its_input_and_its_keys(attention, last):
    torch.manual_seed(2)
    config = attention[0](**SIZES, attn_implementation="eager")
    layer = attention[1](config, 0).eval()
    x = torch.randn(B, L, 42)
    positions = LlamaRotaryEmbedding(config)(x, torch.arange(L)[None])
    cached = []

    def update(key, value, *_):
        cached.append(key)
        return key, value

    for mask in masks():
        with torch.no_grad():
            _, weights = layer(
                x,
                position_embeddings=positions,
                attention_mask=torch.where(VISIBLE, 0.0, -torch.inf),
                past_key_values=SimpleNamespace(update=update),
            )
        given = {"position_embeddings": positions, "attention_mask": mask}
        found = layer_pattern(layer, x, cached[-1], given, last=last).dense()
        rows = slice(None if last is None else -last, None)
        expected = torch.where(SEEN[..., None], weights, 0)[..., rows, :]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # float32 products
    with pytest.raises(ValueError, match="not those of its last token"):
        layer_pattern(layer, x, cached[-1].flip(-1), given, last=last)
