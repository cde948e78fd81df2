"""Attribution patching: the derivative of a number by each head's context, and its check."""

import copy
import gc
import math
import pickle
import warnings
import weakref

import pytest
import torch
from record.models.classes import CASES
from support.interception import Stack
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard.gpt import GPT, GPTConfig
from regard.lens import Effects

LAYERS, HEADS, DIM, VOCAB = 2, 3, 15, 23
SIZE = DIM // HEADS
TARGET = regard.lens.Logit(7)


@pytest.fixture
def gpt():
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=VOCAB, context=20, layers=LAYERS, heads=HEADS, dim=DIM)
    model = GPT(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(requires_grad=False)


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (11,), generator=torch.Generator().manual_seed(0))


def scaled(model, layer, head, factor, ids):
    """The target where a head's context is multiplied by a factor."""

    def multiply(_, args):
        context = args[0].clone()
        context[..., head * SIZE : (head + 1) * SIZE] *= factor
        return (context,)

    with torch.no_grad(), model.h[layer].attn.c_proj.register_forward_pre_hook(multiply):
        return float(TARGET(model(ids[None])))


@pytest.mark.parametrize("trained", [False, True])
def test_it_is_the_derivative_by_a_factor_on_the_context(gpt, ids, trained):
    gpt.requires_grad_(requires_grad=trained)
    effects = regard.lens.effects(gpt, ids, TARGET, method="gradient")
    step = 1e-4
    for (layer, head), value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        above, below = (scaled(gpt, layer, head, 1 + sign * step, ids) for sign in (1, -1))
        # Ablation takes the factor from 1 to 0.
        assert value == pytest.approx(-(above - below) / (2 * step), rel=1e-5, abs=1e-7)
    assert effects.unchanged == pytest.approx(scaled(gpt, 0, 0, 1, ids))
    assert all(parameter.grad is None for parameter in gpt.parameters())
    assert "approximate" in repr(effects)


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_where_the_number_is_linear_it_is_the_ablation(by):
    torch.manual_seed(0)
    layer = regard.nn.MultiHeadAttention(DIM, HEADS, mask=regard.causal())
    x = torch.randn(1, 7, DIM)

    def measure(method):
        return regard.lens.effects(
            layer, {"x": x}, lambda y: y[:, -1, 4], method=method, by=by
        ).values

    torch.testing.assert_close(measure("gradient"), measure("ablation"), atol=1e-6, rtol=1e-5)


def test_layers_and_heads_can_be_chosen(gpt, ids):
    whole = regard.lens.effects(gpt, ids, TARGET, method="gradient")
    part = regard.lens.effects(gpt, ids, TARGET, method="gradient", layers=1, heads=[0, 2])
    torch.testing.assert_close(part.values, whole.values[1:, [0, 2]])


def test_what_the_number_does_not_rest_on_has_effect_0(gpt, ids):
    def run(model):
        return model(ids), model.h[0].attn(model.wte(ids)[None])

    whole = regard.lens.effects(gpt, run, lambda outputs: outputs[1][:, 0, 0], method="gradient")
    assert whole.values[0].abs().max() > 0
    assert (whole.values[1:] == 0).all()


def test_torchs_own_layers_have_gradients_too():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True)
    model, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(),
        torch.randn(1, 6, DIM),
    )
    effects = regard.lens.effects(model, {"src": x}, lambda y: y[:, 0, 0], method="gradient")
    assert effects.values.shape == (2, HEADS)
    assert effects.check(6).rank_correlation > 0.5


def test_a_check_ablates_the_largest(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET, method="gradient")
    check = effects.check(4)
    assert check.approximate == tuple(effects.largest(4))
    true = regard.lens.effects(gpt, ids, TARGET)
    for one, other in zip(check.approximate, check.true, strict=True):
        assert (one.place, one.name) == (other.place, other.name)
        assert other.value == pytest.approx(float(true.values[other.place]), abs=1e-12)
    approximate = torch.tensor([effect.value for effect in check.approximate])
    ablated = torch.tensor([effect.value for effect in check.true])
    ranks = torch.stack([approximate.argsort().argsort(), ablated.argsort().argsort()])
    # Without ties: 1 − 6 Σ d² / (n (n² − 1)).
    distance = int((ranks[0] - ranks[1]).square().sum())
    assert check.rank_correlation == pytest.approx(1 - 6 * distance / (4 * (4**2 - 1)))
    assert repr(check).endswith(f"rank correlation: {check.rank_correlation:.2f}")


