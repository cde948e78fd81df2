"""Scores of many queries against controls, and how wide their intervals are.

Axes: H heads, K tokens.
"""

import pytest
import torch

from regard.lens.naming.evidence import Tally, itself, lead, mean_of, nearness
from regard.lens.naming.roles import ENOUGH, VARIED


def tally(queries, share, **controls):
    """Of one head."""

    def row(values):
        return torch.tensor([values], dtype=torch.float64)

    return Tally(row(queries), row(share), {name: row(each) for name, each in controls.items()})


def test_the_interval_of_a_mean_is_the_cluster_robust_one():
    """Of single queries it is the textbook's: s / √n, times Student's t."""
    values = [0.1, 0.7, 0.3, 0.9, 0.2, 0.8, 0.4, 0.6, 0.55, 0.05, 0.45]
    (mine,) = mean_of([tally([1] * 11, values)]).evidence(itself)
    assert mine.score == pytest.approx(sum(values) / 11)
    error = torch.tensor(values, dtype=torch.float64).std().item() / 11**0.5
    # 2.2281 is Student's t of 10 degrees of freedom at 97.5 %; the expansion is within 1e-3
    assert mine.margin == pytest.approx(2.2281 * error, rel=1e-3)
    # Each query four times over says no more, since the copies are of one token.
    (again,) = mean_of([tally([4] * 11, [4 * one for one in values])]).evidence(itself)
    assert (again.score, again.margin) == pytest.approx((mine.score, mine.margin))
    assert again.queries == 44


def test_a_lead_is_held_against_the_strongest_control():
    shares = [0.5, 0.75, 0.625, 0.625]
    weak, strong = [0.125] * 4, [0.25] * 4
    means = mean_of([tally([2] * 4, [2 * one for one in shares], weak=weak, strong=strong)])
    (mine,) = means.evidence(lead)
    control = 0.125  # a query's
    assert mine.score == pytest.approx((0.625 - control) / (1 - control))
    assert mine.queries == 8
    assert mine.margin > 0


@pytest.mark.parametrize("score", [lead, nearness, itself])
def test_derivatives_are_those_of_the_score(score):
    share, control = torch.tensor([[0.6], [0.3]], dtype=torch.float64).requires_grad_().unbind()
    value, by_share, by_control = score(share, control)
    slopes = torch.autograd.grad(value, (share, control), allow_unused=True)
    expected = [torch.zeros(1).double() if slope is None else slope for slope in slopes]
    torch.testing.assert_close([by_share.detach(), by_control.detach()], expected)


def test_too_few_queries_or_tokens_have_no_interval():
    def margin(tokens, each):
        return mean_of([tally([each] * tokens, [0.5] * tokens)]).evidence(itself)[0].margin

    assert margin(ENOUGH, 1) == 0
    assert margin(ENOUGH - 1, 1) is None
    assert margin(VARIED, ENOUGH) == 0
    assert margin(VARIED - 1, ENOUGH) is None
    assert mean_of([tally([0, 0], [0.0, 0.0])]).evidence(itself) == [None]


def test_texts_count_alike_and_their_queries_add_up():
    long, short, none = tally([6, 0], [6.0, 0]), tally([1, 1], [0.0, 0]), tally([0, 0], [0.0, 0])
    (mine,) = mean_of([long, short, none]).evidence(itself)
    assert mine.score == pytest.approx(0.5)
    assert mine.queries == 8


def test_a_control_that_leaves_nothing_gives_no_lead():
    (mine,) = mean_of([tally([2] * 4, [2.0] * 4, all=[2.0] * 4)]).evidence(lead)
    assert (mine.score, mine.margin) == (0, 0)
