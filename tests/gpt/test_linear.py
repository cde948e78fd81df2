"""What generation multiplies by: regard's kernel for a few vectors, torch's for the rest."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from regard.backends import native
from regard.gpt import GPT, GPTConfig, Sampling, generate
from regard.gpt._linear import Linear, linear

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
    model.h[0].register_forward_hook(lambda *_: None)  # or a step were one call
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


def test_reading_a_model_loads_no_compiler():
    script = "import sys, regard.gpt; regard.gpt.load(); print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
