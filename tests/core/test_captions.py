"""Each step's caption is true of its numbers, with every option."""

import re
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases

import regard

UNSEEN = "; 0 in a row that sees no key"


def same(one, other):
    # Float32, and numbers that captions round to four digits.
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-5)


def rows(steps):
    """Which rows see a key."""
    return ~steps.masked.isneginf().all(-1)


def sums_are_one(steps, actual):
    assert actual["unseen"] or rows(steps).all()
    return same(steps.weights.sum(-1), rows(steps).double())


def sums_are_one_with_the_sink(steps, actual):
    assert actual["unseen"] or rows(steps).all()
    share = torch.exp(steps.sink.double()[:, None] - steps.logsumexp.double())
    return same((steps.weights.sum(-1) + share)[rows(steps)], torch.ones(()))


def repeated(tensor, steps):
    return tensor.repeat_interleave(steps.query.shape[1] // tensor.shape[1], 1)


def is_product(steps, actual):
    factor = getattr(steps, actual["factor"]).double()
    if actual["kind"] == "mean":
        assert same(factor.sum(-1), torch.ones(())), "a mean's weights sum to 1"
    return torch.allclose(
        steps.context.double(), factor @ repeated(steps.value, steps).double(), rtol=0.02, atol=0.02
    )  # bfloat16's context has eight bits


def is_masked(steps, actual):
    before = getattr(steps, actual["before"])
    seen = ~steps.masked.isneginf()
    later = {"scaled": ("softcapped", "biased"), "softcapped": ("biased",), "biased": ()}
    assert all(getattr(steps, name) is None for name in later[actual["before"]])
    return same(steps.masked[seen], before[seen])


def is_dropped(steps, actual):
    kept = steps.dropped != 0
    assert abs(1 - float(actual["p"]) - float(actual["divisor"])) < 1e-3
    return same(steps.dropped[kept], steps.weights[kept] / float(actual["divisor"]))


def gives_weights(steps, actual):
    seen = rows(steps)
    assert actual["unseen"] or seen.all()
    weights = torch.exp(steps.masked - steps.logsumexp[..., None])[seen]
    return same(weights, steps.weights[seen]) and steps.logsumexp[~seen].isneginf().all()


# What each caption claims, by what it reads like.
CLAIMS = {
    r"what each position .*": lambda steps, actual: True,  # a name, not a claim about numbers
    r"query · key: .*": lambda steps, actual: same(
        steps.scores, steps.query.double() @ repeated(steps.key, steps).double().mT
    ),
    r"scores · (?P<scale>\S+), the scale": lambda steps, actual: same(
        steps.scaled, steps.scores * float(actual["scale"])
    ),
    r"cap · tanh\(scaled / cap\), cap = (?P<cap>\S+): none beyond ±cap": lambda steps, actual: (
        same(
            steps.softcapped, float(actual["cap"]) * torch.tanh(steps.scaled / float(actual["cap"]))
        )
        and steps.softcapped.abs().max() <= float(actual["cap"]) * 1.001
    ),
    r"(?P<before>scaled|softcapped) \+ a bias for each pair of query and key": (
        lambda steps, actual: (steps.softcapped is None) == (actual["before"] == "scaled")
    ),
    r"(?P<before>scaled|softcapped|biased), but −∞ where a query may not see a key": is_masked,
    rf"softmax of each row: shares that sum to 1(?P<unseen>{UNSEEN})?": sums_are_one,
    r"softmax of each row with its sink: shares that sum to 1 with the sink's"
    rf"(?P<unseen>{UNSEEN})?": sums_are_one_with_the_sink,
    r"each weight zeroed with probability (?P<p>\S+), else divided by (?P<divisor>\S+)": is_dropped,
    r"every weight zeroed": lambda steps, actual: steps.dropped.count_nonzero() == 0,
    r"(?P<factor>weights|dropped) @ value: each row a weighted (?P<kind>mean|sum) of the values": (
        is_product
    ),
    r"log of the softmax's denominator: with it, any weight is exp\(masked − logsumexp\)"
    r"(?P<unseen>; −∞ in a row that sees no key)?": gives_weights,
}


def check(steps):
    for step in steps:
        actual = {claim: re.fullmatch(claim, step.meaning) for claim in CLAIMS}
        matched = [claim for claim in CLAIMS if actual[claim]]
        assert len(matched) == 1, step.meaning
        assert CLAIMS[matched[0]](steps, actual[matched[0]]), (step.name, step.meaning)


@given(cases(dtypes=[torch.float32]), st.sampled_from([0.0, 0.2, 0.7, 1.0]))
def test_each_caption_holds_for_its_numbers(case, dropout):
    steps = regard.explain(case.query, case.key, case.value, dropout=dropout, **case.options)
    check(steps)


@pytest.mark.parametrize("scale", [None, 0.0, -0.25, 1.0, 16.0])
def test_the_caption_of_the_scale_makes_no_claim_about_the_variance(scale):
    torch.manual_seed(1)
    query, key = 7 * torch.randn(2, 5, 3).unbind()[0][None, None], torch.randn(1, 1, 7, 3)
    steps = regard.explain(query, key, key, scale=scale)
    check(steps)
    assert "variance" not in repr(steps)


def test_with_dropout_the_context_is_a_sum_of_dropped_weights():
    steps = regard.explain(*torch.randn(3, 5, 3).unbind(), dropout=0.5)
    meanings = {step.name: step.meaning for step in steps}
    assert meanings["context"] == "dropped @ value: each row a weighted sum of the values"


def test_with_a_sink_weights_do_not_claim_to_sum_to_one():
    steps = regard.explain(*torch.randn(3, 1, 5, 3).unbind(), sink=torch.zeros(1))
    meanings = {step.name: step.meaning for step in steps}
    assert meanings["weights"].endswith("sum to 1 with the sink's")
    assert meanings["context"].endswith("sum of the values")


def test_fully_masked_rows_are_mentioned():
    x = torch.randn(1, 1, 5, 3)
    keep = torch.tensor([[0, 0, 1, 1, 1]])
    padded = regard.explain(x, x, x, mask=regard.causal() & regard.padding(keep))
    plain = regard.explain(x, x, x, mask=regard.causal())
    weights = [{step.name: step.meaning for step in steps}["weights"] for steps in (padded, plain)]
    assert [UNSEEN in meaning for meaning in weights] == [True, False]


@given(cases(dtypes=[torch.float32]), st.sampled_from([0.0, 0.123]))
def test_a_figure_has_room_for_every_caption(case, dropout):
    steps = regard.explain(case.query, case.key, case.value, dropout=dropout, **case.options)
    drawn = [step for step in steps if step.name not in {"key", "value", "logsumexp"}]
    assert all(len(textwrap.wrap(step.meaning, 38)) <= 3 for step in drawn)
