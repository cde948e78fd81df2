"""Tensors without values, on the meta device and fake: shapes, dtypes and devices of results."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard

B, H, G, L, S, D, DV = 2, 6, 3, 5, 7, 11, 13


def inputs(dtype, device):
    shapes = (B, H, L, D), (B, G, S, D), (B, G, S, DV)
    return [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]


def ones(*shape, device):
    return torch.ones(shape, dtype=torch.int64, device=device)


# Every mask and every option, made of tensors of a device.
OPTIONS = {
    "plain": lambda _: {},
    "causal": lambda _: {"mask": regard.causal()},
    "at offsets": lambda at: {"mask": regard.causal(offset=ones(B, device=at))},
    "window": lambda _: {"mask": regard.causal() & regard.window(3)},
    "padding": lambda at: {"mask": regard.padding(ones(B, S, device=at)) & regard.masks.prefix(2)},
    "documents": lambda at: {"mask": regard.documents(ones(B, S, device=at))},
    "intervals": lambda at: {"mask": regard.masks.intervals(*ones(2, L, device=at))},
    "dense": lambda at: {"mask": regard.dense(ones(L, S, device=at).bool())},
    "bias": lambda at: {"bias": torch.zeros(H, 1, S, device=at), "softcap": 3.0},
    "alibi": lambda at: {"alibi": torch.ones(H, device=at), "sink": torch.ones(H, device=at)},
    "dropout": lambda _: {"dropout": 0.3},
}
CHECKED = {"padding", "documents"}  # masks that look at their numbers


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
def test_on_the_meta_device_there_are_shapes(name, dtype):
    tensors, options = inputs(dtype, "meta"), OPTIONS[name]("meta")
    context, pattern = regard.attention_with_pattern(*tensors, **options)
    assert context.is_meta
    assert (context.shape, context.dtype) == ((B, H, L, DV), dtype)
    assert pattern.shape == (B, H, L, S)
    steps = regard.explain(*tensors, **options)
    assert steps.weights.is_meta
    assert steps.weights.shape == (B, H, L, S)
    assert steps.context.shape == (B, H, L, DV)


@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"attn_mask": torch.bool}])
def test_torch_s_call_has_shapes_there_too(mask):
    if "attn_mask" in mask:
        mask = {"attn_mask": torch.ones(L, S, dtype=mask["attn_mask"], device="meta")}
    context = regard.scaled_dot_product_attention(
        *inputs(torch.float32, "meta"), **mask, enable_gqa=True
    )
    assert context.is_meta
    assert context.shape == (B, H, L, DV)


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - CHECKED))
def test_fake_tensors_give_fake_results(name, dtype):
    with FakeTensorMode():
        context = regard.attention(*inputs(dtype, "cpu"), **OPTIONS[name]("cpu"))
    assert context.device.type == "cpu"
    assert (context.shape, context.dtype) == ((B, H, L, DV), dtype)


def test_a_concrete_mask_serves_meta_tensors():
    mask = regard.padding(torch.tensor([[0, 1, 1, 1, 1, 1, 0]])) & regard.causal()
    assert regard.attention(*inputs(torch.float32, "meta"), mask=mask).shape == (B, H, L, DV)
