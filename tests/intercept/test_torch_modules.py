"""torch's own transformer modules, on their fast path and off it."""

import pytest
import torch
import torch.nn.functional as F
from support.interception import B, H, L, S, close, encoder, recorded
from torch import nn

import regard

NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"


def want_weights(model, run):
    """Have every `nn.MultiheadAttention` of a model return its weights, and collect them."""
    actual = []
    layers = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]

    def calling(forward):
        def called(*args, **kwargs):
            kwargs |= {"need_weights": True, "average_attn_weights": False}
            output = forward(*args, **kwargs)
            actual.append(output[1].detach())
            return output

        return called

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for layer in layers:
            layer.forward = calling(layer.forward)
        run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for layer in layers:
            del layer.forward
    return actual


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def fast_path(request):
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    torch.backends.mha.set_fastpath_enabled(True)


PADDING = torch.zeros(B, L, dtype=torch.bool)
PADDING[0, 5:] = True
TRIANGLE = torch.ones(L, L).triu(1).bool()
OPTIONS = {
    "plain": {},
    "weights": {"need_weights": True},
    "each head's weights": {"need_weights": True, "average_attn_weights": False},
    "no weights": {"need_weights": False},
    "padding": {"key_padding_mask": PADDING},
    "padding, no weights": {"key_padding_mask": PADDING, "need_weights": False},
    "mask": {"attn_mask": TRIANGLE},
    "mask, no weights": {"attn_mask": TRIANGLE, "need_weights": False},
    "bias": {"attn_mask": torch.randn(L, L, generator=torch.Generator().manual_seed(5))},
    "mask per head": {
        "attn_mask": torch.rand(B * H, L, L, generator=torch.Generator().manual_seed(6)).round()
    },
    "mask and padding": {"attn_mask": TRIANGLE, "key_padding_mask": PADDING},
    "causal": {"attn_mask": TRIANGLE, "is_causal": True, "need_weights": False},
    "causal, weights": {"attn_mask": TRIANGLE, "is_causal": True},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("grad", "training"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention(fast_path, options, grad, training, batch_first):
    model = nn.MultiheadAttention(12, H, batch_first=batch_first).train(training)
    x = torch.randn(B, L, 12) if batch_first else torch.randn(L, B, 12)
    with torch.set_grad_enabled(grad):
        recording = recorded(model, x, x, x, **options)
        (weights,) = want_weights(model, lambda: model(x, x, x, **options))
    assert len(recording) == 1
    close(recording[0], weights)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("need", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"kdim": 5, "vdim": 9}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}],
    ids=str,
)
def test_multihead_attention_of_other_makes(fast_path, options, need, grad):
    model = nn.MultiheadAttention(12, H, batch_first=True, **options).eval()
    x = torch.randn(B, L, 12)
    key, value = torch.randn(B, S, options.get("kdim", 12)), torch.randn(B, S, model.vdim)
    with torch.set_grad_enabled(grad):
        plain = model(x, key, value, need_weights=need)
        with regard.record() as recording:
            seen = model(x, key, value, need_weights=need)
        (weights,) = want_weights(model, lambda: model(x, key, value))
    assert torch.equal(plain[0], seen[0])
    close(recording[0], weights)


