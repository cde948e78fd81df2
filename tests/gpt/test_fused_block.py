"""A block as one node: the loss and gradients of its modules, and where the modules are needed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.backends import native
from regard.gpt import GPT, GPTCache, GPTConfig, fuse
from regard.gpt._fused_block import run_fused
from regard.gpt.layers import LayerNorm, Linear

CONFIG = {"vocab_size": 29, "context": 13, "layers": 2, "heads": 6, "dim": 42}
IDS = torch.arange(5 * 11).reshape(5, 11) * 7 % 29

pytestmark = pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")


@pytest.fixture
def fused(monkeypatch):
    """The blocks that were run as one node."""
    calls, attend = [], native.self_attention
    monkeypatch.setattr(
        native, "self_attention", lambda *given: calls.append("block") or attend(*given)
    )
    return calls


def gpt(**options):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**CONFIG | options))
    for block in model.h:
        block.fused = run_fused
    return model


def losses_and_gradients(model, *, bfloat16=False, ids=IDS):
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(ids)
    loss = F.cross_entropy(logits.to(model.dtype).flatten(0, -2), ids.flatten())
    return loss, *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


VARIANTS = [
    {},
    {"bias": False},
    {"norm": "rms", "groups": 2},
    {"window": 3, "groups": 1, "heads": 3, "hidden": 53},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_it_computes_what_the_modules_do_in_float64(options, fused):
    model = gpt(**options)
    ours = losses_and_gradients(model)
    assert len(fused) == 2
    exact = losses_and_gradients(model.double())
    assert len(fused) == 2
    for mine, other in zip(ours, exact, strict=True):
        # Some tens of roundings of float32 in sums of up to 55 rows, of entries up to the largest.
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("options", VARIANTS)
def test_in_bfloat16_it_rounds_where_the_modules_do(options, fused):
    model = gpt(**options)
    ours = losses_and_gradients(model, bfloat16=True)
    assert len(fused) == 2
    exact = losses_and_gradients(model)
    for block in model.h:
        block.fused = None
    modules = losses_and_gradients(model, bfloat16=True)
    for mine, theirs, right in zip(ours, modules, exact, strict=True):
        # A library's product may round otherwise by its layout: a few of bfloat16's steps of 2⁻⁸.
        largest = right.abs().max()
        assert (mine - theirs).abs().max() <= 0.02 * largest
        assert mine.dtype == theirs.dtype


def test_blocks_are_fused_inside_the_block_alone(fused):
    model = GPT(GPTConfig(**CONFIG))
    before = copy.deepcopy(vars(model.h[0]))
    losses_and_gradients(model)
    with fuse(torch.nn.DataParallel(model)), fuse(model):
        losses_and_gradients(model)
    assert len(fused) == 2
    losses_and_gradients(model)
    assert len(fused) == 2
    assert vars(model.h[0]).keys() == before.keys()
    with pytest.raises(TypeError, match="model is a Linear; expected a GPT"), fuse(Linear(2, 3)):
        pass


def test_a_frozen_parameter_has_no_gradient(fused):
    model = gpt()
    names = ["loss", *dict(model.named_parameters())]
    whole = dict(zip(names, losses_and_gradients(model), strict=True))
    frozen = {"wte.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight", "h.1.mlp.c_proj.bias"}
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    left = [name for name in whole if name not in frozen]
    for name, mine in zip(left, losses_and_gradients(model), strict=True):
        torch.testing.assert_close(mine, whole[name])
    assert len(fused) == 4


def test_products_for_frozen_matrices_are_left_out(fused):
    model, counts = gpt(), []
    linears = [module for module in model.h.modules() if isinstance(module, nn.Linear)]
    for frozen in (False, True):
        for linear in linears:
            linear.weight.requires_grad_(not frozen)
        loss = model(IDS).sum()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        counts.append(counter.get_total_flops())
    products = 2 * IDS.numel() * sum(linear.weight.numel() for linear in linears)
    assert counts[0] - counts[1] == products
    assert len(fused) == 4


def _hooked(model):
    for module in (model.h[0].mlp.c_fc, model.h[1].attn):
        module.register_forward_hook(lambda *_: None)


def _projected_otherwise(model):
    for block in model.h:
        block.attn.project = block.attn.project


def _compiled(model):
    for block in model.h:
        block.mlp._compiled_call_impl = block.mlp.forward  # as `compile` sets it


def _of_another_class(model):
    for block in model.h:
        block.mlp.c_proj = nn.Linear(42 * 4, 42)


def _without_linear_maps(model):
    for block in model.h:
        block.mlp = nn.Tanh()


def _without_gains(model):
    for block in model.h:
        block.ln_1 = LayerNorm(42, elementwise_affine=False)


def _with_one_bias_for_all(model):
    for block in model.h:
        block.attn.c_attn.bias = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "change",
    [
        _hooked,
        _projected_otherwise,
        _compiled,
        _of_another_class,
        _without_linear_maps,
        _without_gains,
        _with_one_bias_for_all,
        nn.Module.double,
    ],
)
def test_modules_that_do_more_are_called(change, fused):
    model = gpt()
    change(model)
    losses_and_gradients(model)
    assert not fused


@pytest.mark.parametrize(
    "options", [{"dropout": 0.5}, {"qk_norm": True}, {"mlp": "swiglu"}, {"positions": "rotary"}]
)
def test_other_blocks_run_by_their_modules(options, fused):
    losses_and_gradients(gpt(**options, dim=36) if "positions" in options else gpt(**options))
    assert not fused


@pytest.mark.parametrize("hidden", [31, 331])
def test_an_mlp_of_another_width_is_computed_with(hidden, fused):
    model = gpt()
    for block in model.h:
        block.mlp.c_fc, block.mlp.c_proj = Linear(42, hidden), Linear(hidden, 42)
    ours = losses_and_gradients(model)
    assert len(fused) == 2
    for one, other in zip(ours, losses_and_gradients(model.double()), strict=True):
        # As in float64 above.
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["h.0.ln_1.weight", "h.1.ln_2.bias"])
def test_a_norm_of_another_width_is_refused_as_by_torch(name):
    model = gpt()
    path, _, kind = name.rpartition(".")
    setattr(model.get_submodule(path), kind, nn.Parameter(torch.ones(5)))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        model.loss(IDS, IDS)


def test_dropout_that_is_off_keeps_nothing_from_it(fused):
    losses_and_gradients(gpt(dropout=0.5).eval())
    assert len(fused) == 2


def test_who_looks_on_sees_the_modules(fused):
    model = gpt()
    model.with_patterns(IDS)
    model(IDS, mask=regard.documents(IDS // 100))
    model(IDS, cache=GPTCache(model.config))
    with regard.record(model) as recording:
        model(IDS)
    assert len(recording) == 2
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=1)
        model(IDS)
    with torch.no_grad():
        model(IDS)
    torch.func.grad(lambda weights: torch.func.functional_call(model, weights, IDS).sum())(
        dict(model.named_parameters())
    )
    model(IDS[0])  # without a batch
    assert not fused


def test_attention_has_its_dropout_in_a_block_that_has_none(fused):
    model = gpt(dropout=0.5).eval()
    for block in model.h:
        block.attn.train()
    assert not torch.equal(model(IDS), model(IDS))
    assert not fused


@pytest.mark.parametrize("forward", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backward", [None, torch.bfloat16, torch.float16])
def test_autocast_of_the_backward_pass_changes_nothing(forward, backward, fused):
    model = gpt()

    def gradients(dtype):
        with torch.autocast("cpu", forward, enabled=forward is not None):
            loss = model(IDS).logsumexp(-1).sum()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return torch.autograd.grad(loss, [*model.h.parameters()])

    for one, other in zip(gradients(forward), gradients(backward), strict=True):
        # Outside of the blocks another dtype rounds otherwise: bfloat16 by up to 2⁻⁸ a product.
        assert (one - other).abs().max() <= 0.03 * one.abs().max()
    assert len(fused) == 4


def test_tensors_that_hooks_lay_out_otherwise_are_those_that_were_saved(fused):
    model = gpt()
    expected = losses_and_gradients(model)

    def transposed(x):
        return x.mT.contiguous().mT if x.ndim > 1 else x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().clone(), transposed):
        actual = losses_and_gradients(model)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)  # rounded by another layout
    assert len(fused) == 4


def test_a_gradient_of_a_constant_one_has_no_derivative_either():
    model = gpt()
    x = torch.randn(1, 3, 42, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.h[0](x).sum(), x, create_graph=True)
    with pytest.raises(regard.Error, match="first derivatives only"):
        gradient.pow(2).sum().backward()


def test_its_gradient_has_no_derivative():
    model = gpt()
    loss = model(IDS).sum()
    (gradient,) = torch.autograd.grad(loss, [model.h[0].ln_1.weight], create_graph=True)
    with pytest.raises(regard.Error, match="first derivatives only"):
        gradient.sum().backward()


def test_gradients_that_are_one_number_repeated_are_read_as_such(fused):
    model = gpt()
    x = torch.randn(5, 11, 42, requires_grad=True)
    (ours,) = torch.autograd.grad(model.h[0](x).sum(), x)
    assert len(fused) == 1
    exact = x.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(model.h[0].double()(exact).sum(), exact)
    # As in float64 above.
    torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=2e-6)
