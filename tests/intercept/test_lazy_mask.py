"""A mask that looks like a tensor: what may be done with it, and what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import masking_utils

import regard
from regard.intercept._lazy_mask import LazyMask
from regard.intercept._transformers import attention_forward, mask_interface
from regard.record import RecordError

B, H, L, D = 2, 3, 7, 5
KEEP = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
SEEN = (torch.ones(L, L).tril().bool() & KEEP.bool()[:, None, :])[:, None]


def made(**options):
    return mask_interface(B, L, L, attention_mask=KEEP, **options)


def scores():
    torch.manual_seed(0)
    return torch.randn(B, H, L, L)


REFUSED = {
    "added": lambda mask: scores() + mask,
    "added on the left": lambda mask: mask + 1.0,
    "added in place": lambda mask: scores().add_(mask),
    "subtracted": lambda mask: scores() - mask,
    "subtracted from": lambda mask: 1.0 - mask,
    "multiplied": lambda mask: mask * -1e9,
    "multiplied in place": lambda mask: scores().mul_(mask),
    "cast": lambda mask: mask.float(),
    "cast to integers": lambda mask: mask.long(),
    "cast to what another is": lambda mask: mask.type_as(scores()),
    "copied to numbers": lambda mask: torch.empty(B, 1, L, L).copy_(mask),
    "compared with a number": lambda mask: scores().masked_fill(mask != 0, -1e9),
    "less than a number": lambda mask: mask < 0,
    "added to another": lambda mask: mask + mask,
    "a slice that is added": lambda mask: scores() + mask[:, :, :, :L],
    "heads that are added": lambda mask: scores() + mask.expand(B, H, L, L),
    "a matrix that is added": lambda mask: scores()[:, 0] + mask[:, 0],
    "the others that are multiplied": lambda mask: ~mask * -1e9,
    "both that are multiplied": lambda mask: (mask & mask) * -1e9,
    "joined with numbers": lambda mask: torch.cat([mask, scores()], dim=1),
    "the larger": lambda mask: torch.maximum(scores(), mask),
    "a mean": lambda mask: torch.addcmul(scores(), mask, mask),
    "written to": lambda mask: mask[0, 0].fill_(True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arithmetic_with_a_lazy_mask_is_refused(name):
    mask = made()
    assert isinstance(mask, LazyMask)
    with pytest.raises(RecordError, match="attn_implementation='eager'"):
        REFUSED[name](mask)


MEANT = {
    "where": lambda mask: torch.where(mask, 0.0, -math.inf),
    "fill": lambda mask: scores().masked_fill(~mask, -1e9),
    "fill in place": lambda mask: scores().masked_fill_(mask.logical_not(), -1e9),
    "both": lambda mask: torch.where(mask & mask.flip(0), 1.0, 2.0),
    "a slice": lambda mask: torch.where(mask[:, :, 2:4, :5], 1.0, 2.0),
    "heads": lambda mask: torch.where(mask.expand(B, H, L, L), 1.0, 2.0),
    "count": lambda mask: mask.sum(-1),
    "any": lambda mask: mask.any(-1).logical_not().sum(),
    "entries": lambda mask: scores()[:, :1][mask],
    "like it": lambda mask: torch.full_like(mask, 2.0, dtype=torch.float64),
    "sdpa": lambda mask: F.scaled_dot_product_attention(*scores().expand(3, -1, -1, -1, -1), mask),
}


@pytest.mark.parametrize("name", MEANT)
def test_selecting_by_a_lazy_mask_uses_the_matrix(name):
    assert torch.equal(MEANT[name](made()), MEANT[name](SEEN))


def test_a_call_of_sdpa_with_it_is_recorded_by_its_rule():
    torch.manual_seed(0)
    query, key = torch.randn(2, B, H, L, D)
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, made())
        F.scaled_dot_product_attention(query, key, key, made()[:, :, :])
    with regard.record() as expected:
        F.scaled_dot_product_attention(query, key, key, SEEN)
    for pattern in recording:
        assert pattern.problem.rows.is_interval
        torch.testing.assert_close(pattern.dense(), expected[0].dense(), rtol=0, atol=1e-6)


def test_a_mask_longer_than_the_keys_is_cut():
    torch.manual_seed(0)
    query, key = torch.randn(2, B, H, L, D)
    longer = mask_interface(B, L, L + 4)
    expected = F.scaled_dot_product_attention(query, key, key, is_causal=True)
    context, _ = attention_forward(torch.nn.Identity(), query, key, key, longer)
    # Sums of 7 terms near 1, in another order.
    torch.testing.assert_close(context.transpose(1, 2), expected, rtol=0, atol=1e-6)


# No mask


class Layer(torch.nn.Module):
    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize(
    ("layer", "is_causal", "causal"),
    [
        (torch.nn.Identity(), None, False),  # a model that is causal always gives a mask
        (torch.nn.Identity(), True, True),
        (Layer(True), None, True),
        (Layer(True), False, False),
        (Layer(False), None, False),
        (Layer(False), True, True),
    ],
)
def test_without_a_mask_only_causal_layers_are_causal(layer, is_causal, causal):
    torch.manual_seed(0)
    query, key = torch.randn(2, B, H, L, D)
    context, _ = attention_forward(layer, query, key, key, None, is_causal=is_causal)
    expected = F.scaled_dot_product_attention(query, key, key, is_causal=causal)
    torch.testing.assert_close(context.transpose(1, 2), expected, rtol=0, atol=1e-6)


def test_the_mask_is_none_only_where_every_key_is_visible():
    everything = masking_utils.bidirectional_mask_function
    options = {"mask_function": everything, "allow_is_bidirectional_skip": True}
    assert mask_interface(B, L, L, **options) is None
    assert mask_interface(B, L, L, attention_mask=torch.ones(B, L), **options) is None
    padded = mask_interface(B, L, L, attention_mask=KEEP, **options)
    assert torch.equal(padded.written_out(), KEEP.bool()[:, None, None, :].expand(B, 1, L, L))
    assert mask_interface(B, L, L, allow_is_bidirectional_skip=True) is not None  # causal


# What is trained


def softmaxed(query, key, value, mask):
    """The definition, with a mask that is added."""
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5 + mask, -1) @ value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["plain", "zeros", "-inf", "lowest"])
@pytest.mark.parametrize("shape", [(B, H, L, L), (1, H, L, L), (L, L)])
def test_a_mask_that_is_trained_has_its_gradient(dtype, form, shape):
    torch.manual_seed(0)
    parts = [torch.randn(B, H, L, D, dtype=dtype, requires_grad=True) for _ in range(3)]
    learned = torch.zeros(shape, dtype=dtype) if form == "zeros" else torch.randn(shape).to(dtype)
    learned.requires_grad_()
    hidden = torch.ones(L, L).triu(1).bool()
    number = {"-inf": -math.inf, "lowest": torch.finfo(dtype).min}.get(form)
    weight = torch.randn(B, H, L, D, dtype=dtype)

    def gradients(attend):
        mask = learned if number is None else learned.masked_fill(hidden, number)
        return torch.autograd.grad((attend(*parts, mask) * weight).sum(), [*parts, learned])

    def ours(query, key, value, mask):
        return attention_forward(Layer(False), query, key, value, mask)[0].transpose(1, 2)

    near = 1e-5 if dtype == torch.float32 else 1e-13  # sums of some ten terms near 1
    for actual, expected in zip(gradients(ours), gradients(softmaxed), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=near)
    with torch.no_grad():
        assert not attention_forward(Layer(False), *parts, learned)[0].requires_grad
