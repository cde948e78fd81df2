"""Gradients: of the written-out computation against differences, of torch's kernel against it."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support import draws
from support.cpu_paths import ON_CPU

import regard

B, H, G, L, S, D, DV = 2, 4, 2, 3, 5, 2, 3


normal = partial(draws.normal, dtype=torch.float64)


def double_inputs():
    shapes = {
        "query": (B, H, L, D),
        "key": (B, G, S, D),
        "value": (B, G, S, DV),
        "bias": (H, 1, S),
        "alibi": (H,),
        "sink": (H,),
    }
    return {
        name: normal(*shape, seed=seed).requires_grad_()
        for seed, (name, shape) in enumerate(shapes.items())
    }


MASKS = {
    "none": None,
    "causal": regard.causal(),
    "fully masked rows": regard.causal(offset=-1),
    "dense": regard.dense(normal(B, 1, L, S, seed=9) > -0.3),
    "padding": regard.causal() & regard.padding(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])),
}
EXTRAS = [(), ("bias",), ("alibi",), ("sink",), ("bias", "alibi", "sink")]


@pytest.mark.each_once
@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_of_everything_agree_with_differences(softcap, mask, extras):
    inputs = {n: t for n, t in double_inputs().items() if n in ("query", "key", "value", *extras)}

    def context(*tensors):
        arguments = dict(zip(inputs, tensors, strict=True))
        return regard.attention(**arguments, mask=MASKS[mask], softcap=softcap)

    # Directional differences: one pair of calls an input. The analytic side is the gradient itself.
    assert torch.autograd.gradcheck(context, tuple(inputs.values()), fast_mode=True)


def test_gradients_of_steps_agree_with_differences():
    inputs = double_inputs()

    def steps(query, key, value):
        actual = regard.explain(query, key, value, mask=regard.causal())
        return actual.weights, actual.context, actual.logsumexp

    assert torch.autograd.gradcheck(steps, tuple(inputs[n] for n in ("query", "key", "value")))


def test_a_trained_dense_mask_gets_its_gradient():
    inputs = double_inputs()
    mask = normal(L, S, seed=8).requires_grad_()

    def context(mask):
        tensors = (inputs[name] for name in ("query", "key", "value"))
        return regard.attention(*tensors, mask=regard.causal() & regard.dense(mask))

    assert torch.autograd.gradcheck(context, (mask,))


def gradients(call, tensors, weight):
    tensors = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad((call(*tensors).to(weight.dtype) * weight).sum(), tensors)


@pytest.mark.each_once
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(1, 7), (37, 37), (257, 257), (257, 331), (61, 23)])
@pytest.mark.parametrize("name", ["none", "causal", "window", "padding"])
def test_gradients_are_as_exact_as_torch_s_own(name, lengths, dtype, backend):
    queries, keys = lengths
    index = torch.arange(keys)
    mask = {
        "none": regard.Mask(),
        "causal": regard.causal(),
        "window": regard.causal() & regard.window(11),
        "padding": regard.causal() & regard.padding(torch.stack([index >= 3, index < keys - 2])),
    }[name]
    shapes = (B, H, queries, 8), (B, G, keys, 8), (B, G, keys, DV)
    tensors = [normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    visible = mask.visible(queries, keys, (B, H))
    # The loss leaves rows out that see nothing: torch's gradient there is its own affair.
    weight = normal(B, H, queries, DV, seed=7) * visible.any(-1, keepdim=True)

    def ours(query, key, value):
        return regard.attention(query, key, value, mask=mask, backend=backend)

    def exact(query, key, value):
        return regard.explain(query, key, value, mask=mask).context

    def torchs_own(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)

    wanted = gradients(exact, [t.double() for t in tensors], weight)
    weight = weight.to(dtype)
    for actual, own, truth in zip(
        gradients(ours, tensors, weight),
        gradients(torchs_own, tensors, weight),
        wanted,
        strict=True,
    ):
        assert actual.dtype == dtype
        error, reference = ((g.double() - truth).abs().max() for g in (actual, own))
        # One rounding of the largest gradient, which torch may avoid by luck.
        floor = torch.finfo(dtype).eps * truth.abs().max()
        assert error <= 2 * reference + floor, f"error {error:.3g}, torch's own {reference:.3g}"


@pytest.mark.parametrize("backend", ON_CPU)
def test_later_tokens_get_no_gradient_from_earlier_rows(backend):
    tensors = [normal(2, 3, 37, 8, seed=s, dtype=torch.float32).requires_grad_() for s in range(3)]
    context = regard.attention(*tensors, mask=regard.causal(), backend=backend)
    query, key, value = torch.autograd.grad(context[..., :11, :].sum(), tensors)
    for gradient in (query, key, value):
        assert not bool(gradient[..., 11:, :].any())
        assert bool(gradient[..., :11, :].any())


def test_a_pattern_keeps_no_gradient():
    tensors = [t for n, t in double_inputs().items() if n in {"query", "key", "value"}]
    _, pattern = regard.attention_with_pattern(*tensors)
    for result in (pattern.dense(), pattern.entropy(), pattern.logsumexp, pattern @ torch.ones(S)):
        assert not result.requires_grad
