"""Models of `transformers`, changed, against attention written out with dense masks.

Axes: B batch, H query heads, L positions, S those of a source.
"""

import functools

import pytest
import torch
from record.models.classes import CASES
from support import edits as changes
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.written_models import transformers_model

import regard
from regard import Error

B, L, S = 2, 9, 7
WITH_SOFTCAP = ("gemma2",)


def runs():
    """Each change in each model, and in each implementation of some model."""
    for shift, name in enumerate(("gpt2", "llama", "gemma2", "gpt_oss", "mistral", "t5", "vit")):
        ways = CASES[name].implementations
        for number, edits in enumerate(changes.ALL):
            how = ways[(number + shift) % len(ways)]
            yield pytest.param(name, how, changes.ALL[edits], id=f"{name}-{how}-{edits}")


def inputs(name, seed=0):
    torch.manual_seed(seed)
    if name == "vit":
        return {"pixel_values": torch.randn(B, 3, 21, 21)}
    keep = torch.ones(B, L, dtype=torch.int64)
    keep[1, L - 2 :] = 0  # padding
    ids = torch.randint(3, 101, (B, L))
    if name == "t5":
        source = {"input_ids": torch.randint(3, 101, (B, S)), "attention_mask": keep[:, -S:]}
        return source | {"decoder_input_ids": ids}
    return {"input_ids": ids, "attention_mask": keep}


def run(model, arguments):
    """Outputs of real positions, and the gradient of each parameter by a fixed combination."""
    model.zero_grad()
    out = model(**arguments)
    values = out.logits if hasattr(out, "logits") else out.last_hidden_state
    if "attention_mask" in arguments and "decoder_input_ids" not in arguments:
        values = values * arguments["attention_mask"][..., None]
    torch.manual_seed(9)
    (values * torch.randn_like(values)).sum().div(values[0].numel() ** 0.5).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return values.detach(), gradients


@functools.cache
def unchanged(name):
    return run(transformers_model(CASES[name], ChangedAttention()), inputs(name))[0]


def check(name, how, edits):
    case, arguments = CASES[name], inputs(name)
    attention = ChangedAttention(edits)
    expected, expected_gradients = run(transformers_model(case, attention), arguments)
    model = case.build(how)
    actual, gradients = changed(model, edits, lambda: run(model, arguments))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[parameter], rtol=0, atol=1e-4)
    assert (unchanged(name) - expected).abs().max() > 1e-3
    assert max(gradient.abs().max() for gradient in gradients.values()) > 1e-2


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "how", "edits"), [*runs()])
def test_outputs_and_gradients(name, how, edits):
    if name in WITH_SOFTCAP and edits in changes.HEADS.values():
        pytest.skip("heads share the softcap")
    check(name, how, edits)


KINDS = {
    "cross": [edit("knock_out", layers=1, kind="cross", keys=[0, -1, 3])],
    "encoder": [edit("knock_out", layers=2, kind="encoder", queries=slice(2, 5), keys=[0, 3])],
    "no head of cross": [edit("ablate", layers=0, kind="cross", heads=[1, 2], by="mean")],
    "each": [
        edit("steer", layers=1, kind="cross", queries=-2, keys=slice(-3, None), by=2),
        edit("ablate", layers=1, heads=4),
        edit("temper", layers=slice(1, None), kind="encoder", heads=[0, 1], by=0.3),
    ],
}


@pytest.mark.each_once
@pytest.mark.parametrize("edits", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_kinds(how, edits):
    check("t5", how, edits)


def test_some_heads_of_a_softcap_have_no_temperature_of_their_own():
    model = CASES["gemma2"].build("eager")
    message = r"temper.*softcap.*leave heads and batch out"
    with pytest.raises(Error, match=message), regard.intervene(model) as change:  # noqa: PT012 - the last call alone raises
        change.temper(heads=1, by=2)
        model(**inputs("gemma2"))
