"""Changed calls of models in half precision, and under autocast."""

import pytest
import torch
from record.models.classes import CASES
from support import edits as changes
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.interception import Stack
from support.written_models import in_torch, transformers_model
from torch import nn

EDITS = {
    "a head's temperature": changes.HEADS["factors of heads"],
    "all together": changes.TOGETHER["all together"],
    "hide": [edit("knock_out", layers=1, keys=slice(1, 3), queries=-1)],
    "mean": [edit("ablate", layers=1, heads=[0, 1], by="mean")],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(("name", "how"), [("gpt2", "sdpa"), ("llama", "sdpa"), ("llama", "eager")])
def test_a_model_in_half_precision(name, how, edits):
    ids = torch.randint(3, 101, (2, 9))
    model = CASES[name].build(how).bfloat16()
    written = transformers_model(CASES[name], ChangedAttention(edits)).bfloat16().float()
    out = changed(model, edits, lambda: model(ids))
    assert out.logits.dtype == torch.bfloat16
    torch.testing.assert_close(out.logits.float(), written(ids).logits, rtol=0, atol=0.15)


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_under_autocast(edits):
    model, x = Stack(2, dim=24, heads=6), torch.randn(2, 7, 24)
    with in_torch(ChangedAttention(edits)):
        expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(x)
        actual = changed(model, edits, lambda: model(x))
    assert actual.dtype == plain.dtype
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("trained", [True, False])
def test_torch_layers_in_half_precision(edits, trained):
    layer = nn.TransformerEncoderLayer(24, 6, 16, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 7, 24)
    with in_torch(ChangedAttention(edits)):
        expected = model(x)
    model = model.bfloat16()
    with torch.set_grad_enabled(trained):
        actual = changed(model, edits, lambda: model(x.bfloat16()))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_without_gradients_and_in_inference_mode(edits, mode):
    ids = torch.randint(3, 101, (2, 9))
    model = CASES["gpt2"].build("sdpa")
    expected = changed(model, edits, lambda: model(ids).logits)
    with mode():
        actual = changed(model, edits, lambda: model(ids).logits)
    torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=1e-6)


def test_double_stays_double():
    edits = changes.TOGETHER["all together"]
    model, x = Stack(2, dim=24, heads=6).double(), torch.randn(2, 7, 24).double()
    with in_torch(ChangedAttention(edits)):
        expected = model(x)
    actual = changed(model, edits, lambda: model(x))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
