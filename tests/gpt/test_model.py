"""The model against its own formulas in float64, its patterns, its causality, its errors."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.gpt_formulas import made, written_out

from regard.gpt import GPT, GPTConfig
from regard.gpt.ids import check_call

CONFIG = GPTConfig(vocab_size=29, context=13, layers=3, heads=5, dim=35, dropout=0.0)


@pytest.fixture
def model():
    return made(CONFIG, spread=0.1)


@pytest.fixture
def ids():
    return torch.randint(CONFIG.vocab_size, (3, 11), generator=torch.Generator().manual_seed(2))


def test_the_model_is_gpt2s_formulas(model, ids):
    logits, weights = written_out(model, ids)
    # float32 rounds at 6e-8; three layers of sums over 35 to 140 terms lose less than three digits.
    torch.testing.assert_close(model(ids), logits.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.double()(ids), logits, rtol=1e-12, atol=1e-12)
    _, patterns = model.with_patterns(ids)
    for pattern, expected in zip(patterns, weights, strict=True):
        assert pattern.shape == (3, 5, 11, 11)
        torch.testing.assert_close(pattern.dense(), expected, rtol=1e-12, atol=1e-12)


def test_the_parameters_have_gpt2s_names_and_one_embedding_serves_twice(model):
    names = set(model.state_dict())
    assert {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"} < names
    parts = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    block = {f"h.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    assert block == {name for name in names if name.startswith("h.0.")}
    assert not any("lm_head" in name for name in names)
    no_bias = GPT(GPTConfig(vocab_size=7, context=5, layers=1, heads=1, dim=3, bias=False))
    assert not any(name.endswith("bias") for name in no_bias.state_dict())


def test_a_batch_axis_is_optional(model, ids):
    logits, patterns = model.with_patterns(ids[1])
    assert logits.shape == (11, 29)
    assert patterns[0].shape == (5, 11, 11)
    torch.testing.assert_close(logits, model(ids)[1], rtol=1e-5, atol=1e-6)  # other matmul shapes
    assert model(ids.int()).equal(model(ids))


@pytest.mark.parametrize("count", [1, 4, 11, 17])
def test_logits_of_the_last_tokens_alone(model, ids, count):
    expected = model(ids)[:, -count:]
    torch.testing.assert_close(model(ids, logits_to_keep=count), expected, rtol=1e-5, atol=1e-6)
    alone = model(ids[1], logits_to_keep=count)
    torch.testing.assert_close(alone, expected[1], rtol=1e-5, atol=1e-6)  # other matmul shapes


def test_logits_of_some_positions(model, ids):
    positions = torch.tensor([-2, 5, 0])
    found = model(ids, logits_to_keep=positions)
    torch.testing.assert_close(found, model(ids)[:, positions], rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="expected positions of int64"):
        model(ids, logits_to_keep=positions.float())
    with pytest.raises(ValueError, match=r"logits_to_keep has shape \(1, 3\); expected positions"):
        model(ids, logits_to_keep=positions[None])


def test_a_number_of_logits_is_a_whole_number_from_0(model, ids):
    with pytest.raises(ValueError, match="logits_to_keep is -3; expected how many last tokens"):
        model(ids, logits_to_keep=-3)
    with pytest.raises(TypeError, match="logits_to_keep must be a whole number, but is True"):
        model(ids, logits_to_keep=True)


def test_gradients_of_each_text_alone(model, ids):
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}

    def loss(weights, ids):
        return torch.func.functional_call(model, weights, (ids,)).logsumexp(-1).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, ids)
    for n, text in enumerate(ids):
        alone = torch.func.grad(loss)(weights, text)
        for name, gradient in alone.items():  # in float64, sums in another order
            torch.testing.assert_close(each[name][n], gradient, rtol=1e-10, atol=1e-10)


def test_patterns_change_nothing(model, ids):
    assert model.with_patterns(ids)[0].equal(model(ids))


def test_later_tokens_never_touch_earlier_logits(model, ids):
    for position in range(1, ids.shape[-1]):
        changed = ids.clone()
        changed[:, position:] = (changed[:, position:] + 7) % CONFIG.vocab_size
        before, after = model(ids), model(changed)
        assert after[:, :position].equal(before[:, :position])
        assert not after[:, position].equal(before[:, position])


@pytest.mark.parametrize("std", [0.02, 0.07])
def test_first_weights_are_drawn_as_in_gpt2(std):
    torch.manual_seed(3)
    shape = GPTConfig(vocab_size=503, context=211, layers=7, heads=3, dim=111)
    assert shape.initial_std == 0.02
    model = GPT(replace(shape, initial_std=std))
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert parameter.eq(float("ln_" in name and name.endswith("weight"))).all(), name
            continue
        expected = std / math.sqrt(14) if name.endswith("c_proj.weight") else std
        expected = std / 2 if name.startswith("wpe") else expected
        # The estimate of a standard deviation from n draws is off by 1 / sqrt(2 n): 0.6 % here.
        assert parameter.std().item() == pytest.approx(expected, rel=0.04), name
        assert abs(parameter.mean().item()) < expected * 0.05, name


def test_dropout_acts_in_training_only_and_in_every_place(ids):
    torch.manual_seed(4)
    model = GPT(GPTConfig(vocab_size=29, context=13, layers=2, heads=1, dim=8, dropout=0.5))
    assert not model(ids).equal(model(ids))
    model.drop.p = 0.0
    for block in model.h:
        block.drop.p = 0.0
    assert not model(ids).equal(model(ids))  # on the attention weights
    model.eval()
    assert model(ids).equal(model(ids))
    still = GPT(GPTConfig(vocab_size=29, context=13, layers=2, heads=1, dim=8)).train()
    assert still(ids).equal(still(ids))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (torch.zeros(2, 14, dtype=torch.long), ValueError, "14 tokens .* context is 13"),
        (torch.tensor([1, 29]), ValueError, "from 1 to 29 and the vocabulary from 0 to 28"),
        (torch.tensor([-1, 2]), ValueError, "from -1 to 2"),
        (torch.zeros(2, 3), TypeError, r"ids is torch\.float32; expected .* int64"),
        ([1, 2], TypeError, "ids is list"),
        (torch.tensor(3), ValueError, r"shape \(\); expected \(B, T\) or \(T,\)"),
        (torch.zeros(1, 1, 1, dtype=torch.long), ValueError, r"shape \(1, 1, 1\)"),
    ],
)
def test_ids_that_do_not_fit_are_named(model, wrong, error, message):
    with pytest.raises(error, match=message):
        model(wrong)


@pytest.mark.parametrize("wrong", [torch.ones(11, 11).bool(), "causal"])
def test_a_mask_of_another_type_is_named(model, ids, wrong):
    message = f"mask must be a regard.Mask or None, but is {type(wrong).__name__}"
    for call in (model, model.with_patterns, partial(model.loss, targets=ids)):
        with pytest.raises(TypeError, match=message):
            call(ids, mask=wrong)


def test_no_tokens_give_no_logits(model):
    assert model(torch.empty(2, 0, dtype=torch.long)).shape == (2, 0, 29)


def test_the_mlp_compiles_into_one_graph_that_computes_the_same(model):
    mlp, x = model.h[0].mlp, torch.randn(3, 11, CONFIG.dim)
    compiled = torch.compile(mlp, fullgraph=True, backend="eager")
    with torch.no_grad():
        # A GELU by a sigmoid instead of a tanh: some roundings of float32.
        torch.testing.assert_close(compiled(x), mlp(x), rtol=1e-5, atol=1e-5)


def test_the_model_s_check_of_the_ids_compiles_without_a_break(model, ids):
    def checked(ids):
        check_call(ids, model.config)
        return ids + 1

    assert torch.compile(checked, fullgraph=True, backend="eager")(ids).equal(ids + 1)
