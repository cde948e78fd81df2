"""The fused kernels of CUDA, replaced by what their documentation says: their arguments are right.

What they are handed and what is made of their answers is held to the oracle here; what they compute
is not: see test_cuda.py.
"""

import contextlib

import pytest
import torch
from hypothesis import assume, given
from support.cases import HALF, cases
from support.draws import normal
from support.fake_cuda import documented_kernels
from support.tolerances import as_exact_as_torch, interval_masks, large

import regard
from regard.backends import choose
from regard.backends.results import with_sink
from regard_experiments.gpu.fused import _run, cudnn, efficient, flash

OPTIONS = {
    "plain": {},
    "sink": {"sink": torch.tensor([0.5, -2.0, 3.0])},
    "negative scale": {"scale": -0.5},
    "no scale": {"scale": 0.0},
}
MASKS = {"everything": regard.Mask(), "causal": regard.causal()}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("backend", "lengths"), [("flash", (37, 37)), ("flash", (29, 41)), ("cudnn", (37, 37))]
)
def test_kernels_without_a_mask_of_their_own(backend, lengths, mask, option, dtype):
    case = large(*lengths, MASKS[mask], dtype=dtype, **OPTIONS[option])
    with documented_kernels():
        as_exact_as_torch(case, backend)


@given(cases(softcap=False, dtypes=[torch.float32, *HALF]))
def test_the_efficient_kernel_takes_any_mask(case):
    if case.dtype in HALF:
        case.options.pop("alibi", None)
        case.others.pop("alibi", None)
        added = [change.added for change in case.options["mask"].score_changes]
        assume("bias" not in case.options and all(number == -torch.inf for number in added))
    with documented_kernels():
        as_exact_as_torch(case, "efficient")


@pytest.mark.parametrize("name", interval_masks(1, 1))
def test_the_efficient_kernel_in_blocks(name, monkeypatch):
    monkeypatch.setattr(efficient, "_WRITTEN", 331 * 6 * 17)
    with documented_kernels():
        as_exact_as_torch(large(101, 331, interval_masks(101, 331)[name]), "efficient")


@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient"])
def test_gradients_pass_through_the_widening(backend):
    shapes = (2, 4, 37, 7), (2, 2, 37, 7), (2, 2, 37, 5)
    tensors = [normal(*s, seed=i, dtype=torch.bfloat16) for i, s in enumerate(shapes)]
    weight = normal(2, 4, 37, 5, seed=9)

    def gradients(attend, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        return torch.autograd.grad((attend(*leaves) * weight.to(dtype)).sum(), leaves)

    def fused(*leaves):
        return regard.attention(*leaves, mask=regard.causal(), backend=backend)

    with documented_kernels():
        actual = gradients(fused, torch.bfloat16)
    exact = gradients(lambda *a: regard.explain(*a, mask=regard.causal()).context, torch.float64)
    for one, other in zip(actual, exact, strict=True):
        # Sums of bfloat16 numbers, each rounded to 8 bits.
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=2**-5 * float(other.abs().max())
        )


@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient"])
@pytest.mark.parametrize("nothing", ["batch", "heads", "queries", "keys"])
def test_nothing_at_all(nothing, backend):
    sizes = {"batch": 2, "heads": 4, "queries": 5, "keys": 7} | {nothing: 0}
    batch, heads, queries, keys = sizes.values()
    query = torch.ones(batch, heads, queries, 8, dtype=torch.bfloat16)
    key = torch.ones(batch, heads, keys, 8, dtype=torch.bfloat16)
    with documented_kernels():
        context, pattern = regard.attention_with_pattern(query, key, key, backend=backend)
    assert context.shape == query.shape
    assert not bool(context.any())
    assert bool((pattern.logsumexp == -torch.inf).all())


def test_a_visible_nan_makes_a_nan_of_the_logsumexp():
    """Of such a row FlashAttention says that the sum is infinite: its weights would be 0."""
    query, key, value = (normal(1, 1, 5, 8, seed=s, dtype=torch.bfloat16) for s in range(3))
    key[0, 0, 3, 2] = torch.nan
    with documented_kernels():
        context, pattern = regard.attention_with_pattern(query, key, value, backend="flash")
    assert bool(context.isnan().all())
    assert bool(pattern.logsumexp.isnan().all())


@pytest.mark.parametrize("module", [flash, cudnn, efficient])
def test_torch_knows_the_calls_and_their_gradients(module, monkeypatch):
    """On tensors without numbers: the names, the shapes, and that a gradient comes back."""
    monkeypatch.setattr(_run, "without_autocast", contextlib.nullcontext)  # meta has none
    query = torch.empty(2, 4, 37, 7, dtype=torch.bfloat16, device="meta", requires_grad=True)
    key = torch.empty(2, 2, 37, 7, dtype=torch.bfloat16, device="meta", requires_grad=True)
    value = torch.empty(2, 2, 37, 5, dtype=torch.bfloat16, device="meta", requires_grad=True)
    problem = regard.inputs.check(query, key, value, regard.inputs.Scoring(mask=regard.causal()))
    context, logsumexp = module.run(problem)
    assert context.shape == (2, 4, 37, 5)
    assert logsumexp.shape == (2, 4, 37)
    assert logsumexp.dtype == torch.float32
    assert context.requires_grad
    assert not logsumexp.requires_grad
    for tensor, gradient in zip(
        (query, key, value), torch.autograd.grad(context.sum(), (query, key, value)), strict=True
    ):
        assert gradient.shape == tensor.shape


def test_choosing_by_name_is_by_name():
    x = torch.ones(1, 1, 5, 8, dtype=torch.bfloat16)
    with documented_kernels():
        assert str(choose(regard.inputs.check(x, x, x), "flash")) == "flash (FA2, experimental)"


def test_a_sink_of_nan_does_not_reach_fully_masked_rows():
    context, logsumexp = torch.zeros(1, 1, 2, 3), torch.tensor([[[-torch.inf, 1.0]]])
    context, logsumexp = with_sink(torch.tensor([[torch.nan]]), context, logsumexp)
    assert context.isnan().any(-1).tolist() == [[[False, True]]]
    assert logsumexp[0, 0, 0] == -torch.inf
