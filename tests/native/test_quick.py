"""Plain calls with cached checks, also for masks whose bounds are tables."""

import contextlib
import gc

import pytest
import torch
from support.cpu_paths import SETS

import regard
from regard.backends.native import quick

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

H, L, D = 3, 67, 5
IDS = torch.arange(3).repeat_interleave(torch.tensor([29, 1, 37]))
KEEP = torch.arange(L) < 61


def tensors(length=L):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(3, 2, H, length, D, generator=generator).unbind()


def checked(query, key, value, mask, **options):
    """The same by the way that is checked at each call."""
    return regard.attention(query, key, value, mask=mask, backend="native", **options)


@pytest.mark.parametrize(
    "mask",
    [
        regard.documents(IDS),
        regard.documents(torch.stack([IDS, IDS.flip(0)])) & regard.causal(),
        regard.documents(IDS, offset=0) & regard.window(13),
        regard.padding(KEEP) & regard.causal(),
        regard.masks.prefix(11),
    ],
    ids=repr,
)
def test_cached_tables_give_bitwise_equal_results(mask):
    arguments = tensors()
    assert mask.is_fixed
    first = regard.attention(*arguments, mask=mask)
    (plan,) = quick._PLANS_OF_MASKS[mask].values()
    assert plan.tables
    for _ in range(2):
        assert torch.equal(regard.attention(*arguments, mask=mask), first)
    assert list(quick._PLANS_OF_MASKS[mask].values()) == [plan]
    assert torch.equal(checked(*arguments, mask), first)


def test_ids_that_change_later_do_not_change_a_mask():
    ids = IDS.clone()
    mask = regard.documents(ids)
    first = regard.attention(*tensors(), mask=mask)
    ids.fill_(1)
    assert torch.equal(regard.attention(*tensors(), mask=mask), first)
    assert torch.equal(checked(*tensors(), mask), first)


@pytest.mark.parametrize("name", ["intervals", "prefix", "offset"])
def test_a_change_of_a_tensor_takes_effect_at_the_next_call(name):
    numbers = torch.full((L,), 31) if name == "intervals" else torch.tensor([3, 17])
    mask = {
        "intervals": lambda: regard.masks.intervals(torch.zeros_like(numbers), numbers),
        "prefix": lambda: regard.masks.prefix(numbers),
        "offset": lambda: regard.padding(KEEP) & regard.causal(offset=numbers),
    }[name]()
    assert not mask.is_fixed
    before = regard.attention(*tensors(), mask=mask)
    numbers.add_(5)
    after = regard.attention(*tensors(), mask=mask)
    assert torch.equal(after, checked(*tensors(), mask))
    assert not torch.equal(after, before)


def test_the_cache_of_a_mask_is_bounded_and_freed_with_it():
    mask = regard.documents(IDS)
    before = len(quick._PLANS_OF_MASKS)
    for queries in range(1, 40):
        query, key, value = tensors()
        last = regard.attention(query[..., -queries:, :], key, value, mask=mask)
        assert torch.equal(last, checked(query[..., -queries:, :], key, value, mask))
        assert 1 <= len(quick._PLANS_OF_MASKS[mask]) <= 32
    assert len(quick._PLANS_OF_MASKS) == before + 1
    del mask
    gc.collect()
    assert len(quick._PLANS_OF_MASKS) == before


def test_a_mask_of_another_length_is_refused_at_each_call():
    mask = regard.documents(IDS)
    for _ in range(2):
        with pytest.raises(ValueError, match="ids covers 67 keys, but there are 66"):
            regard.attention(*tensors(66), mask=mask)


@pytest.mark.parametrize("mask", [None, regard.documents(IDS)], ids=repr)
def test_a_scale_that_is_no_number_is_refused_after_one_that_equals_it(mask):
    regard.attention(*tensors(), mask=mask, scale=1.0)
    with pytest.raises(TypeError, match="scale"):
        regard.attention(*tensors(), mask=mask, scale=True)


# With a softcap, slopes and sinks


def slopes(dtype=torch.float32):
    return torch.tensor([0.5, 0.25, 0.125], dtype=dtype)


