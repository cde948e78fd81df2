"""Graphs traced without a compiler, and profiles, contain every operator that runs."""

import pytest
import torch
from support.draws import normal
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import regard

B, H, G, L, S, D, DV = 2, 6, 3, 5, 7, 11, 13


def inputs(queries=L, keys=S, dtype=torch.float32):
    shapes = (B, H, queries, D), (B, G, keys, D), (B, G, keys, DV)
    return [normal(*s, seed=i + queries).to(dtype) for i, s in enumerate(shapes)]


pytestmark = pytest.mark.usefixtures("unchecked")

OPTIONS = {
    "plain": {},
    "causal": {"mask": regard.causal()},
    "window": {"mask": regard.causal() & regard.window(3), "scale": -0.3},
    "numbers": {"alibi": torch.arange(1.0, 1 + H), "sink": normal(H, seed=7)},
}

# As torch does, tracing warns of every check of a shape, and says itself that it is deprecated.
TRACING = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace.*` is deprecated"
)


@TRACING
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_traced_call_computes_what_the_call_does(name, grad, dtype):
    def call(query, key, value):
        return regard.attention(query, key, value, **OPTIONS[name])

    with torch.set_grad_enabled(grad):
        example = [t.requires_grad_(grad) for t in inputs(dtype=dtype)]
        traced = torch.jit.trace(call, example, check_trace=False)
        for queries, keys in [(L, S), (3, 2), (1, 17)]:  # other sizes than it was traced with
            tensors = inputs(queries, keys, dtype)
            assert torch.equal(traced(*tensors), call(*tensors))


@TRACING
def test_a_trace_of_finite_values_holds_for_others():
    def call(query, key, value):
        return regard.attention(query, key, value, mask=regard.causal())

    tensors = inputs(dtype=torch.float64)
    traced = torch.jit.trace(call, tensors, check_trace=False)
    for tensor in tensors[1:]:
        tensor[0, 0, 4] = torch.nan
        tensor[1, 0, 5] = torch.inf
    torch.testing.assert_close(traced(*tensors), call(*tensors), rtol=0, atol=0, equal_nan=True)


def test_a_profile_contains_the_operator_of_a_plain_call():
    tensors = inputs()
    regard.attention(*tensors)  # so that the way past the dispatcher is known
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        regard.attention(*tensors)
    assert "regard::attention" in {event.key for event in profile.key_averages()}


@TRACING
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_for_onnx_holds_torch_s_operators_alone(grad, monkeypatch):
    def call(query, key, value):
        return regard.attention(query, key, value, mask=regard.causal())

    tensors = [t.requires_grad_(grad) for t in inputs()]
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(call, tensors, check_trace=False)
    assert "regard::" not in str(traced.graph)
    # Each entry is a weighted mean of numbers near 1.
    torch.testing.assert_close(traced(*tensors), call(*tensors), rtol=0, atol=2e-6)


READINGS = {
    "entropy": lambda pattern: pattern.entropy(),
    "topk": lambda pattern: pattern.topk(2).weights,
    "dense": lambda pattern: pattern.dense(),
    "slice": lambda pattern: pattern[..., 1:3, :2],
    "logsumexp": lambda pattern: pattern.logsumexp,
}


def traced(call, tensors):
    torch.jit.trace(call, tensors, check_trace=False)


def made(call, tensors):
    make_fx(call)(*tensors)


def faked(call, tensors):
    with FakeTensorMode() as mode:
        call(*map(mode.from_tensor, tensors))


def without_numbers(call, tensors):
    call(*(tensor.to("meta") for tensor in tensors))


def mapped(call, tensors):
    torch.func.vmap(call)(*tensors)


@TRACING
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("way", [traced, made, faked, without_numbers, mapped])
def test_a_pattern_cannot_be_read_inside_a_graph(way, name, dtype):
    def call(query, key):
        return READINGS[name](regard.Pattern(query, key, mask=regard.causal()))

    with pytest.raises(regard.Error, match=r"can't be read under .*read it afterwards"):
        way(call, inputs(dtype=dtype)[:2])


@pytest.mark.parametrize("way", [faked, mapped])
@pytest.mark.parametrize("make", [regard.padding, regard.documents])
def test_a_mask_that_has_to_be_checked_is_made_outside(way, make):
    with pytest.raises(ValueError, match=r"can't be checked under .*make the mask outside it"):
        way(make, [torch.ones(B, S, dtype=torch.int64)])
