"""Calls of xformers, which runs on GPUs alone: by a stand-in of its documented signature.

Weights lie in [0, 1]; float32 with head dimensions below 10 keeps their error below 1e-6.
"""

import pytest
import torch
from support import gpu_libraries
from support.gpu_libraries import (
    COMPUTED,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
    SequenceInfo,
    Triangle,
    blocks,
    memory_efficient_attention,
)
from support.interception import close
from torch import nn

import regard
from regard.record import RecordError

B, H, L, S, D = 2, 3, 5, 7, 3


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    gpu_libraries.install(monkeypatch)


def recorded(query, key, value, **options):
    plain = memory_efficient_attention(query, key, value, **options)
    with regard.record() as recording:
        seen = memory_efficient_attention(query, key, value, **options)
    assert torch.equal(plain, seen)
    seen = recording[0].shape[-1]  # keys after the last one that any query sees are left out
    close(recording[0], COMPUTED[-1][..., :seen])
    assert bool((COMPUTED[-1][..., seen:] == 0).all())
    return recording[0].problem.rows


class Unknown(Triangle):
    """A kind that is known by its definition alone."""

    def rule(self, queries, keys):
        return -3, 2


KINDS = [
    None,
    LowerTriangularMask(),
    LowerTriangularFromBottomRightMask(),
    LowerTriangularFromBottomRightLocalAttentionMask(2),
    LocalAttentionFromBottomRightMask(1, 2),
    Unknown(),
]


@pytest.mark.parametrize("attn_bias", KINDS, ids=lambda bias: type(bias).__name__)
def test_kinds_of_one_sequence(attn_bias):
    query, key, value = torch.randn(B, L, H, D), *torch.randn(2, B, S, H, D)
    rows = recorded(query, key, value, attn_bias=attn_bias, scale=0.4)
    assert rows.allowed is rows.bias is None


def test_tensors_that_are_added():
    query, key, value = torch.randn(B, L, H, D), *torch.randn(2, B, S, H, D)
    bias = torch.randn(B, H, L, S)
    recorded(query, key, value, attn_bias=bias)
    recorded(query, key, value, attn_bias=LowerTriangularMaskWithTensorBias(bias))


def test_tensors_of_three_and_of_five_axes():
    query, key = torch.randn(B, L, D), torch.randn(B, S, D)
    recorded(query, key, key, attn_bias=torch.randn(B, L, S))
    query, key = torch.randn(B, L, 2, 3, D), torch.randn(B, S, 2, 1, D).expand(-1, -1, -1, 3, -1)
    with regard.record() as recording:
        memory_efficient_attention(query, key, key)
    close(recording[0], COMPUTED[-1])
    assert recording[0].problem.key.shape == (B, 2, S, D)  # a key head a group
    recorded(query, key.contiguous(), key, attn_bias=torch.randn(B, 2, 3, L, S))


WINDOW = LowerTriangularFromBottomRightLocalAttentionMask(2)
TOP_LEFT_WINDOW = type("", (Triangle,), {"rule": lambda self, queries, keys: (-1, 0)})()
BLOCKS = {
    "BlockDiagonalMask": (None, {}),
    "BlockDiagonalCausalMask": (LowerTriangularMask(), {}),
    "BlockDiagonalCausalLocalAttentionMask": (TOP_LEFT_WINDOW, {"_window_size": 2}),
    "BlockDiagonalCausalFromBottomRightMask": (LowerTriangularFromBottomRightMask(), {}),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (WINDOW, {"_window_size": 2}),
    "BlockDiagonalPaddedKeysMask": (None, {}),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": (LowerTriangularFromBottomRightMask(), {}),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": (WINDOW, {"_window_size": 2}),
    "BlockDiagonalLocalAttentionPaddedKeysMask": (
        LocalAttentionFromBottomRightMask(1, 2),
        {"window_left": 1, "window_right": 2},
    ),
    "BlockDiagonalGappyKeysMask": (None, {}),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": (LowerTriangularFromBottomRightMask(), {}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_kinds_of_several_sequences(name):
    """Of other lengths than their keys, with gaps between these, and of the same."""
    within, fields = BLOCKS[name]
    query, key, value = torch.randn(1, 11, H, D), *torch.randn(2, 1, 19, H, D)
    queries = SequenceInfo((0, 2), (2, 7), (7, 11))
    for keys in (SequenceInfo((0, 4), (4, 9), (9, 19)), SequenceInfo((0, 3), (5, 11), (13, 17))):
        rows = recorded(query, key, value, attn_bias=blocks(name, queries, keys, within, **fields))
        assert rows.allowed is rows.bias is None
    same = key[:, :11], value[:, :11]
    rows = recorded(query, *same, attn_bias=blocks(name, queries, queries, within, **fields))
    assert rows.allowed is rows.bias is None


def test_what_is_not_known_is_refused():
    query = torch.randn(1, L, H, D)
    paged = type("PagedBlockDiagonalPaddedKeysMask", (Unknown,), {})()
    with pytest.raises(RecordError, match=r"PagedBlock.*gather the keys"), regard.record():
        memory_efficient_attention(query, query, query, attn_bias=paged)
    with (
        pytest.raises(RecordError, match=r"keys of torch\.float64"),
        regard.record(),
    ):
        memory_efficient_attention(query, query.double(), query.double())


class Layer(nn.Module):
    def forward(self, x):  # (B, L, H, D)
        return memory_efficient_attention(x, x, x, attn_bias=LowerTriangularMask())


def test_interventions_change_the_calls():
    layer, x = Layer(), torch.randn(B, L, H, D)
    with regard.intervene(layer) as change, regard.record(layer) as recording:
        change.knock_out(queries=slice(1, None), keys=0, heads=1)
        changed = layer(x)
    weights = recording[0].dense()
    assert bool((weights[:, 1, 1:, 0] == 0).all())
    assert bool((weights[:, 0, 1:, 0] > 0).all())
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, x)
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-5)
