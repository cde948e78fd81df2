"""Gradients where a backward pass computes calls again, and gradients of gradients."""

import pytest
import torch
from record.models.classes import CASES
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.interception import Stack
from support.written_models import in_torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard.intercept import observe_contexts

EDITS = [
    edit("knock_out", layers=1, keys=[1, 2]),
    edit("steer", layers=1, keys=[3], by=1.0, heads=0),
    edit("ablate", layers=2, heads=0, by="mean"),
]


class Checkpointed(nn.Module):
    """A stack whose blocks are computed again in the backward pass."""

    def __init__(self, stack, *, reentrant):
        super().__init__()
        self.stack, self.reentrant = stack, reentrant

    def forward(self, x):
        for block in self.stack.h:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def backward(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def grad(model, x):
    return torch.autograd.grad(model(x).square().sum(), [*model.parameters()])


@pytest.mark.parametrize(
    ("reentrant", "gradients"), [(True, backward), (False, backward), (False, grad)]
)
def test_checkpoints(reentrant, gradients):
    model, x = Stack(3), torch.randn(2, 7, 12, requires_grad=True)
    with in_torch(ChangedAttention(EDITS)):
        expected = gradients(model, x)
    checkpointed = Checkpointed(model, reentrant=reentrant)
    actual = changed(checkpointed, EDITS, lambda: gradients(checkpointed, x))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_what_a_backward_pass_computes_again_is_not_recorded():
    model, x = Checkpointed(Stack(3), reentrant=True), torch.randn(2, 7, 12, requires_grad=True)
    kept = []

    def observe():
        return observe_contexts(lambda _, context: kept.append(context.detach().clone()))

    with regard.record(model) as once, observe():
        changed(model, EDITS, lambda: model(x))
    with regard.record(model) as recording, observe():
        changed(model, EDITS, lambda: backward(model, x))
    assert len(recording) == len(once) == 3
    for ours, theirs in zip(recording, once, strict=True):
        assert torch.equal(ours.dense(), theirs.dense())
    assert len(kept) == 6
    for ours, theirs in zip(kept[:3], kept[3:], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_checkpoints_of_transformers(name):
    model, ids = CASES[name].build("sdpa").train(), torch.randint(3, 101, (2, 9))
    arguments = {"input_ids": ids, "use_cache": False}
    edits = [*EDITS[:2], edit("ablate", layers=0, heads=2)]
    if name == "t5":
        model.eval()
        for module in model.modules():
            module.training = not isinstance(module, nn.Dropout)
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        arguments["decoder_input_ids"] = ids
        edits += [edit("knock_out", kind="cross", layers=0, queries=slice(3, None), keys=[1, 2])]

    def gradients():
        model.zero_grad()
        model(**arguments).logits.square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = changed(model, edits, gradients)
    model.gradient_checkpointing_enable()
    actual = changed(model, edits, gradients)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_attribution_by_the_gradient_of_a_patch():
    # The gradient of the output by the input of another layer, through a patched one.
    model, x = Stack(2), torch.randn(2, 2, 7, 12)
    with regard.record(model) as recording:
        model(x[1])
    start = x[0].clone().requires_grad_()
    with regard.intervene(model) as change:
        change.patch(layers=1, pattern=recording[1])
        (actual,) = torch.autograd.grad(model(start)[:, -1].sum(), start)
    hidden = model.h[0](start)
    block, weights = model.h[1], recording[1].dense()
    value = block.c_attn(hidden).chunk(3, -1)[2].unflatten(-1, (3, -1)).transpose(1, 2)
    out = hidden + block.c_proj((weights @ value).transpose(1, 2).flatten(2))
    (expected,) = torch.autograd.grad(out[:, -1].sum(), start)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_a_pattern_keeps_no_graph():
    # Of the other run no gradient is wanted: its weights are numbers.
    model, x = Stack(1), torch.randn(2, 2, 7, 12)
    other = x[1].clone().requires_grad_()
    with regard.record(model) as recording:
        model(other)
    with regard.intervene(model) as change:
        change.patch(layers=0, pattern=recording[0])
        model(x[0]).sum().backward()
    assert other.grad is None
    size = 12
    assert not model.h[0].c_attn.weight.grad[: 2 * size].any()  # of query and key
    assert model.h[0].c_attn.weight.grad[2 * size :].any()