OPTIONS = [
    {"softcap": 2.0},
    {"alibi": slopes()},
    {"sink": torch.tensor([1.0, -2.0, 0.5])},
    {"softcap": 3.0, "alibi": slopes().expand(2, -1), "sink": torch.randn(2, H), "scale": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("mask", [None, regard.documents(IDS)], ids=repr)
def test_cached_options_give_bitwise_equal_results(mask, options):
    arguments = tensors()
    plans = quick._PLANS if mask is None else quick._plans_of(mask)
    plans.clear()
    first = regard.attention(*arguments, mask=mask, **options)
    (plan,) = plans.values()
    assert plan is not None
    assert torch.equal(regard.attention(*arguments, mask=mask, **options), first)
    assert list(plans.values()) == [plan]
    assert torch.equal(checked(*arguments, mask, **options), first)


@pytest.mark.parametrize("name", ["alibi", "sink"])
def test_numbers_per_head_are_read_at_each_call(name):
    arguments, numbers = tensors(), slopes()
    before = regard.attention(*arguments, **{name: numbers})
    numbers.mul_(3)
    after = regard.attention(*arguments, **{name: numbers})
    assert not torch.equal(after, before)
    assert torch.equal(after, checked(*arguments, None, **{name: numbers}))
    # Slopes and sinks at one address are not taken for each other, nor one for both.
    other = {"alibi": "sink", "sink": "alibi"}[name]
    for options in ({other: numbers}, {name: numbers, other: numbers}):
        actual = regard.attention(*arguments, **options)
        assert torch.equal(actual, checked(*arguments, None, **options))


@pytest.mark.parametrize("name", ["alibi", "sink"])
def test_numbers_that_the_kernels_cannot_read_in_place_are_converted_at_each_call(name):
    for numbers in (slopes(torch.float64), slopes(torch.bfloat16)):
        for _ in range(2):
            actual = regard.attention(*tensors(), **{name: numbers})
            assert torch.equal(actual, checked(*tensors(), None, **{name: numbers}))
            numbers.mul_(2)


@pytest.mark.parametrize("name", ["alibi", "sink"])
def test_numbers_of_heads_that_are_trained_get_gradients(name):
    numbers = slopes()
    regard.attention(*tensors(), **{name: numbers})
    numbers.requires_grad_()
    regard.attention(*tensors(), **{name: numbers}).sum().backward()
    assert numbers.grad is not None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"softcap": 0.0}, ValueError),
        ({"softcap": True}, TypeError),
        ({"softcap": [1.0]}, TypeError),
        ({"alibi": [0.5, 0.25, 0.125]}, TypeError),
        ({"alibi": slopes()[:2]}, ValueError),
        ({"sink": torch.ones(H, dtype=torch.long)}, TypeError),
    ],
)
def test_wrong_options_are_refused_at_each_call(options, error):
    regard.attention(*tensors(), softcap=1.0)
    for _ in range(2):
        with pytest.raises(error, match=next(iter(options))):
            regard.attention(*tensors(), **options)


def with_gradients(query, key, value, weigh, wanted=(True, True, True), **options):
    """Context, and the gradients that are wanted; `weigh` makes a number of the context."""
    inputs = [
        t.detach().requires_grad_(want) for t, want in zip((query, key, value), wanted, strict=True)
    ]
    context = regard.attention(*inputs, **options)
    return context, torch.autograd.grad(weigh(context), [t for t in inputs if t.requires_grad])


WEIGHED = {
    "as they lie": lambda context: (context * torch.arange(context.numel()).view_as(context)).sum(),
    "a gradient of one number": torch.sum,
    "rows of all heads side by side": lambda context: (
        context.transpose(1, 2).flatten(2) @ torch.ones(H * D, 2, dtype=context.dtype)
    ).sum(),
    "half of the columns": lambda context: context[..., ::2].square().sum(),
}


def is_quick(context):
    return type(context.grad_fn).__name__ == "_QuickAttentionBackward"


def assert_gradients_of_checked_calls(*arguments, **options):
    context, gradients = with_gradients(*arguments, **options)
    assert is_quick(context)
    other, checked = with_gradients(*arguments, backend="native", **options)
    assert torch.equal(context, other)
    for one, another in zip(gradients, checked, strict=True):
        assert torch.equal(one, another)


@pytest.mark.parametrize("weigh", WEIGHED.values(), ids=WEIGHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_those_of_a_checked_call(weigh, dtype):
    query, key, value = (t.to(dtype) for t in tensors())
    masks = (regard.causal(), regard.documents(IDS) & regard.causal(), None)
    for mask in masks:
        assert_gradients_of_checked_calls(query, key, value, weigh, mask=mask)
    shared = query, key[:, :1], value[:, :1]
    assert_gradients_of_checked_calls(*shared, weigh, mask=regard.window(13), softcap=2.0)
    across = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value))
    assert_gradients_of_checked_calls(*across, weigh, mask=regard.causal(), scale=-0.3)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, True, True)]
)
def test_gradients_of_some(wanted):
    weigh = WEIGHED["as they lie"]
    assert_gradients_of_checked_calls(*tensors(), weigh, wanted=wanted, mask=regard.causal())


