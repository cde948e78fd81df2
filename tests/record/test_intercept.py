"""What a recording sees of a model's calls, and that the model computes what it did without it.

Patterns are held against the formula in float64; weights lie in [0, 1], and float32 with head
dimensions below 10 keeps their error below 1e-6.
"""

import contextlib
import functools
import inspect
import itertools
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard
from regard.gpt import GPT, GPTConfig
from regard.nn import MultiHeadAttention
from regard.record import RecordError

NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"
B, H, L, S, D = 2, 3, 7, 5, 4


@pytest.fixture(autouse=True)
def nothing_left_behind():
    torch.manual_seed(0)
    yield
    check_nothing_left_behind()


def check_nothing_left_behind():
    assert not torch_modules._global_forward_hooks
    assert not torch_modules._global_forward_pre_hooks
    assert not torch_modules._global_forward_hooks_always_called
    assert not torch_modules._global_forward_hooks_with_kwargs
    assert _get_current_function_mode_stack() == []
    assert _get_current_dispatch_mode_stack() == []
    assert torch._C._is_torch_function_enabled()


def written_out(query, key, *, mask=None, scale=None, is_causal=False, groups=False):
    """The weights in float64; a row that sees nothing has none."""
    query, key = query.detach().double(), key.detach().double()
    if groups:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.double()
    return torch.softmax(scores, -1).nan_to_num(0)


def close(pattern, exact, atol=1e-6):
    assert pattern.shape == exact.shape
    torch.testing.assert_close(pattern.dense().double(), exact.double(), rtol=0, atol=atol)


# SDPA


def both(query, key, value, **options):
    """Call SDPA without and with a recording, and compare the two to the last bit."""
    plain = F.scaled_dot_product_attention(query, key, value, **options)
    with regard.record() as recording:
        seen = F.scaled_dot_product_attention(query, key, value, **options)
    assert torch.equal(plain, seen) or torch.equal(plain.isnan(), seen.isnan())
    (pattern,) = recording.attentions
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
    # Keys behind the last query that none of them sees are taken for room of a cache.
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
    assert pattern.parts()[0].key.shape[1] == groups


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


class Block(nn.Module):
    """Attention as nanoGPT writes it."""

    def __init__(self, dim=12, heads=3, dropout=0.0):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return x + self.c_proj(y.transpose(1, 2).flatten(2))

    def exact(self, x):
        q, k, _ = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1)
        )
        return written_out(q, k, is_causal=True)


class Stack(nn.Module):
    def __init__(self, layers=2, **options):
        super().__init__()
        self.h = nn.ModuleList(Block(**options) for _ in range(layers))

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x


def test_a_model_in_the_manner_of_nanogpt():
    model, x = Stack().eval(), torch.randn(B, L, 12)
    with torch.no_grad():
        plain = model(x)
        with regard.record(model) as recording:
            seen = model(x)
        exact = [model.h[0].exact(x), model.h[1].exact(model.h[0](x))]
    assert torch.equal(plain, seen)
    assert [(layer.name, layer.kind, layer.index) for layer in recording.layers] == [
        ("h.0", "self", 0),
        ("h.1", "self", 1),
    ]
    for pattern, weights in zip(recording, exact, strict=True):
        close(pattern, weights)


