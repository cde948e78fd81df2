"""Calls of torch's `scaled_dot_product_attention`, alone and in a model."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from support.interception import B, Block, D, H, L, S, Stack, close, encoder, recorded, written_out

import regard
from regard.record import RecordError, read_while_running

NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"


def both(query, key, value, **options):
    """Call SDPA without and with a recording, and compare the two to the last bit."""
    plain = F.scaled_dot_product_attention(query, key, value, **options)
    with regard.record() as recording:
        seen = F.scaled_dot_product_attention(query, key, value, **options)
    assert torch.equal(plain, seen) or torch.equal(plain.isnan(), seen.isnan())
    (pattern,) = recording
    return pattern


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, -1.0, 0.0, 2.0])
def test_sdpa(dtype, causal, scale):
    query, key, value = (torch.randn(B, H, n, D).to(dtype) for n in (L, S, S))
    pattern = both(query, key, value, is_causal=causal, scale=scale)
    # Scores reach 15: float32 rounds them, as the logarithm of a row's sum, by some 2⁻²⁰.
    close(pattern, written_out(query, key, is_causal=causal, scale=scale), atol=2**-19)


MASKS = [(S,), (L, S), (1, S), (L, 1), (H, 1, S), (H, L, S), (1, 1, L, S), (B, 1, 1, S)]
MASKS += [(B, 1, L, S), (1, H, L, S), (B, H, L, S), (B, H, 1, S), (B, H, L, 1)]


@pytest.mark.each_once
@pytest.mark.parametrize("shape", MASKS[1:])
@pytest.mark.parametrize("kind", ["bool", "hiding", "lowest", "adding"])
def test_sdpa_with_a_mask(shape, kind):
    query, key, value = (torch.randn(B, H, n, D) for n in (L, S, S))
    seen = torch.rand(shape) < 0.7
    mask = {
        "bool": seen,
        "hiding": torch.zeros(shape).masked_fill(~seen, -math.inf),
        "lowest": torch.zeros(shape).masked_fill(~seen, torch.finfo(torch.float32).min),
        "adding": torch.randn(shape),
    }[kind]
    pattern = both(query, key, value, attn_mask=mask)
    scores = (query @ key.mT * D**-0.5).double()
    exact = written_out(query, key, mask=mask)
    if kind == "lowest":  # float32 forgets a score beside such a number
        exact = torch.softmax((scores.float() + mask).double(), -1)
    close(pattern, exact)


def test_arguments_by_position():
    query, key, value = (torch.randn(B, H, n, D) for n in (L, S, S))
    seen = torch.rand(L, S) < 0.7
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, value, seen, 0.0, False)
        F.scaled_dot_product_attention(query, key, value, None, 0.0, True)
    close(recording[0], written_out(query, key, mask=seen))
    close(recording[1], written_out(query, key, is_causal=True))


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ((L, D), (S, D)),
        ((H, L, D), (H, S, D)),
        ((3, B, H, L, D), (3, B, H, S, D)),
        ((1, L, D), (1, S, D)),
        ((B, H, 1, D), (B, H, S, D)),
        ((B, H, L, D), (B, H, 1, D)),
        ((1, 1, L, D), (1, 1, L, D)),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_of_any_number_of_axes(query, key, causal):
    query, key, value = torch.randn(query), torch.randn(key), torch.randn(key)
    pattern = both(query, key, value, is_causal=causal)
    # Keys after the last query that none of them sees are taken for free room of a cache.
    keys = min(query.shape[-2], key.shape[-2]) if causal else key.shape[-2]
    close(pattern, written_out(query, key, is_causal=causal)[..., :keys])


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ((B, H, L, D), (1, H, S, D)),
        ((1, H, L, D), (B, H, S, D)),
        ((B, H, L, D), (B, 1, S, D)),
        ((B, 1, L, D), (B, H, S, D)),
        ((1, L, D), (H, S, D)),
        ((H, L, D), (B, H, S, D)),
        ((B, H, L, D), (H, S, D)),
        ((B, H, L, D), (S, D)),
        ((L, D), (H, S, D)),
        ((3, 1, H, L, D), (1, B, H, S, D)),
    ],
)
def test_leading_dimensions_that_broadcast(query, key):
    query, key, value = torch.randn(query), torch.randn(key), torch.randn(key)
    exact = written_out(query, key)
    close(both(query, key, value), exact)


@pytest.mark.parametrize("size", [(B, 0, S), (B, L, 0), (0, L, S)])
def test_empty_sizes(size):
    batch, queries, keys = size
    query, key = torch.randn(batch, H, queries, D), torch.randn(batch, H, keys, D)
    assert both(query, key, key).shape == (batch, H, queries, keys)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_grouped_heads(groups):
    query, key, value = torch.randn(B, 6, L, D), *torch.randn(2, B, groups, S, D)
    pattern = both(query, key, value, enable_gqa=True, is_causal=True)
    close(pattern, written_out(query, key, is_causal=True, groups=True))
    assert pattern.problem.key.shape[1] == groups


def test_value_of_another_width_and_batch():
    query, key, value = torch.randn(1, H, L, D), torch.randn(1, H, S, D), torch.randn(B, H, S, 9)
    close(both(query, key, value), written_out(query, key).expand(B, H, L, S))


def test_dropout_has_no_part_in_the_pattern():
    query, key, value = torch.randn(3, B, H, L, D)
    torch.manual_seed(1)
    plain = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    torch.manual_seed(1)
    with regard.record() as recording:
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    after = torch.rand(3)
    assert torch.equal(plain, seen)
    close(recording[0], written_out(query, key))
    torch.manual_seed(1)
    F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    assert torch.equal(torch.rand(3), after), "the recording drew random numbers"


def test_torchs_own_errors_come_through():
    query, key = torch.randn(B, H, L, D), torch.randn(B, H, S, D + 1)
    with pytest.raises(RuntimeError) as plain:
        F.scaled_dot_product_attention(query, key, key)
    with pytest.raises(RuntimeError) as seen, regard.record():
        F.scaled_dot_product_attention(query, key, key)
    assert str(plain.value) == str(seen.value)


@pytest.mark.filterwarnings(NESTED)
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 3, 4)])
    with pytest.raises(RecordError, match=r"nested tensors.*pad the batch"), regard.record():
        F.scaled_dot_product_attention(nested, nested, nested)


def test_a_model_in_the_manner_of_nanogpt():
    model, x = Stack().eval(), torch.randn(B, L, 12)
    with torch.no_grad():
        recording = recorded(model, x)
        exact = [model.h[0].exact(x), model.h[1].exact(model.h[0](x))]
    assert [(layer.name, layer.kind, layer.index) for layer in recording.layers] == [
        ("h.0", "self", 0),
        ("h.1", "self", 1),
    ]
    for pattern, weights in zip(recording, exact, strict=True):
        close(pattern, weights)


@pytest.mark.parametrize("make", [Stack, lambda **o: encoder(dropout=o["dropout"], dim=12)])
def test_gradients_and_dropout_in_training_are_the_same(make):
    model, x = make(dropout=0.3).train(), torch.randn(B, L, 12)

    def run(watched):
        model.zero_grad()
        inputs = x.clone().requires_grad_()
        torch.manual_seed(3)
        with regard.record(model) if watched else contextlib.nullcontext():
            out = model(inputs)
        out.square().sum().backward()
        return [out, inputs.grad, *(p.grad for p in model.parameters())], torch.rand(2)

    (plain, after_plain), (seen, after_seen) = run(False), run(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    assert torch.equal(after_plain, after_seen)


def test_backward_inside_the_block_works_and_stored_tensors_have_no_graph():
    model, x = Stack(), torch.randn(B, L, 12)
    with regard.record(model) as recording:
        model(x).sum().backward()
    problem = recording[0].problem
    assert not problem.query.requires_grad
    assert problem.query.grad_fn is None
    assert not recording[0].dense().requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_gradients(mode):
    model, x = Stack().eval(), torch.randn(B, L, 12)
    with mode():
        recording = recorded(model, x)
        exact = model.h[0].exact(x)
    close(recording[0], exact)


def test_autocast():
    model, x = Stack().eval(), torch.randn(B, L, 12)
    query, key, value = torch.randn(3, B, H, L, D)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(x), F.scaled_dot_product_attention(query, key, value)
        with regard.record() as recording:
            seen = model(x), F.scaled_dot_product_attention(query, key, value)
        exact = model.h[0].exact(x)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    assert [pattern.problem.query.dtype for pattern in recording] == [torch.bfloat16] * 3
    close(recording[0], exact)
    close(recording[2], written_out(query.bfloat16(), key.bfloat16()))


def test_autocast_leaves_float64_alone():
    query, key = torch.randn(2, B, H, L, D, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(both(query, key, key), written_out(query, key), atol=1e-12)


def test_an_inference_mode_that_ends_inside_the_block():
    """Torch then restores the thread's dispatch keys of the time before the block."""
    model, x = Block().eval(), torch.randn(B, L, 12)
    with contextlib.ExitStack() as stack:
        with torch.inference_mode():
            recording = stack.enter_context(regard.record(model))
            model(x)
        model(x)
    assert len(recording) == 2


class Viewed(torch.nn.Module):
    """Takes a view of the context, which torch's layout allows."""

    def forward(self, x):
        heads = x.unflatten(-1, (H, -1)).transpose(1, 2)
        context = F.scaled_dot_product_attention(heads, heads, heads)
        return context.transpose(1, 2).view(x.shape)


@torch.no_grad()
def test_a_computed_context_lies_in_memory_as_torchs():
    model, x = Viewed(), torch.randn(B, 67, 7 * H)
    expected = model(x)
    with read_while_running(model, regard.readouts.Entropy()):
        torch.testing.assert_close(model(x), expected)
    with regard.intervene(model) as changes:
        changes.ablate(heads=0)
        assert torch.equal(model(x)[..., 7:], expected[..., 7:])