@pytest.mark.parametrize("length", [0, 1])
def test_gradients_of_few_keys(length):
    query, key, value = tensors()
    weigh = WEIGHED["as they lie"]
    assert_gradients_of_checked_calls(query, key[:, :, :length], value[:, :, :length], weigh)
    assert_gradients_of_checked_calls(query[:, :, :length], key, value, weigh)


def test_gradients_of_keys_that_batches_share_are_summed_up():
    query, key, value = tensors()
    one = query, key[:1], value[:1]
    context, gradients = with_gradients(*one, WEIGHED["as they lie"], mask=regard.causal())
    assert not is_quick(context)
    _, checked = with_gradients(
        *one, WEIGHED["as they lie"], mask=regard.causal(), backend="native"
    )
    for one_gradient, other in zip(gradients, checked, strict=True):
        assert torch.equal(one_gradient, other)


@pytest.fixture
def differentiated():
    inputs = [t.requires_grad_() for t in tensors()]
    return inputs, regard.attention(*inputs, mask=regard.causal())


def test_a_derivative_of_gradients_is_refused(differentiated):
    inputs, context = differentiated
    (gradient,) = torch.autograd.grad(context.square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(regard.Error, match="first derivatives only"):
        torch.autograd.grad(gradient.sum(), inputs)


@pytest.mark.parametrize("mask", [regard.causal(), regard.documents(IDS)], ids=repr)
@pytest.mark.parametrize("profiled", ["forward", "backward"])
def test_a_checkpoint_is_computed_again_under_a_profiler(profiled, mask):
    """One of the two is a quick call, the other goes by the operators; both save the same."""

    def attend(*tensors):
        return regard.attention(*tensors, mask=mask)

    def profiler(when):
        return torch.profiler.profile() if when == profiled else contextlib.nullcontext()

    inputs = [t.requires_grad_() for t in tensors()]
    with profiler("forward"):
        context = torch.utils.checkpoint.checkpoint(attend, *inputs, use_reentrant=False)
    with profiler("backward"):
        gradients = torch.autograd.grad(context.sum(), inputs)
    for one, other in zip(
        gradients, torch.autograd.grad(attend(*inputs).sum(), inputs), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", [None, "native"])
def test_saved_tensors_may_come_back_in_another_dtype(backend):
    """What a hook keeps in half precision is rounded, and no more than that."""
    weigh, mask = WEIGHED["as they lie"], regard.causal()
    _, expected = with_gradients(*tensors(), weigh, mask=mask)
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.bfloat16, lambda tensor: tensor):
        _, gradients = with_gradients(*tensors(), weigh, mask=mask, backend=backend)
    for one, other in zip(gradients, expected, strict=True):
        assert one.dtype == other.dtype
        # the log-sum-exp, up to 5, is rounded by 2⁻⁷ or less, and contexts and values by 2⁻⁸
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1 * float(other.abs().max()))


def test_calls_with_trained_slopes_are_not_cached(monkeypatch):
    monkeypatch.setattr(quick, "_PLANS", {})
    query, key, value = tensors()
    options = {"mask": regard.causal(), "alibi": slopes()}
    regard.attention(query.requires_grad_(), key, value, **options)
    assert not quick._PLANS
    with torch.no_grad():
        regard.attention(query, key, value, **options)
    assert len(quick._PLANS) == 1


def test_saved_tensors_may_come_back_in_another_layout():
    def moved(tensor):
        return tensor.detach().mT.contiguous().mT if tensor.ndim == 4 else tensor.detach()

    weigh, mask = WEIGHED["as they lie"], regard.causal()
    _, expected = with_gradients(*tensors(), weigh, mask=mask)
    with torch.autograd.graph.saved_tensors_hooks(moved, lambda tensor: tensor):
        _, gradients = with_gradients(*tensors(), weigh, mask=mask)
    for one, other in zip(gradients, expected, strict=True):
        assert torch.equal(one, other)


def test_a_tensor_that_is_changed_before_its_gradient_is_refused(differentiated):
    inputs, context = differentiated
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        context.sum().backward()
