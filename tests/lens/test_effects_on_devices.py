"""Effects of a model on a GPU, one that has numbers and no kernels, are those of it on the CPU."""

import pytest
import torch
from support.fake_gpu import DEVICE, gpu

import regard
from regard.gpt import GPT, GPTConfig

IDS = torch.arange(9) % 7


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=7, context=9, layers=2, heads=3, dim=12)
    return GPT(config).eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("loss", {}),
        (regard.lens.LogProbability(3), {"by": "mean"}),
        ("loss", {"over": "keys"}),
        (regard.lens.LogProbability(3), {"over": [(0, 2), (3, 9)]}),
    ],
)
def test_numbers_come_to_the_cpu(model, target, options):
    expected = regard.lens.effects(model, IDS, target, **options)
    with gpu():
        effects = regard.lens.effects(model.to(DEVICE), IDS.to(DEVICE), target, **options)
        assert effects.values.device.type == "cpu"
        torch.testing.assert_close(effects.values, expected.values, atol=1e-5, rtol=1e-5)
        assert effects.unchanged == pytest.approx(expected.unchanged, abs=1e-5)