@pytest.mark.parametrize("make", [Stack, lambda **o: encoder(dropout=o["dropout"], dim=12)])
def test_gradients_and_dropout_in_training_are_the_same(make):
    model, x = make(dropout=0.3).train(), torch.randn(B, L, 12)

    def run(recorded):
        model.zero_grad()
        given = x.clone().requires_grad_()
        torch.manual_seed(3)
        with regard.record(model) if recorded else contextlib.nullcontext():
            out = model(given)
        out.square().sum().backward()
        return [out, given.grad, *(p.grad for p in model.parameters())], torch.rand(2)

    (plain, after_plain), (seen, after_seen) = run(False), run(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    assert torch.equal(after_plain, after_seen)


def test_backward_inside_the_block_and_what_is_kept_has_no_graph():
    model, x = Stack(), torch.randn(B, L, 12)
    with regard.record(model) as recording:
        model(x).sum().backward()
    problem, _ = recording[0].parts()
    assert not problem.query.requires_grad
    assert problem.query.grad_fn is None
    assert not recording[0].dense().requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_gradients(mode):
    model, x = Stack().eval(), torch.randn(B, L, 12)
    with mode():
        plain = model(x)
        with regard.record(model) as recording:
            seen = model(x)
        exact = model.h[0].exact(x)
    assert torch.equal(plain, seen)
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
    assert [pattern.parts()[0].query.dtype for pattern in recording] == [torch.bfloat16] * 3
    close(recording[0], exact)
    close(recording[2], written_out(query.bfloat16(), key.bfloat16()))


def test_autocast_leaves_float64_alone():
    query, key = torch.randn(2, B, H, L, D, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(both(query, key, key), written_out(query, key), atol=1e-12)


# torch's own modules


def want_weights(model, run):
    """Have every `nn.MultiheadAttention` of a model return its weights, and collect them."""
    found = []
    layers = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]

    def calling(forward):
        def called(*args, **kwargs):
            kwargs |= {"need_weights": True, "average_attn_weights": False}
            output = forward(*args, **kwargs)
            found.append(output[1].detach())
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
    return found


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
        plain = model(x, x, x, **options)
        with regard.record(model) as recording:
            seen = model(x, x, x, **options)
        (weights,) = want_weights(model, lambda: model(x, x, x, **options))
    assert torch.equal(plain[0], seen[0])
    assert (plain[1] is None) == (seen[1] is None)
    assert plain[1] is None or torch.equal(plain[1], seen[1])
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
        plain = model(x, x, x)
        with regard.record(model) as recording:
            seen = model(x, x, x)
        (weights,) = want_weights(model, lambda: model(x, x, x))
    assert torch.equal(plain[0], seen[0])
    torch.testing.assert_close(recording[0].dense().squeeze(0), weights, rtol=0, atol=1e-6)


def encoder(*, dim=12, dropout=0.0, norm_first=False, batch_first=True, nested=True, **options):
    layer = nn.TransformerEncoderLayer(
        dim, 4, 16, dropout, norm_first=norm_first, batch_first=batch_first, **options
    )
    nested = nested and batch_first and not norm_first
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)


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
        plain = model(x, **masks)
        with regard.record(model) as recording:
            seen = model(x, **masks)
        weights = want_weights(model, lambda: model(x, **masks))
    assert torch.equal(plain, seen)
    assert [layer.name for layer in recording.layers] == [
        "layers.0.self_attn",
        "layers.1.self_attn",
    ]
    tokens = ~masks.get("src_key_padding_mask", torch.zeros(B, L, dtype=torch.bool))
    for pattern, exact in zip(recording, weights, strict=True):
        length = pattern.shape[-1]  # nested tensors leave trailing padding out
        found = pattern.dense().transpose(1, 2)[tokens[:, :length]]
        wanted = exact[..., :length, :length].transpose(1, 2)[tokens[:, :length]]
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings(NESTED)
def test_padding_at_the_end_of_all_sequences():
    padding = PADDING.clone()
    padding[:, 6:] = True  # nested tensors make the batch narrower
    model = encoder().eval()
    x = torch.randn(B, L, 12)
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with regard.record(model) as recording:
            seen = model(x, src_key_padding_mask=padding)
        weights = want_weights(model, lambda: model(x, src_key_padding_mask=padding))
    assert torch.equal(plain, seen)
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
        plain = model(x)
        with regard.record(model) as recording:
            seen = model(x)
        (weights,) = want_weights(model, lambda: model(x))
    assert torch.equal(plain, seen)
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
        plain = model(source, target, **options)
        with regard.record(model) as recording:
            seen = model(source, target, **options)
        weights = want_weights(model, lambda: model(source, target, **options))
    assert torch.equal(plain, seen)
    assert [(layer.name, layer.kind, layer.index) for layer in recording.layers] == [
        ("encoder.layers.0.self_attn", "encoder", 0),
        ("encoder.layers.1.self_attn", "encoder", 1),
        ("decoder.layers.0.self_attn", "self", 0),
        ("decoder.layers.0.multihead_attn", "cross", 0),
        ("decoder.layers.1.self_attn", "self", 1),
        ("decoder.layers.1.multihead_attn", "cross", 1),
    ]
    assert recording.kinds == ("self", "cross", "encoder")
    for pattern, exact in zip(recording.patterns(), weights, strict=True):
        close(pattern, exact, atol=2e-6)


