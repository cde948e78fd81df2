"""Attention over several ranks against the definition, and its gradients against float64."""

import functools

import pytest
import torch
from support.ring import CAUSAL, PROBLEMS, ROUNDING, exact

import regard
from regard.errors import Error
from regard.nn import MultiHeadAttention
from regard_experiments import distributed


def gradients(problem):
    """Gradients by the written-out computation of one process in float64."""
    drawn = {name: t.double() for name, t in problem.tensors().items()}
    gradient = drawn.pop("gradient")
    for tensor in drawn.values():
        tensor.requires_grad_()
    context = regard.attention(**drawn, **problem.options, mask=problem.mask, backend="eager")
    context.backward(gradient)
    return {name: tensor.grad for name, tensor in drawn.items()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_contexts_are_those_of_the_definition(world, name):
    problem, wanted = PROBLEMS[name], exact(name).exact
    higher = torch.float64 if problem.dtype == torch.float64 else torch.float32
    for result, dim, dtype in (("context", -2, problem.dtype), ("logsumexp", -1, higher)):
        actual = world.whole(f"attention {name}", result, dim)
        assert actual.dtype == dtype
        tolerance = 8 * ROUNDING[dtype]
        torch.testing.assert_close(
            actual.double(),
            getattr(wanted, result).reshape(actual.shape),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_those_of_one_process_in_float64(world, name):
    problem = PROBLEMS[name]
    task, rounding = f"attention {name}", ROUNDING[problem.dtype]
    for tensor, wanted in gradients(problem).items():
        if tensor in ("alibi", "sink"):  # sums over all rows, of weights times distances
            actual, size = world.common(task, tensor), 64
        else:
            actual, size = world.whole(task, tensor, -2), 16
        assert actual.dtype == problem.dtype
        torch.testing.assert_close(
            actual.double(),
            wanted,
            rtol=size * rounding,
            atol=size * rounding,
            msg=lambda text, tensor=tensor: f"{tensor}: {text}",
        )


def test_layers_trained_a_step_are_those_of_one_process(world):
    torch.manual_seed(1)
    layers = torch.nn.ModuleList(
        MultiHeadAttention(12, 6, groups=3, bias=True, mask=CAUSAL) for _ in range(2)
    )
    x, target = torch.randn(2, 2, 19, 12)
    output, pattern = layers[1].with_pattern(layers[0](x))
    ((output - target) ** 2).sum().backward()
    with torch.no_grad():
        for weight in layers.parameters():
            weight.sub_(0.01 * weight.grad)
    close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(world.whole("trained", "output", -2), output.detach())
    close(world.whole("trained", "entropy", -1), pattern.entropy())
    for name, weight in layers.state_dict().items():
        close(world.common("trained", name), weight)
        assert not torch.equal(weight, torch.zeros_like(weight))


def test_shards_are_put_together_again(world):
    assert all(one["put together"] for one in world.actual)


@pytest.fixture
def alone():
    """A group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_one_rank_computes_what_one_process_does(alone):
    tensors = PROBLEMS["causal"].tensors()
    gradient = tensors.pop("gradient")
    results = []
    for function in (regard.attention, distributed.attention):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors.values()]
        context = function(*leaves, mask=CAUSAL)
        context.backward(gradient)
        results.append([context.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_is_refused(alone):
    query, key, value = torch.randn(3, 5, 4).unbind()
    context = distributed.attention(query.requires_grad_(), key, value)
    (gradient,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(Error, match="first derivatives only"):
        gradient.sum().backward()


def test_a_pattern_on_several_ranks_has_readouts_and_no_weights(alone):
    query, key, value = torch.randn(3, 2, 5, 4).unbind()
    _, pattern = distributed.attention_with_pattern(query, key, value)
    assert pattern.shape == (2, 5, 5)
    assert pattern.topk(2).positions.shape == (2, 5, 2)
    assert pattern.image(3, 3).shape == (2, 3, 3)
    for call in (
        lambda: pattern[0],
        lambda: pattern[..., 0, :],
        lambda: pattern @ value,
        lambda: query.mT @ pattern,
        pattern.dense,
        pattern.verify,
        lambda: pattern.crop((0, 2)),
        lambda: pattern.image(2, 2, keys=(0, 2)),
    ):
        with pytest.raises(regard.Error, match="can take readouts of it together"):
            call()


def test_a_tensor_changed_before_the_backward_pass_is_noticed(alone):
    query, key, value = (torch.randn(5, 4) for _ in range(3))
    context = distributed.attention(query.requires_grad_(), key, value)
    key.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        context.sum().backward()