def test_a_check_can_be_made_again(gpt, ids):
    effects = regard.lens.effects(gpt, ids, TARGET, method="gradient", batch_size=1)
    assert effects.check(3).true == effects.check(6).true[:3]


@pytest.mark.parametrize("send", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_pickled_effects_hold_no_model(gpt, ids, send):
    effects = regard.lens.effects(gpt, ids, TARGET, method="gradient")
    sent = send(effects)
    assert torch.equal(sent.values, effects.values)
    assert (sent.places, sent.labels, repr(sent)) == (effects.places, effects.labels, repr(effects))
    assert sent.largest(3) == effects.largest(3)
    with pytest.raises(ValueError, match="leaves the model behind"):
        sent.check(3)
    effects.check(3)  # its own model is still there


def test_values_that_are_equal_share_their_mean_rank():
    places = ((0, 0), (0, 1), (0, 2), (0, 3))
    effects = Effects(
        values=torch.tensor([[1.0, 3.0, 2.0, 1.0]], dtype=torch.float64),
        unchanged=0.0,
        target="a number",
        over="heads",
        method="gradient",
        axes=("layer", "head"),
        labels=((0,), (0, 1, 2, 3)),
        places=places,
        _ablate=lambda some: torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)[: len(some)],
    )
    ranks = torch.tensor([[3.0, 2.0, 0.5, 0.5], [3.0, 2.0, 1.0, 0.0]])
    expected = float(torch.corrcoef(ranks)[0, 1])
    assert effects.check(4).rank_correlation == pytest.approx(expected)


def test_equal_values_have_no_order():
    layer = regard.nn.MultiHeadAttention(DIM, HEADS, mask=regard.causal())
    x = torch.zeros(1, 5, DIM)
    effects = regard.lens.effects(layer, {"x": x}, lambda y: y[:, -1, 4], method="gradient")
    assert math.isnan(effects.check(3).rank_correlation)


def test_what_is_no_approximation_needs_no_check(gpt, ids):
    with pytest.raises(ValueError, match="are those of ablation, not approximate"):
        regard.lens.effects(gpt, ids, TARGET).check(3)
    with pytest.raises(ValueError, match="at least 2 to compare an order"):
        regard.lens.effects(gpt, ids, TARGET, method="gradient").check(1)


def test_a_target_without_a_gradient_is_refused(gpt, ids):
    with pytest.raises(ValueError, match="the target has no gradient"):
        regard.lens.effects(gpt, ids, lambda logits: logits[0, -1, 7].detach(), method="gradient")


class Frozen(torch.autograd.Function):
    """Calls a module in a forward of its own, through which no gradient comes back."""

    @staticmethod
    def forward(ctx, x, block):
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        return None, None


CUTS = {
    "no_grad": lambda block, x: torch.no_grad()(block)(x),
    "detach": lambda block, x: block(x).detach(),
    "reentrant checkpoint": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "autograd function": lambda block, x: Frozen.apply(x.clone().requires_grad_(), block),
}


class Cut(nn.Module):
    """Three blocks: a cut after the first, while the output does not depend on the last."""

    def __init__(self, cut, **options):
        super().__init__()
        self.stack, self.cut = Stack(3, dim=DIM, heads=HEADS, **options), cut

    def forward(self, x):
        first, second, third = self.stack.h
        out = second(self.cut(first, x))
        third(out)
        return out


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_gradient_that_did_not_come_back_is_not_an_effect_of_0(cut):
    torch.manual_seed(0)
    model, whole = Cut(cut), Cut(lambda block, x: block(x))
    whole.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(1, 7, DIM)}

    def measure(model):
        return regard.lens.effects(model, inputs, lambda y: y[:, -1, 4], method="gradient")

    expected = measure(whole).values
    with pytest.warns(RuntimeWarning, match=r"no gradient came back to layer\(s\) 0, on which"):
        effects = measure(model)
    assert effects.values[0].isnan().all()
    torch.testing.assert_close(effects.values[1], expected[1])  # the same operations
    assert expected[1].all()
    assert (effects.values[2] == 0).all()
    assert {effect.place[0] for effect in effects.check(HEADS).approximate} == {1}


class NoGradient(torch.autograd.Function):
    """Passes a tensor on, and no gradient back."""

    @staticmethod
    def forward(ctx, x, factor):
        return factor * x

    @staticmethod
    def backward(ctx, gradient):
        return None, None


