"""`explain`, the oracle of all other tests, against an independent oracle."""

import pytest
import torch
from hypothesis import given
from support.cases import DTYPES, cases, close, error

import regard

NAMES = [
    "query", "key", "value", "scores", "scaled", "softcapped", "biased", "masked", "weights",
    "dropped", "context", "logsumexp",
]  # fmt: skip


@given(cases(dtypes=[torch.float64]))
def test_float64_is_the_definition(case):
    steps = regard.explain(case.query, case.key, case.value, **case.options)
    # A few roundings of numbers of the size of a score or a value.
    seen = case.exact.logsumexp[~case.fully_masked]
    bound = 1e-15 * max(100.0, float(seen.abs().max())) if seen.numel() else 1e-13
    assert error(steps.weights, case.exact.weights) < bound
    assert error(steps.context, case.exact.context) < bound
    assert error(steps.logsumexp, case.exact.logsumexp, case.fully_masked) < bound
    assert bool((steps.logsumexp[case.fully_masked] == -torch.inf).all())
    assert not bool(steps.weights[~case.visible].any())
    assert not bool(steps.context[case.fully_masked].any())


@given(cases())
def test_every_dtype_is_as_exact_as_torch_s_own_kernel(case):
    steps = regard.explain(case.query, case.key, case.value, **case.options)
    assert steps.context.dtype == case.dtype
    assert steps.weights.dtype == steps.logsumexp.dtype == case.exact_dtype
    floor = (torch.finfo(case.dtype).eps + case.rounding) * float(case.value.abs().max())
    close(steps.context, case.exact.context, case.torchs_own(), case.fully_masked, floor)
    close(
        steps.weights,
        case.exact.weights,
        case.plain_weights(),
        case.fully_masked,
        2 * case.rounding,
    )


@given(cases(dtypes=[torch.float64]))
def test_each_step_follows_from_the_one_before(case):
    steps = regard.explain(case.query, case.key, case.value, **case.options)
    key, value = case.spread()
    torch.testing.assert_close(steps.scores, case.query @ key.mT)
    last = steps.scores * steps.scale
    torch.testing.assert_close(steps.scaled, last, rtol=0, atol=0)
    if "softcap" in case.options:
        last = case.options["softcap"] * torch.tanh(last / case.options["softcap"])
        torch.testing.assert_close(steps.softcapped, last)
    else:
        assert steps.softcapped is None
    has_bias = "bias" in case.options or "alibi" in case.options
    if has_bias or steps.biased is not None:
        assert has_bias or case.options["mask"].score_changes
        seen = case.visible
        torch.testing.assert_close(steps.biased[seen], (last + case.added())[seen])
        last = steps.biased
    else:
        assert not bool(torch.as_tensor(case.shift)[case.visible].any())
    masked = last.masked_fill(~case.visible, -torch.inf)
    torch.testing.assert_close(steps.masked, masked, rtol=0, atol=0)
    weights = torch.exp(steps.masked - steps.logsumexp[..., None]).masked_fill(~case.visible, 0)
    torch.testing.assert_close(steps.weights, weights)
    assert steps.dropped is None
    torch.testing.assert_close(steps.context, steps.weights @ value)


@given(cases(dtypes=[torch.float64]))
def test_rows_sum_to_one_but_for_the_sink_s_share(case):
    steps = regard.explain(case.query, case.key, case.value, **case.options)
    share = torch.zeros_like(steps.logsumexp)
    if "sink" in case.options:
        share = torch.exp(case.options["sink"].double()[:, None] - steps.logsumexp)
    expected = (1 - share).masked_fill(case.fully_masked, 0)
    torch.testing.assert_close(steps.weights.sum(-1), expected)


def test_steps_come_in_the_order_of_the_computation_each_with_its_shape_and_meaning():
    query, key, value = torch.randn(2, 6, 5, 3), torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 11)
    steps = regard.explain(
        query, key, value, softcap=2.0, bias=torch.zeros(5, 7), dropout=0.5, scale=0.25
    )
    assert [step.name for step in steps] == NAMES
    shapes = {step.name: step.shape for step in steps}
    square = {"scores", "scaled", "softcapped", "biased", "masked", "weights", "dropped"}
    assert {shapes[name] for name in square} == {(2, 6, 5, 7)}
    assert shapes["query"] == (2, 6, 5, 3)
    assert shapes["key"] == (2, 2, 7, 3)
    assert shapes["value"] == (2, 2, 7, 11)
    assert shapes["context"] == (2, 6, 5, 11)
    assert shapes["logsumexp"] == (2, 6, 5)
    assert steps.query is query
    assert all(step.meaning and step.tensor is getattr(steps, step.name) for step in steps)


def test_steps_without_their_option_are_left_out():
    steps = regard.explain(torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2))
    assert [s.name for s in steps] == [
        n for n in NAMES if n not in {"softcapped", "biased", "dropped"}
    ]
    assert steps.scale == pytest.approx(3**-0.5)


def test_repr_lists_names_and_shapes():
    steps = regard.explain(torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2))
    first, *lines, last = repr(steps).splitlines()
    assert (first, last) == ("Steps(", ")")
    assert [line.split()[0] for line in lines] == [step.name for step in steps]
    assert all(str(step.shape) in line for step, line in zip(steps, lines, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", [(), (5,), (3, 5), (2, 3, 5), (2, 1, 3, 5)])
def test_every_number_of_leading_dimensions_is_the_same_computation(lead, dtype):
    generator = torch.Generator().manual_seed(7)
    query, key = (torch.randn(*lead, n, 3, generator=generator).to(dtype) for n in (7, 11))
    value = torch.randn(*lead, 11, 2, generator=generator).to(dtype)
    steps = regard.explain(query, key, value, mask=regard.causal())
    flat = regard.explain(
        *(t.reshape(1, -1, *t.shape[-2:]) for t in (query, key, value)), mask=regard.causal()
    )
    for name in ("scores", "weights", "context", "logsumexp"):
        result, expected = getattr(steps, name), getattr(flat, name)
        torch.testing.assert_close(result.reshape(expected.shape), expected)
        assert result.shape[: len(lead)] == lead
