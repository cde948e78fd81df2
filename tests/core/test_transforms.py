"""The transforms of `torch.func`, in both orders and in every dtype, against the definition.

What is computed in float64 goes through the written-out steps, the rest through kernels.
"""

import warnings
from functools import partial

import pytest
import torch
from support import draws
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import regard
from regard.nn import MultiHeadAttention

N, B, H, G, L, S, D, DV = 3, 2, 6, 3, 5, 7, 11, 13

# Sums of some hundred terms near 1, each rounded once in this dtype.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.5, torch.float16: 0.06}

# Forward mode compiles rules that torch wrote in a language of its own that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


normal = partial(draws.normal, dtype=torch.float64)


def inputs(*, batch=B):
    """Query, key and value of N problems."""
    shapes = (N, batch, H, L, D), (N, batch, G, S, D), (N, batch, G, S, DV)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


KEEP = torch.arange(S)[None] >= torch.tensor([[0], [2]])
OPTIONS = {
    "plain": {},
    "causal": {"mask": regard.causal()},
    "padded": {"mask": regard.causal() & regard.padding(KEEP), "softcap": 3.0},
    "dense": {"mask": regard.dense(normal(L, S, seed=5) > -1), "scale": -0.3},
    "numbers": {
        "alibi": normal(H, seed=6).exp(),
        "sink": normal(H, seed=7),
        "bias": normal(H, 1, S),
    },
}


def call(*tensors, **options):
    options = {k: t.to(tensors[0].dtype) if k == "bias" else t for k, t in options.items()}
    return regard.attention(*tensors, **options)


def written_out(*tensors, **options):
    """The definition, a problem at a time, in float64."""
    return regard.explain(*tensors, **options).context


def first(function):
    """The gradients of a function's squares with respect to query, key and value."""
    return grad(lambda *tensors: function(*tensors).pow(2).sum(), argnums=(0, 1, 2))


def each(function, *tensors):
    """A function of each of N problems, one by one."""
    results = [function(*(t[i] for t in tensors)) for i in range(N)]
    if isinstance(results[0], tuple):
        return tuple(map(torch.stack, zip(*results, strict=True)))
    return torch.stack(results)