class Passed(torch.autograd.Function):
    """Passes a tensor on, and its gradient back, for which it gets zeros where there is none."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class CutAfterTwo(nn.Module):
    """Four blocks, a cut after the second, while the output does not depend on the last."""

    def __init__(self, cut):
        super().__init__()
        self.stack, self.cut = Stack(4, dim=DIM, heads=HEADS), cut

    def forward(self, x):
        first, second, third, last = self.stack.h
        out = third(self.cut(second(Passed.apply(first(x)))))
        last(out)
        return out


def test_zeros_in_the_place_of_a_gradient_that_was_lost_are_no_effect_of_0():
    torch.manual_seed(0)
    model = CutAfterTwo(lambda x: NoGradient.apply(x, 1.0))
    whole = CutAfterTwo(lambda x: x)
    whole.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(1, 7, DIM)}

    def measure(model):
        return regard.lens.effects(model, inputs, lambda y: y[:, -1, 4], method="gradient").values

    expected = measure(whole)
    with pytest.warns(RuntimeWarning, match=r"no gradient came back to layer\(s\) 0, 1, on which"):
        values = measure(model)
    assert values[:2].isnan().all()
    torch.testing.assert_close(values[2], expected[2])  # the same operations
    assert expected[:3].all()
    assert (values[3] == 0).all()


def test_where_one_of_two_ways_is_cut_the_other_one_is_measured():
    torch.manual_seed(0)
    model = CutAfterTwo(lambda x: 0.5 * x + NoGradient.apply(x, 0.5))
    half = CutAfterTwo(lambda x: 0.5 * x + (0.5 * x).detach())
    half.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(1, 7, DIM)}
    values, expected = (
        regard.lens.effects(one, inputs, lambda y: y[:, -1, 4], method="gradient").values
        for one in (model, half)
    )
    assert expected[:3].all()
    torch.testing.assert_close(values, expected)


def test_a_derivative_of_0_is_an_effect_of_0():
    torch.manual_seed(0)
    model, inputs = Stack(2, dim=DIM, heads=HEADS), {"x": torch.randn(1, 7, DIM)}

    def measure(method):
        target = lambda y: (100 * y[:, -1, 4]).round()  # noqa: E731
        return regard.lens.effects(model, inputs, target, method=method).values

    assert measure("ablation").any()
    assert (measure("gradient") == 0).all()


@pytest.mark.parametrize("matters", [False, True])
def test_calls_without_a_gradient_are_told_apart_in_one_layer(gpt, ids, matters):
    def run(model):
        with torch.no_grad():
            before = model(ids[:5])[-1]
        return model(ids)[None] + (before if matters else 0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        effects = regard.lens.effects(gpt, run, TARGET, method="gradient")
    if matters:
        assert effects.values.isnan().all()
        assert "layer(s) 0, 1" in str(caught[0].message)
        assert not effects.check(3).approximate
    else:
        expected = regard.lens.effects(gpt, ids, TARGET, method="gradient")
        torch.testing.assert_close(effects.values, expected.values, rtol=1e-12, atol=0)
        assert not caught


@pytest.mark.filterwarnings("ignore:the model draws random numbers:RuntimeWarning")
def test_random_draws_are_not_taken_for_an_effect():
    model, inputs = Cut(lambda block, x: block(x), dropout=0.3), {"x": torch.randn(1, 7, DIM)}
    state = torch.get_rng_state()
    effects = regard.lens.effects(model, inputs, lambda y: y[:, -1, 4], method="gradient")
    assert (effects.values[2] == 0).all()
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    model(**inputs)
    assert torch.equal(torch.get_rng_state(), drawn)  # what is checked draws nothing


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable:FutureWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_reentrant_checkpoints_of_transformers():
    model, ids = CASES["llama"].build("sdpa").train(), torch.randint(3, 101, (9,))
    expected = regard.lens.effects(model, ids, regard.lens.Logit(5), method="gradient").values
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = regard.lens.effects(model, ids, regard.lens.Logit(5), method="gradient").values
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.warns(RuntimeWarning, match="no gradient came back to layer"):
        effects = regard.lens.effects(model, ids, regard.lens.Logit(5), method="gradient")
    assert effects.values.isnan().all()


@pytest.mark.parametrize("over", ["heads", "keys", "edges"])
def test_effects_hold_nothing_of_the_run(gpt, ids, over, monkeypatch):
    gradients = []
    backward = torch.autograd.grad

    def grad(*args, **options):
        found = backward(*args, **options)
        gradients.extend(weakref.ref(one) for one in found)
        return found

    monkeypatch.setattr(torch.autograd, "grad", grad)
    effects = regard.lens.effects(gpt, ids, TARGET, over=over, method="gradient")
    gc.collect()
    assert len(gradients) >= LAYERS
    assert all(one() is None for one in gradients)
    assert effects.measure(effects.places[:2]).isfinite().all()
