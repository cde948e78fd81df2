"""Norms, residual additions and GELU of a GPT: by the kernels, or by torch where those can't."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.backends import native
from regard.gpt import GPT, GPTConfig
from regard.gpt.layers import LayerNorm, add_and_normalize, gelu

CONFIG = GPTConfig(vocab_size=29, context=13, layers=2, heads=3, dim=12)
IDS = torch.arange(26).reshape(2, 13)

pytestmark = pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")


@pytest.fixture
def counted(monkeypatch):
    """The kernels that were called, with what was added to the stream."""
    calls, norm, gelu = [], native.residual_norm, native.gelu
    monkeypatch.setattr(
        native,
        "residual_norm",
        lambda x, added, *rest, **options: (
            calls.append("norm" if added is None else "add and norm")
            or norm(x, added, *rest, **options)
        ),
    )
    monkeypatch.setattr(native, "gelu", lambda x: calls.append("gelu") or gelu(x))
    return calls


def gpt(**options):
    torch.manual_seed(0)
    return GPT(GPTConfig(**{**vars(CONFIG), **options}))


def losses_and_gradients(model, *, bfloat16=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(IDS)
    loss = F.cross_entropy(logits.float().flatten(0, 1), IDS.flatten())
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_every_addition_but_the_first_goes_into_the_next_norm(bfloat16, counted):
    losses_and_gradients(gpt(), bfloat16=bfloat16)
    assert counted == ["norm", *["add and norm", "gelu", "add and norm"] * 2]


@pytest.mark.parametrize("options", [{}, {"norm": "rms", "mlp": "swiglu", "bias": False}])
def test_it_is_what_torch_computes(options, monkeypatch):
    model = gpt(**options)
    ours = losses_and_gradients(model)
    monkeypatch.setattr("regard.gpt.layers.is_transformed", lambda: True)
    for mine, torchs in zip(ours, losses_and_gradients(model), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-6)  # roundings of float32


@pytest.mark.parametrize("bfloat16", [False, True])
def test_hooks_see_modules_and_change_no_bit(bfloat16, counted):
    model = gpt()
    before, seen = losses_and_gradients(model, bfloat16=bfloat16), []
    hooked = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    for module in (*hooked, model.h[1]):
        module.register_forward_hook(lambda module, _, result: seen.append((module, result)))
    counted.clear()
    after = losses_and_gradients(model, bfloat16=bfloat16)
    assert [module for module, _ in seen] == [*hooked[:4], model.h[1], hooked[4]]
    assert all(type(result) is torch.Tensor for _, result in seen)
    assert counted == ["norm", "norm", "gelu", "norm", "norm", "gelu", "norm"]
    assert all(map(torch.equal, before, after))


def test_a_transform_gets_torchs_operators(counted):
    model = gpt()
    parameters = dict(model.named_parameters())

    def loss(weights):
        return torch.func.functional_call(model, weights, IDS).sum()

    torch.func.grad(loss)(parameters)
    assert not counted


def test_other_dtypes_are_torchs(counted):
    model = gpt().double()
    assert model(IDS).dtype == torch.float64
    assert not counted


def test_a_compiler_sees_one_graph():
    norm, x, added = LayerNorm(12), *torch.randn(2, 3, 12).unbind()

    def computed(x):
        total, normed = add_and_normalize(norm, x, added)
        return total + gelu(normed)

    compiled = torch.compile(computed, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), computed(x))
