"""torch's own transformer layers, changed, fused and not, against attention written out.

Axes: B batch, L positions, E model dimension, H heads.
"""

import pytest
import torch
from support import edits as changes
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.written_models import in_torch
from torch import nn

import regard

B, L, E, H = 2, 7, 24, 6
PADDING = torch.zeros(B, L, dtype=torch.bool)
PADDING[1, 5:] = True
TRIANGLE = torch.ones(L, L).triu(1).bool()
FLOATS = torch.randn(L, L, generator=torch.Generator().manual_seed(5)).masked_fill(TRIANGLE, -9e9)
CALLS = {
    "plain": {},
    "padding": {"src_key_padding_mask": PADDING},
    "causal": {"mask": TRIANGLE, "is_causal": True},
}
NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"


def encoder(**options):
    layer = nn.TransformerEncoderLayer(E, H, 16, 0.0, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.normal_(std=0.3)
    return model.eval()


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.each_once
@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("edits", changes.ALL.values(), ids=changes.ALL)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_encoder_on_its_fused_path(call, edits):
    model, x = encoder(), torch.randn(B, L, E)
    with in_torch(ChangedAttention(edits)):
        expected = model(x, **call).detach()
    with torch.no_grad():
        plain = model(x, **call)
        actual = changed(model, edits, lambda: model(x, **call))
    real = ~call.get("src_key_padding_mask", torch.zeros(B, L).bool())
    close(actual[real], expected[real])
    assert (plain - expected)[real].abs().max() > 1e-4


@pytest.mark.each_once
@pytest.mark.parametrize("edits", changes.ALL.values(), ids=changes.ALL)
@pytest.mark.parametrize("mask", [TRIANGLE, FLOATS.clamp(min=-3)], ids=["causal", "biased"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}], ids=["norm last", "norm first"])
def test_an_encoder_with_gradients(options, mask, edits):
    model, x = encoder(**options), torch.randn(B, L, E)
    probe = torch.randn(B, L, E)

    def gradients():
        model.zero_grad()
        out = model(x, mask=mask)
        (out * probe).sum().div(L).backward()
        return [out.detach(), *(p.grad for p in model.parameters())]

    with in_torch(ChangedAttention(edits)):
        expected = gradients()
    actual = changed(model, edits, gradients)
    close(actual[0], expected[0])
    for ours, theirs in zip(actual[1:], expected[1:], strict=True):
        close(ours, theirs, atol=1e-4)


ATTENTION = {
    "plain": {},
    "padding": {"key_padding_mask": PADDING},
    "mask": {"attn_mask": TRIANGLE},
    "bias": {"attn_mask": FLOATS},
    "both": {"attn_mask": TRIANGLE, "key_padding_mask": PADDING},
}
SINGLE = {
    "hide": [edit("knock_out", queries=slice(2, 6), keys=[1, 2], heads=[0, 3])],
    "add and multiply": [
        edit("steer", keys=slice(1, 3), by=1.3),
        edit("temper", by=0.5, heads=slice(1, 4)),
    ],
    "no head": [edit("ablate", heads=2)],
    "mean and hide": [
        edit("ablate", heads=[2, 3], by="mean"),
        edit("knock_out", keys=0, queries=slice(1, None)),
    ],
}


@pytest.mark.each_once
@pytest.mark.parametrize("edits", SINGLE.values(), ids=SINGLE)
@pytest.mark.parametrize("call", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("weights", [None, "average", "each head"])
@pytest.mark.parametrize("fused", [True, False])
def test_multi_head_attention(call, edits, weights, fused):
    model, x = nn.MultiheadAttention(E, H, batch_first=True).eval(), torch.randn(B, L, E)
    attention = ChangedAttention(edits)
    with in_torch(attention):
        expected, _ = model(x, x, x, need_weights=False, **call)
    exact = attention.weights["self", 0]
    wanted = {"need_weights": weights is not None, "average_attn_weights": weights == "average"}
    with torch.set_grad_enabled(not fused):
        out, actual = changed(model, edits, lambda: model(x, x, x, **wanted, **call))
    close(out.detach(), expected.detach())
    if weights is None:
        assert actual is None
    else:
        close(actual.detach(), exact.mean(1) if weights == "average" else exact)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("edits", SINGLE.values(), ids=SINGLE)
def test_multi_head_attention_without_a_batch(edits, average):
    model, x = nn.MultiheadAttention(E, H).eval(), torch.randn(L, E)
    attention = ChangedAttention(edits)
    with in_torch(attention):
        expected, _ = model(x, x, x, need_weights=False)
    exact = attention.weights["self", 0][0]
    with torch.no_grad():
        out, actual = changed(model, edits, lambda: model(x, x, x, average_attn_weights=average))
    close(out, expected.detach())
    assert actual.shape == ((L, L) if average else (H, L, L))
    close(actual, exact.mean(0) if average else exact)


def test_sequences_first_and_another_source():
    edits = [edit("knock_out", keys=slice(1, 3), queries=-1), edit("ablate", heads=1, batch=1)]
    model = nn.MultiheadAttention(E, H, kdim=10, vdim=11, add_bias_kv=True, add_zero_attn=True)
    x, key, value = torch.randn(L, B, E), torch.randn(5, B, 10), torch.randn(5, B, 11)
    with in_torch(ChangedAttention(edits)):
        expected, _ = model(x, key, value, need_weights=False)
    out, weights = changed(model, edits, lambda: model(x, key, value))
    close(out, expected)
    assert weights.shape == (B, L, 5 + 2)


def test_a_decoder_with_cross_attention():
    layer = nn.TransformerDecoderLayer(E, H, 16, 0.0, batch_first=True)
    model, x, memory = nn.TransformerDecoder(layer, 2).eval(), *torch.randn(2, B, L, E)
    edits = [
        edit("knock_out", kind="cross", layers=1, keys=[0, 3]),
        edit("ablate", layers=0, heads=2, by="mean"),
    ]
    sites = [(kind, number) for number in range(2) for kind in ("self", "cross")]
    with in_torch(ChangedAttention(edits), sites):
        expected = model(x, memory, tgt_is_causal=True, tgt_mask=TRIANGLE)
    close(changed(model, edits, lambda: model(x, memory, tgt_mask=TRIANGLE)), expected)


def test_layers_before_the_changed_one_keep_their_fused_kernel():
    model, x = encoder(), torch.randn(B, L, E)
    outputs = []
    model.layers[0].register_forward_hook(lambda *args: outputs.append(args[-1]))
    with torch.no_grad():
        plain = model(x)
        actual = changed(model, [edit("ablate", layers=1, heads=0)], lambda: model(x))
    assert torch.equal(*outputs)
    assert not torch.equal(plain, actual)


def test_a_block_without_changes_keeps_every_bit():
    model, x = encoder(), torch.randn(B, L, E)
    attention = nn.MultiheadAttention(E, H, batch_first=True).eval()
    for trained in (False, True):
        with torch.set_grad_enabled(trained):
            expected = model(x), *attention(x, x, x), attention(x, x, x, need_weights=False)[0]
            with regard.intervene(model), regard.intervene(attention):
                actual = model(x), *attention(x, x, x), attention(x, x, x, need_weights=False)[0]
        for one, other in zip(actual, expected, strict=True):
            assert torch.equal(one, other)