@pytest.mark.parametrize("module", ["layer", "attention"])
def test_autocast_in_torchs_own_modules(module):
    model = encoder(nested=False).eval()
    x = torch.randn(B, L, 12)
    if module == "attention":
        model = nn.MultiheadAttention(12, 4, batch_first=True).eval()
    given = (x, x, x) if module == "attention" else (x,)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(*given)
        with regard.record(model) as recording:
            seen = model(*given)
        weights = want_weights(model, lambda: model(*given))
    plain, seen = (out[0] if isinstance(out, tuple) else out for out in (plain, seen))
    assert torch.equal(plain, seen)
    for pattern, exact in zip(recording, weights, strict=True):
        close(pattern, exact, atol=2e-2)  # the returned ones are rounded to bfloat16


# regard's own


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
    plain, pattern = regard.attention(query, key, value, return_pattern=True, **options)
    with regard.record() as recording:
        seen = regard.attention(query, key, value, **options)
        other, own = regard.attention(query, key, value, return_pattern=True, **options)
    assert torch.equal(plain, seen)
    assert torch.equal(plain, other)
    assert len(recording) == 2
    for seen_pattern in (*recording, own):
        close(seen_pattern, pattern.dense())


def test_regards_drop_in_and_layer():
    query, key = torch.randn(2, B, H, L, D)
    layer, x = MultiHeadAttention(12, H, mask=regard.causal()), torch.randn(B, L, 12)
    _, exact = layer(x, return_pattern=True)
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
        plain, exact = model(ids, return_patterns=True)
        with regard.record(model) as recording:
            seen = model(ids)
    seen = seen[0] if isinstance(seen, tuple) else seen
    assert torch.equal(plain, seen)
    assert len({layer.name for layer in recording.layers}) == 3
    assert [layer.index for layer in recording.layers] == [0, 1, 2]
    for pattern, weights in zip(recording, exact, strict=True):
        close(pattern, weights.dense())


# Which calls, and whose


def test_a_given_model_is_recorded_alone():
    model, other, x = Stack(), Stack(), torch.randn(B, L, 12)
    with regard.record(model) as recording:
        other(x)
        model(x)
        F.scaled_dot_product_attention(*torch.randn(3, B, H, L, D))
    assert len(recording) == 2
    close(recording[0], model.h[0].exact(x))
    with regard.record(model.h[1]) as recording:
        model(x)
    assert len(recording) == 1
    close(recording[0], model.h[1].exact(model.h[0](x)))
    with regard.record() as recording:
        other(x)
        model(x)
    assert [layer.name for layer in recording.layers] == ["h.0", "h.1", "h.0", "h.1"]
    assert [layer.index for layer in recording.layers] == [0, 1, 2, 3]


def test_calls_outside_any_module_have_no_name():
    with regard.record() as recording:
        F.scaled_dot_product_attention(*torch.randn(3, B, H, L, D))
    assert recording.layers[0].name == ""
    assert recording.layers[0].kind == "self"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("cross_attn", "cross"),
        ("crossattention", "cross"),
        ("encoder_attn", "cross"),
        ("EncDecAttention", "cross"),
        ("attn", "self"),
    ],
)
def test_kinds_by_name(path, kind):
    model, x = nn.Module(), torch.randn(B, L, 12)
    model.add_module(path, Block())
    model.forward = functools.partial(getattr(model, path))
    with regard.record(model) as recording:
        model(x)
    assert recording.layers[0].kind == kind


