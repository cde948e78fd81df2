"""Subclasses of torch's own layers, and users' code inside these, run once, as without a block."""

import pytest
import torch
import torch.nn.functional as F
from support.interception import B, L, close, encoder, recorded, written_out
from torch import nn

import regard

E, H = 12, 2


def heads(x):
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


class Cached(nn.MultiheadAttention):
    """Keeps keys and values, and calls SDPA itself."""

    cache = None

    def forward(self, x):
        query, key, value = map(
            heads, F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        )
        new = (key, value)
        self.cache = new if self.cache is None else tuple(map(joined, self.cache, new))
        return F.scaled_dot_product_attention(query, *self.cache).transpose(1, 2).flatten(2)


def joined(old, new):
    return torch.cat([old, new], dim=-2)


class Twice(nn.TransformerEncoderLayer):
    """Attends once more, after what torch's own layer does."""

    def forward(self, x):
        x = super().forward(x)
        y = heads(x)
        return x + F.scaled_dot_product_attention(y, y, y).transpose(1, 2).flatten(2)


class Counting(nn.MultiheadAttention):
    """Counts its calls, and leaves the rest to torch."""

    calls = 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return super().forward(*args, **kwargs)


@pytest.fixture(params=[True, False], ids=["gradients", "no_grad"])
def grad(request):
    with torch.set_grad_enabled(request.param):
        yield


@pytest.fixture
def twice():
    return Twice(E, H, 16, batch_first=True).eval()


def test_a_layer_with_a_cache_of_its_own(grad):
    prompt, step = torch.randn(B, L, E), torch.randn(B, 1, E)
    model = Cached(E, H, batch_first=True).eval()
    model(prompt)
    expected = model(step)
    del model.cache
    with regard.record(model) as recording:
        model(prompt)
    assert model.cache[0].shape[-2] == L
    assert torch.equal(model(step), expected)
    assert recording[0].shape == (B, H, L, L)


def test_calls_beside_those_of_torchs_own_layer(grad, twice):
    x = torch.randn(B, L, E)
    recording = recorded(twice, x)
    assert [layer.name for layer in recording.layers] == ["self_attn", "Twice"]
    own = nn.TransformerEncoderLayer.forward(twice, x)
    query, key, _ = F.linear(x, twice.self_attn.in_proj_weight, twice.self_attn.in_proj_bias).chunk(
        3, -1
    )
    close(recording[0], written_out(heads(query), heads(key)))
    close(recording[1], written_out(heads(own), heads(own)))


def test_they_are_changed_each(grad, twice):
    """Whether the changed one is fused, or the other."""
    x = torch.randn(B, L, E)
    with regard.record(twice) as plain:
        twice(x)
    for layer in (0, 1):
        with regard.intervene(twice) as change, regard.record(twice) as recording:
            change.knock_out(layers=layer, keys=0, queries=slice(1, None))
            twice(x)
        hidden = [pattern.dense()[..., 1:, 0].eq(0).all().item() for pattern in recording]
        assert hidden == [layer == 0, layer == 1]
        if layer == 1:
            assert torch.equal(recording[0].dense(), plain[0].dense())


@pytest.mark.parametrize("fuses", [True, False])
def test_a_subclass_inside_torchs_layers_is_called_once(grad, fuses):
    model = encoder(nested=False, activation="relu" if fuses else F.silu).eval()
    for layer in model.layers:
        layer.self_attn.__class__ = Counting
    x = torch.randn(B, L, E)
    model(x)
    once = [layer.self_attn.calls for layer in model.layers]
    with regard.record(model) as recording:
        model(x)
    assert [layer.self_attn.calls for layer in model.layers] == [2 * calls for calls in once]
    assert len(recording) == 2


class Attend:
    """A hook that attends, and counts how often it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, module, args, output):
        self.calls += 1
        y = heads(args[0])
        F.scaled_dot_product_attention(y, y, y)


@pytest.mark.parametrize("path", ["layers.0", "layers.1.linear1", "layers.0.self_attn"])
def test_hooks_that_attend(grad, path):
    model, hook, x = encoder(nested=False).eval(), Attend(), torch.randn(B, L, E)
    model.get_submodule(path).register_forward_hook(hook)
    recording = recorded(model, x)
    assert hook.calls == 2
    assert len(recording) == 3


def test_an_activation_that_attends_and_counts(grad):
    calls = []

    def activation(x):
        calls.append(x.shape)
        y = heads(x)
        return F.silu(x) + F.scaled_dot_product_attention(y, y, y).transpose(1, 2).flatten(2)

    model = nn.TransformerEncoderLayer(E, H, 16, activation=activation, batch_first=True).eval()
    recording = recorded(model, torch.randn(B, L, E))
    assert len(calls) == 2
    assert len(recording) == 2


def test_a_forward_that_a_user_put_into_torchs_class(grad, monkeypatch):
    own, calls = nn.MultiheadAttention.forward, []

    def forward(self, *args, **kwargs):
        calls.append(self)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(nn.MultiheadAttention, "forward", forward)
    model, x = nn.MultiheadAttention(E, H, batch_first=True).eval(), torch.randn(B, L, E)
    with regard.record(model) as recording:
        model(x, x, x)
    assert len(calls) == 1
    assert len(recording) == 1
    assert nn.MultiheadAttention.forward is forward


def test_compiled_layers_are_not_compiled_anew():
    torch._dynamo.reset()
    model, x = encoder(nested=False).eval(), torch.randn(B, L, E)
    compiled = torch.compile(model.forward, backend="eager")
    with torch.no_grad():
        expected = compiled(x)
        with regard.record(model) as recording:
            compiled(x)
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.equal(compiled(x), expected)
    assert len(recording) == 2