def plain_gradients(function, *tensors):
    """The same gradients by autograd, without `torch.func`."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(function(*tensors).pow(2).sum(), tensors)


# Each: of `attention` under a transform, and the same without transforms, of the definition.
TRANSFORMS = {
    "grad": lambda f, q, k, v: first(f)(q[0], k[0], v[0]),
    "vjp": lambda f, q, k, v: vjp(f, q[0], k[0], v[0])[1](v[0].repeat(1, 2, 1, 1)[..., :L, :]),
    "vmap": lambda f, q, k, v: vmap(f)(q, k, v),
    "vmap of one": lambda f, q, k, v: vmap(f, in_dims=(None, 0, None))(q[0], k, v[0]),
    "vmap of other axes": lambda f, q, k, v: vmap(f, in_dims=(1, -1, 2), out_dims=1)(
        q.movedim(0, 1), k.movedim(0, -1), v.movedim(0, 2)
    ),
    "vmap of vmap": lambda f, q, k, v: vmap(vmap(f))(q[None], k[None], v[None])[0],
    "vmap of grad": lambda f, q, k, v: vmap(first(f))(q, k, v),
    "vmap of grad of one": lambda f, q, k, v: vmap(first(f), in_dims=(0, None, None))(
        q, k[0], v[0]
    ),
    "grad of vmap": lambda f, q, k, v: first(vmap(f))(q, k, v),
}
EXPECTED = {
    "grad": lambda f, q, k, v: plain_gradients(f, q[0], k[0], v[0]),
    "vjp": lambda f, q, k, v: torch.autograd.grad(
        f(*(tensors := [t[0].detach().requires_grad_() for t in (q, k, v)])),
        tensors,
        v[0].repeat(1, 2, 1, 1)[..., :L, :],
    ),
    "vmap": each,
    "vmap of one": lambda f, q, k, v: each(lambda key: f(q[0], key, v[0]), k),
    "vmap of other axes": lambda f, q, k, v: each(f, q, k, v).movedim(0, 1),
    "vmap of vmap": each,
    "vmap of grad": lambda f, q, k, v: each(lambda *t: plain_gradients(f, *t), q, k, v),
    "vmap of grad of one": lambda f, q, k, v: each(
        lambda query: plain_gradients(f, query, k[0], v[0]), q
    ),
    "grad of vmap": lambda f, q, k, v: each(lambda *t: plain_gradients(f, *t), q, k, v),
}


def compare(results, wanted, dtype):
    results, wanted = (r if isinstance(r, tuple) else (r,) for r in (results, wanted))
    for result, exact in zip(results, wanted, strict=True):
        assert result.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_the_definition_does(name, options, dtype):
    tensors = inputs()
    options = OPTIONS[options]
    rounded = [t.to(dtype) for t in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that a loop stands in for a missing rule
        results = TRANSFORMS[name](lambda *t: call(*t, **options), *rounded)
    exact = [t.double() for t in rounded]
    compare(results, EXPECTED[name](lambda *t: written_out(*t, **options), *exact), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mapped", [True, False])
def test_gradients_of_what_the_problems_share(mapped, dtype):
    """Of a bias, a slope and a sink, for each problem: also where they spread over the batch."""
    names = ("bias", "alibi", "sink")
    numbers = [normal(N, 1, L, S), normal(N, H, seed=1).exp(), normal(N, B, H, seed=2)]

    def gradients(function, *tensors):
        def loss(bias, alibi, sink, query, key, value):
            options = dict(zip(names, (bias, alibi, sink), strict=True))
            return function(query, key, value, **options).pow(2).sum()

        dims = ((0 if mapped else None),) * 3 + (0, 0, 0)
        return vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*tensors)

    shared = numbers if mapped else [t[0] for t in numbers]
    tensors = [*shared, *inputs()]
    results = gradients(regard.attention, *(t.to(dtype) for t in tensors))
    wanted = gradients(written_out, *tensors)
    compare(results, wanted, dtype)
    # The definition under the same transforms: once more without them.
    plain = [t.detach().clone().requires_grad_() for t in (t[0] for t in numbers)]
    context = written_out(*(t[0] for t in inputs()), **dict(zip(names, plain, strict=True)))
    for one, all_of_them in zip(
        torch.autograd.grad(context.pow(2).sum(), plain), wanted, strict=True
    ):
        torch.testing.assert_close(one, all_of_them[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jacobians_by_rows_and_by_columns(dtype):
    query, key, value = (t[0, :1, :1].to(dtype) for t in inputs())

    def function(query):
        return call(query, key, value, mask=regard.causal())

    exact = torch.autograd.functional.jacobian(
        lambda q: written_out(q, key.double(), value.double(), mask=regard.causal()), query.double()
    )
    for transform in (jacrev, jacfwd):
        compare(transform(function)(query), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS)
def test_forward_mode(options, dtype):
    query, key, value = (t[0].to(dtype) for t in inputs())
    tangents = tuple(normal(*t.shape, seed=9).to(dtype) for t in (query, key, value))
    options = OPTIONS[options]
    results = jvp(lambda *t: call(*t, **options), (query, key, value), tangents)
    # The other way round: the derivative along a line, by reverse mode in float64.
    exact = [t.double() for t in (query, key, value)]
    _, along = torch.autograd.functional.jvp(
        lambda *t: written_out(*t, **options), tuple(exact), tuple(t.double() for t in tangents)
    )
    compare(results, (written_out(*exact, **options), along), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outer", [jacfwd, jacrev])
def test_second_derivatives(outer, dtype):
    query, key, value = (t[0, :1, :2] for t in inputs())
    key, value = key[:, :1], value[:, :1]

    def loss(function, key, value):
        return lambda query: function(query, key, value, mask=regard.causal()).pow(2).sum()

    def under(transform, dtype):
        return transform(loss(call, key.to(dtype), value.to(dtype)))(query.to(dtype))

    exact = torch.autograd.functional.hessian(loss(written_out, key, value), query)
    compare(under(lambda f: outer(jacrev(f)), dtype), exact, dtype)
    compare(under(hessian, dtype), exact, dtype)


def test_a_second_derivative_across_a_transform_is_refused_with_the_cure():
    """The outer derivative is plain autograd's, of which nothing is known beforehand."""
    query, key, value = (t[0].float().requires_grad_() for t in inputs())
    (gradient, *_) = first(call)(query, key, value)
    with pytest.raises(regard.Error, match=r"first derivatives only; .* backend='eager'"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_values_do_not_propagate_under_vmap(dtype):
    query, key, value = (t.to(dtype) for t in inputs())
    key[1, :, :, -1], value[1, :, :, -2] = torch.nan, torch.inf
    mask = regard.causal()
    results = vmap(lambda *t: call(*t, mask=mask))(query, key, value)
    wanted = each(lambda *t: call(*t, mask=mask), query, key, value)
    assert bool(wanted.isinf().any())
    torch.testing.assert_close(results, wanted, equal_nan=True)


# Dropout asks torch for its numbers, and so follows vmap's `randomness`.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_follows_the_randomness_of_vmap(dtype):
    query, key, value = (t[:1].expand(t.shape).to(dtype) for t in inputs())

    def dropped(query, key, value):
        return call(query, key, value, dropout=0.4)

    with pytest.raises(RuntimeError, match="random"):
        vmap(dropped)(query, key, value)
    same = vmap(dropped, randomness="same")(query, key, value)
    assert torch.equal(same[0], same[1])
    different = vmap(dropped, randomness="different")(query, key, value)
    assert not torch.equal(different[0], different[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_under_vmap_drops_the_same_weights_as_without(dtype):
    tensors = [t.to(dtype) for t in inputs()]

    def gradients(function, *tensors):
        return grad(lambda *t: function(*t, dropout=0.4).pow(2).sum(), argnums=(0, 1, 2))(*tensors)

    for work in (lambda *t: call(*t, dropout=0.4), lambda *t: gradients(call, *t)):
        torch.manual_seed(3)
        results = vmap(work, randomness="same")(*tensors)

        def alone(*tensors, work=work):
            torch.manual_seed(3)
            return work(*tensors)

        compare(results, tuple_of(each(alone, *tensors)), dtype)


def tuple_of(results):
    results = results if isinstance(results, tuple) else (results,)
    return tuple(r.double() for r in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_each_sample_of_a_model(dtype):
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3).to(dtype)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    samples = normal(N, L, 12, seed=4).to(dtype)

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).pow(2).sum()

    results = vmap(grad(loss), in_dims=(None, 0))(parameters, samples)
    for i, sample in enumerate(samples):
        wanted = torch.autograd.grad(layer(sample[None]).pow(2).sum(), list(layer.parameters()))
        for name, exact in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(results[name][i], exact, rtol=1e-4, atol=1e-5)