def test_an_encoder_without_a_decoder_attends_to_itself():
    model, x = nn.Module(), torch.randn(B, L, 12)
    model.encoder = Stack()
    model.forward = functools.partial(model.encoder)
    with regard.record(model) as recording:
        model(x)
    assert recording.kinds == ("self",)
    model.decoder = nn.Linear(12, 12)
    with regard.record(model) as recording:
        model(x)
    assert recording.kinds == ("encoder",)


def test_nested_recordings_each_see_their_own_time():
    model, x = Block(), torch.randn(B, L, 12)
    with regard.record() as outer:
        model(x)
        with regard.record() as inner:
            model(x + 1)
        model(x + 2)
        check = _get_current_function_mode_stack()
        assert len(check) == 1
    with regard.record() as later:
        model(x + 3)
    assert [len(recording) for recording in (outer, inner, later)] == [3, 1, 1]
    for pattern, shift in zip((*outer, *inner, *later), (0, 1, 2, 1, 3), strict=True):
        close(pattern, model.exact(x + shift))


def test_a_recording_within_a_model_of_a_recording():
    model, x = Stack(), torch.randn(B, L, 12)
    inner = []

    def look(module, args):
        with regard.record() as recording:
            module.forward(*args)
        inner.append(recording)

    model.h[1].register_forward_pre_hook(look)
    with regard.record(model) as outer:
        model(x)
    assert len(inner[0]) == 1
    close(inner[0][0], model.h[1].exact(model.h[0](x)))
    close(outer[0], model.h[0].exact(x))


def test_another_thread_is_not_seen():
    model, x = Block(), torch.randn(B, L, 12)
    with regard.record() as recording:
        model(x)
        thread = threading.Thread(target=lambda: model(x))
        thread.start()
        thread.join()
    assert len(recording) == 1


@pytest.mark.parametrize("make", [Stack, lambda: encoder(nested=False).eval()])
def test_threads_record_at_once(make):
    model, count, rounds = make(), 4, 5
    inputs = [torch.randn(B, L, 12) for _ in range(count)]
    with torch.no_grad():
        plain = [model(x) for x in inputs]
        with regard.record(model) as alone:
            model(inputs[0])
    barrier, found = threading.Barrier(count), [None] * count

    def work(place):
        with torch.no_grad():
            for _ in range(rounds):
                barrier.wait()
                with regard.record(model) as recording:
                    barrier.wait()
                    out = model(inputs[place])
                    barrier.wait()
                names = [layer.name for layer in recording.layers]
                found[place] = (out, [pattern.dense() for pattern in recording], names)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_nothing_left_behind()
    for out, given in zip(found, plain, strict=True):
        assert torch.equal(out[0], given)
        assert out[2] == [layer.name for layer in alone.layers]
    for weights, pattern in zip(found[0][1], alone, strict=True):
        assert torch.equal(weights, pattern.dense())
    assert not torch.equal(found[0][1][0], found[1][1][0])


# Whatever happens, nothing is left


