"""Autocast: torch's call and regard's drop-in convert their arguments; `attention` does not."""

import pytest
import torch
import torch.nn.functional as F

import regard

B, H, L, S, D = 2, 3, 5, 7, 11


def inputs(*dtypes):
    shapes = (B, H, L, D), (B, H, S, D), (B, H, S, D)
    return [
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


FULL, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "dtypes", [(FULL,) * 3, (HALF, FULL, FULL), (HALF, HALF, FULL), (HALF,) * 3]
)
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32, torch.bfloat16])
def test_sdpa_converts_as_torch_does(mask, dtypes, dtype):
    tensors = [t.requires_grad_() for t in inputs(*dtypes)]
    attn_mask = None if mask is None else torch.eye(L, S).to(mask)
    results = []
    with torch.autocast("cpu", dtype=dtype):
        for call in (regard.scaled_dot_product_attention, F.scaled_dot_product_attention):
            context = call(*tensors, attn_mask=attn_mask)
            results.append((context, *torch.autograd.grad(context.float().sum(), tensors)))
    # A rounding or two of numbers below 4.
    tolerance = 4 * torch.finfo(dtype).eps + 4 * torch.finfo(HALF).eps * (HALF in dtypes)
    for ours, torchs in zip(*results, strict=True):
        assert ours.dtype == torchs.dtype
        torch.testing.assert_close(ours, torchs, rtol=0, atol=2 * tolerance)


def test_float64_is_not_converted():
    tensors = inputs(DOUBLE, DOUBLE, DOUBLE)
    with torch.autocast("cpu", dtype=HALF):
        context = regard.scaled_dot_product_attention(*tensors)
        torchs = F.scaled_dot_product_attention(*tensors)
    assert context.dtype == torchs.dtype == DOUBLE
    torch.testing.assert_close(context, torchs)


def test_without_autocast_mixed_dtypes_are_refused():
    tensors = inputs(HALF, FULL, FULL)
    with pytest.raises(ValueError, match=r"key is torch\.float32 but query is torch\.bfloat16"):
        regard.scaled_dot_product_attention(*tensors)
    with (
        torch.autocast("cpu", dtype=HALF, enabled=False),
        pytest.raises(ValueError, match="key is"),
    ):
        regard.scaled_dot_product_attention(*tensors)


def test_attention_computes_in_the_dtype_of_its_arguments():
    tensors = inputs(FULL, FULL, FULL)
    expected = regard.attention(*tensors)
    with torch.autocast("cpu", dtype=HALF):
        assert torch.equal(regard.attention(*tensors), expected)
        with pytest.raises(ValueError, match=r"convert one: key\.to\(query\.dtype\)"):
            regard.attention(*inputs(HALF, FULL, FULL))


def test_a_recording_shows_what_sdpa_computed():
    tensors = inputs(FULL, FULL, FULL)
    with torch.autocast("cpu", dtype=HALF), regard.record() as recording:
        regard.scaled_dot_product_attention(*tensors)
    weights = regard.explain(*(t.to(HALF) for t in tensors)).weights
    torch.testing.assert_close(recording[0].dense(), weights)
