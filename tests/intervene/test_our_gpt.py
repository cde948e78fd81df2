"""Our GPT, changed, against attention written out with dense masks."""

import pytest
import torch
from support import edits as changes
from support.changed_attention import ChangedAttention
from support.edits import changed
from support.gpt_variants import VARIANTS
from support.written_models import in_our_gpt

import regard
from regard.gpt import GPT

B, L = 2, 9
NAMES = ["gpt2", "rotary", "grouped", "window", "all"]


def gpt(name):
    torch.manual_seed(3)
    model = GPT(VARIANTS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


def run(model):
    torch.manual_seed(4)
    ids = torch.randint(0, 29, (B, L))
    model.zero_grad()
    logits = model(ids)
    (logits * torch.randn_like(logits)).sum().div(L).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.each_once
@pytest.mark.parametrize("edits", changes.ALL.values(), ids=changes.ALL)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients(name, edits, monkeypatch):
    model = gpt(name)
    with in_our_gpt(model, ChangedAttention(edits), monkeypatch):
        expected, expected_gradients = run(model)
    actual, gradients = changed(model, edits, lambda: run(model))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[parameter], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_without_changes_keeps_every_bit(name):
    model = gpt(name)
    expected, expected_gradients = run(model)
    with regard.intervene(model):
        actual, gradients = run(model)
    assert torch.equal(actual, expected)
    for parameter, gradient in gradients.items():
        assert torch.equal(gradient, expected_gradients[parameter])