class Failing(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x


ERRORS = [RuntimeError("failed"), KeyboardInterrupt(), ValueError("failed"), SystemExit(1)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["block", "module", "fused", "first"])
def test_errors_pass_and_leave_nothing_behind(error, where):
    x = torch.randn(B, L, 12)
    model = nn.Sequential(Block(), Failing(error), Block())
    if where == "fused":
        model = encoder(nested=False).eval()
        model.layers[1] = nn.Sequential(Failing(error))
        model.layers[1].forward = lambda x, **_: model.layers[1][0](x)
    if where == "first":
        model = nn.Sequential(Failing(error), Block())
    with torch.no_grad():
        with pytest.raises(type(error)) as caught, regard.record(model):  # noqa: PT012 - the last call alone raises
            if where == "block":
                raise error
            model(x)
        assert caught.value is error
        check_nothing_left_behind()
        block = Block()
        with regard.record() as recording:
            block(x)
    assert len(recording) == 1
    close(recording[0], block.exact(x))


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("fused", [False, True])
def test_errors_that_are_caught_inside_the_block(error, fused):
    x = torch.randn(B, L, 12)
    model = nn.Sequential(Block(), Failing(error))
    if fused:
        model = encoder(nested=False).eval()
        model.layers[1] = nn.Sequential(Failing(error))
        model.layers[1].forward = lambda x, **_: model.layers[1][0](x)
    after = nn.Sequential(Block())
    with torch.no_grad(), regard.record() as recording:
        with contextlib.suppress(type(error)):
            model(x)
        after(x)
    assert recording.layers[-1].name == "0"
    close(recording[len(recording) - 1], after[0].exact(x))


def test_a_failed_run_counts_as_a_run_of_its_own():
    x = torch.randn(B, L, 12)
    failing = Failing(RuntimeError("failed"))
    model = nn.Sequential(Block(), failing, Block())
    with regard.record(model) as recording:
        with pytest.raises(RuntimeError, match="failed"):
            model(x)
        failing.error = None
        model(x)
    assert [layer.name for layer in recording.layers] == ["0", "0", "2"]
    assert [layer.index for layer in recording.layers] == [0, 0, 1]


def test_no_call_is_an_error():
    model = Block()
    with (
        pytest.raises(RecordError, match="no attention call was seen; a model of transformers"),
        regard.record(),
    ):
        torch.randn(3) @ torch.randn(3)
    with (
        pytest.raises(RecordError, match="no attention call of Block was seen; call the model"),
        regard.record(model),
    ):
        Block()(torch.randn(B, L, 12))
    with pytest.raises(ZeroDivisionError), regard.record(model):
        _ = 1 / 0


# `regard.record` without the tests' check of its annotations, which comes before its own
unchecked = contextlib.contextmanager(inspect.unwrap(regard.record))


@pytest.mark.parametrize("model", [3, "gpt2", torch.relu, [Block()]])
def test_what_is_no_model_is_refused(model):
    with (
        pytest.raises(TypeError, match=r"model must be a torch.nn.Module or None, but is"),
        unchecked(model),
    ):
        pass


# torch.compile


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda model: torch.compile(model, backend="eager")
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("given", ["nothing", "original"])
def test_compiled_models_are_refused(compiled, warm, given):
    model, x = Stack(), torch.randn(B, L, 12)
    graph = compiled(model)
    if warm:
        graph(x)
    with (
        pytest.raises(RecordError, match=r"runs under torch\.compile.*_orig_mod"),
        regard.record(model if given == "original" else None),
    ):
        graph(x)
    check_nothing_left_behind()
    with regard.record(graph._orig_mod) as recording:
        graph._orig_mod(x)
    close(recording[0], model.h[0].exact(x))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_that_is_given_is_refused_at_once(compiled):
    graph, ran = compiled(Stack()), False
    with (
        pytest.raises(RecordError, match=r"^Stack runs under torch\.compile"),
        regard.record(graph),
    ):
        ran = True
    assert not ran
    model = Stack()
    model.compile(backend="eager")
    with (
        pytest.raises(RecordError, match=r"^Stack runs under torch\.compile"),
        regard.record(model),
    ):
        ran = True
    assert not ran


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_part_is_refused(compiled, warm):
    model, x = Stack(), torch.randn(B, L, 12)
    model.h[1].compile(backend="eager")
    if warm:
        model(x)
    with pytest.raises(RecordError, match=r"runs under torch\.compile"), regard.record(model):
        model(x)


def test_all_ways_at_once():
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
            plain = model(x)
            with regard.record(model) as recording:
                seen = model(x)
        assert torch.equal(plain, seen)
        assert [layer.name for layer in recording.layers] == [
            "parts.0",
            "parts.1.self_attn",
            "parts.2",
            "parts.3",
        ]
