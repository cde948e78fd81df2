"""What generation multiplies by: regard's kernel for a few vectors, torch's for the rest."""

import pytest
import torch
import torch.nn.functional as F
from support.processes import run_script
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from regard.backends import native
from regard.gpt import GPT, GPTConfig, Sampling, generate
from regard.gpt.layers import Linear, linear

CONFIG = GPTConfig(vocab_size=29, context=13, layers=2, heads=3, dim=12)


@pytest.fixture
def counted(monkeypatch):
    """How many vectors each call of the kernel was handed."""
    vectors, apply = [], native.matvec
    monkeypatch.setattr(
        native,
        "matvec",
        lambda x, *rest: vectors.append(x.numel() // x.shape[-1]) or apply(x, *rest),
    )
    return vectors


@pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")
def test_every_linear_map_of_a_step_is_the_kernels(counted):
    model = GPT(CONFIG)
    generate(model, torch.tensor([[1, 2, 3, 4, 5]] * 3), tokens=4, sampling=Sampling())
    # Of the prompts and of each of three steps: four maps a layer, and the logits.
    assert counted == [15] * (4 * 2) + [3] * (1 + 3 * (4 * 2 + 1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_outside_of_inference_torch_computes(counted, mode):
    layer, x = Linear(5, 7), torch.randn(2, 5)
    with mode():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert not counted


def test_it_is_seen_by_the_compiler_as_torchs_own(counted):
    layer, x = Linear(5, 7), torch.randn(2, 5)
    with torch.inference_mode():
        compiled = torch.compile(layer, fullgraph=True, backend="eager")(x)
        torch.testing.assert_close(compiled, linear(x, layer.weight, layer.bias))
    assert len(counted) <= 1  # the one outside


def _traced(x, layer):
    return torch.jit.trace(layer, x, check_trace=False)(x)


def _made_a_graph(x, layer):
    weights = dict(layer.named_parameters())
    return make_fx(lambda x: torch.func.functional_call(layer, weights, x))(x)(x)


def _mapped(x, layer):
    return torch.func.vmap(layer)(x)


def _as_a_subclass(x, layer):
    class Seen(torch.Tensor):
        pass

    return layer(x.as_subclass(Seen)).as_subclass(torch.Tensor)


def _negative(x, layer):
    return layer(torch._neg_view(-x))


def _counted_flops(x, layer):
    with FlopCounterMode(display=False) as counter:
        result = layer(x)
    assert counter.get_total_flops() == 2 * 2 * 5 * 7
    return result


def _profiled(x, layer):
    with torch.profiler.profile() as profile:
        result = layer(x)
    assert "aten::linear" in {event.key for event in profile.key_averages()}
    return result


@pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated")
@pytest.mark.parametrize(
    "call", [_traced, _made_a_graph, _mapped, _as_a_subclass, _negative, _counted_flops, _profiled]
)
def test_in_inference_mode_too_what_has_to_see_the_product_sees_torchs(call, counted):
    layer, x = Linear(5, 7), torch.randn(2, 5)
    with torch.inference_mode():
        result = call(x, layer)
        assert not counted
    torch.testing.assert_close(result, F.linear(x, layer.weight, layer.bias))


def test_fake_tensors_and_autocast_are_torchs_in_inference_mode_too(counted):
    layer, x = Linear(5, 7), torch.randn(2, 5)
    with torch.inference_mode():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = layer(mode.from_tensor(x))
        assert fake.shape == (2, 7)
    assert not counted


@pytest.mark.parametrize("inputs", [4, 10])
def test_a_vector_of_another_length_is_refused(inputs, unchecked):
    with torch.inference_mode(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        Linear(5, 7)(torch.randn(2, inputs))


def test_reading_a_model_loads_no_compiler():
    script = "import sys, regard.gpt; regard.gpt.load(); print('torch._dynamo' in sys.modules)"
    assert run_script(script) == "False\n"
