"""A head's circuits against what the models compute."""

import pytest
import torch
from support.circuit_models import EXACT, HEADS, MODELS, SINGLE, our_gpt
from torch import nn

from regard.lens.circuits import ov, qk


def observe(model, name):
    """Keep input and output of the second layer's attention, whose biases are set to 0."""
    if name == "gpt":
        norm, attention = model.h[1].ln_1, model.h[1].attn
    elif name == "gpt2":
        norm, attention = model.transformer.h[1].ln_1, model.transformer.h[1].attn
    else:
        norm, attention = model.model.layers[1].input_layernorm, model.model.layers[1].self_attn
    for key, parameter in attention.named_parameters():
        if key.endswith("bias"):
            nn.init.zeros_(parameter)
    seen = {}

    def added(module, inputs, output):
        seen["added"] = (output if isinstance(output, torch.Tensor) else output[0])[0]

    norm.register_forward_hook(lambda module, inputs, output: seen.update(x=output[0]))
    attention.register_forward_hook(added)
    return seen


def test_qk_gives_the_scores_of_our_gpt():
    model = our_gpt().double()
    seen = observe(model, "gpt")
    with torch.no_grad():
        _, patterns = model.with_patterns(torch.randint(29, (1, 11)))
    x, future = seen["x"], torch.ones(11, 11).triu(1).bool()
    for head in range(5):
        scaled = x @ qk(model, 1, head) @ x.T / 7**0.5
        expected = scaled.masked_fill(future, -torch.inf).softmax(-1)
        torch.testing.assert_close(patterns[1][0, head].dense(), expected, **EXACT)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma"])
def test_qk_gives_the_eager_weights_of_a_model(name):
    """Every token stands at position 0, or rotary positions would be in the scores."""
    model = MODELS[name]().double()
    model.set_attn_implementation("eager")
    seen = observe(model, name)
    at_zero = {"position_ids": torch.zeros(1, 7, dtype=torch.int64)}
    with torch.no_grad():
        result = model(
            torch.randint(29, (1, 7)),
            attention_mask=torch.ones(1, 7, dtype=torch.int64),
            output_attentions=True,
            **at_zero,
        )
    x, future = seen["x"], torch.ones(7, 7).triu(1).bool()
    weights = result.attentions[1][0]  # (H, 7, 7)
    assert weights.shape == (HEADS[name], 7, 7)
    for head, actual in enumerate(weights):
        circuit = qk(model, 1, head)
        scaled = x @ circuit @ x.T / circuit.left.shape[1] ** 0.5
        expected = scaled.masked_fill(future, -torch.inf).softmax(-1)
        torch.testing.assert_close(actual, expected, **SINGLE)  # their softmax is of float32


@pytest.mark.parametrize("name", MODELS)
def test_ov_is_what_the_heads_add_to_a_lone_token(name):
    """A token alone puts all its weight on itself, so its heads' circuits add up to the layer."""
    model = MODELS[name]().double()
    seen = observe(model, name)
    with torch.no_grad():
        model(torch.tensor([[3]]))
    total = sum(seen["x"] @ ov(model, 1, head) for head in range(HEADS[name]))
    torch.testing.assert_close(total, seen["added"], **EXACT)