def test_multihead_attention_without_a_batch(fast_path):
    model, x = nn.MultiheadAttention(12, H, batch_first=True).eval(), torch.randn(L, 12)
    with torch.no_grad():
        recording = recorded(model, x, x, x)
        (weights,) = want_weights(model, lambda: model(x, x, x))
    torch.testing.assert_close(recording[0].dense().squeeze(0), weights, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("hidden", ["nothing", "padding", "future", "both"])
def test_encoder(fast_path, hidden, batch_first, norm_first, training, grad):
    model = encoder(norm_first=norm_first, batch_first=batch_first).train(training)
    x = torch.randn(B, L, 12) if batch_first else torch.randn(L, B, 12)
    masks = {}
    if hidden in ("padding", "both"):
        masks["src_key_padding_mask"] = PADDING
    if hidden in ("future", "both"):
        masks["mask"] = TRIANGLE
    check_encoder(model, x, masks, grad)


def check_encoder(model, x, masks, grad):
    with torch.set_grad_enabled(grad):
        recording = recorded(model, x, **masks)
        weights = want_weights(model, lambda: model(x, **masks))
    assert [layer.name for layer in recording.layers] == [
        "layers.0.self_attn",
        "layers.1.self_attn",
    ]
    tokens = ~masks.get("src_key_padding_mask", torch.zeros(B, L, dtype=torch.bool))
    for pattern, exact in zip(recording, weights, strict=True):
        length = pattern.shape[-1]  # nested tensors leave trailing padding out
        actual = pattern.dense().transpose(1, 2)[tokens[:, :length]]
        wanted = exact[..., :length, :length].transpose(1, 2)[tokens[:, :length]]
        torch.testing.assert_close(actual, wanted, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings(NESTED)
def test_padding_at_the_end_of_all_sequences():
    padding = PADDING.clone()
    padding[:, 6:] = True  # nested tensors make the batch narrower
    model = encoder().eval()
    x = torch.randn(B, L, 12)
    with torch.no_grad():
        recording = recorded(model, x, src_key_padding_mask=padding)
        weights = want_weights(model, lambda: model(x, src_key_padding_mask=padding))
    assert recording[0].shape == (B, 4, 6, 6)
    torch.testing.assert_close(recording[0].dense()[1], weights[0][1, :, :6, :6], rtol=0, atol=2e-6)


def test_a_batch_that_is_all_tokens_and_has_a_padding_mask():
    nothing = torch.zeros(B, L, dtype=torch.bool)
    model = encoder(nested=False).eval()
    check_encoder(model, torch.randn(B, L, 12), {"src_key_padding_mask": nothing}, False)


@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu])
@pytest.mark.parametrize("hooked", [False, True])
def test_encoder_that_does_and_does_not_fuse(activation, hooked):
    model = encoder(activation=activation, nested=False).eval()
    if hooked:  # torch then leaves the fast path
        model.layers[0].linear1.register_forward_hook(lambda *_: None)
    check_encoder(model, torch.randn(B, L, 12), {}, False)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_single_encoder_layer(norm_first, training, grad):
    model = nn.TransformerEncoderLayer(12, H, 16, 0.0, batch_first=True, norm_first=norm_first)
    model.train(training)
    x = torch.randn(B, L, 12)
    with torch.set_grad_enabled(grad):
        recording = recorded(model, x)
        (weights,) = want_weights(model, lambda: model(x))
    assert recording.layers[0].name == "self_attn"
    close(recording[0], weights, atol=2e-6)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_transformer(fast_path, batch_first, training, grad):
    model = nn.Transformer(12, H, 2, 2, 16, 0.0, batch_first=batch_first).train(training)
    source, target = torch.randn(B, L, 12), torch.randn(B, S, 12)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(S)
    options = {"tgt_mask": mask, "tgt_is_causal": True}
    with torch.set_grad_enabled(grad):
        recording = recorded(model, source, target, **options)
        weights = want_weights(model, lambda: model(source, target, **options))
    assert [(layer.name, layer.kind, layer.index) for layer in recording.layers] == [
        ("encoder.layers.0.self_attn", "encoder", 0),
        ("encoder.layers.1.self_attn", "encoder", 1),
        ("decoder.layers.0.self_attn", "self", 0),
        ("decoder.layers.0.multihead_attn", "cross", 0),
        ("decoder.layers.1.self_attn", "self", 1),
        ("decoder.layers.1.multihead_attn", "cross", 1),
    ]
    assert recording.kinds == ("self", "cross", "encoder")
    for layer, exact in zip(recording.layers, weights, strict=True):
        close(layer.pattern, exact, atol=2e-6)


@pytest.mark.parametrize("module", ["layer", "attention"])
def test_autocast_in_torchs_own_modules(module):
    model = encoder(nested=False).eval()
    x = torch.randn(B, L, 12)
    if module == "attention":
        model = nn.MultiheadAttention(12, 4, batch_first=True).eval()
    inputs = (x, x, x) if module == "attention" else (x,)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        recording = recorded(model, *inputs)
        weights = want_weights(model, lambda: model(*inputs))
    for pattern, exact in zip(recording, weights, strict=True):
        close(pattern, exact, atol=2e-2)  # the returned ones are rounded to bfloat16


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@torch.no_grad()
def test_a_scripted_layer_is_recorded_and_not_changed():
    model, x = encoder(nested=False).eval(), torch.randn(B, L, 12)
    expected = model(x)
    with regard.record(model) as recording:
        model(x)
    model.layers[0] = torch.jit.script(model.layers[0])
    with regard.record(model) as scripted:
        torch.testing.assert_close(model(x), expected)
    assert len(scripted) == 2
    close(scripted[0], recording[0].dense())
    # TorchScript raises an error of its own, which quotes ours.
    refusal = pytest.raises(Exception, match="inside an operator of torch that computes the whole")
    with refusal, regard.intervene(model) as changes:
        changes.ablate()
        model(x)
