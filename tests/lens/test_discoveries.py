"""Many names at once: the tail of Student's t and false discovery rates are scipy's."""

import pytest
import torch

from regard.lens import Heads, HeadScores
from regard.lens.naming.discoveries import false_discovery_rates, upper_tail
from regard.lens.naming.evidence import Tally, lead, mean_of
from regard.lens.naming.roles import LEAD, Role

stats = pytest.importorskip("scipy.stats")


def p_value(shares):
    """Of one head, with a query of each token and a control that gets nothing."""
    row = torch.tensor([shares], dtype=torch.float64)
    (found,) = mean_of([Tally(torch.ones_like(row), row, {"none": 0 * row})]).evidence(lead)
    return found.p_value


@pytest.mark.parametrize("free", [1, 2, 3, 4, 11, 60, 499, 7919])
def test_the_upper_tail_is_that_of_students_t(free):
    for t in (-2.5, 0.0, 0.3, 1.7, 5.0):
        # Of many degrees of freedom it is the normal distribution's.
        expected = stats.t.sf(t, free)
        assert upper_tail(t, free) == pytest.approx(expected, abs=1e-9 if free < 500 else 1e-4)


def test_false_discovery_rates_are_those_of_benjamini_and_hochberg():
    for count in (1, 7, 271):
        p_values = torch.rand(count, dtype=torch.float64) ** 4
        p_values[count // 2] = p_values[0]  # a tie
        expected = torch.from_numpy(stats.false_discovery_control(p_values.numpy()))
        torch.testing.assert_close(false_discovery_rates(p_values), expected)
    assert false_discovery_rates(torch.zeros(0)).tolist() == []


def test_the_p_value_of_a_lead_is_one_sided_and_against_the_least_that_names():
    """Of single queries without a control it is that of a t test of their mean."""
    shares = [0.1, 0.7, 0.3, 0.9, 0.2, 0.8, 0.4, 0.6, 0.55, 0.05, 0.45]
    expected = stats.ttest_1samp(shares, LEAD, alternative="greater").pvalue
    assert p_value(shares) == pytest.approx(expected)
    assert (p_value([0.5] * 11), p_value([0.1] * 11), p_value([0.5] * 3)) == (0, 1, None)


def test_discoveries_are_relations_that_hold_among_all_heads():
    def head(place, role, p_value):
        return HeadScores(layer=0, head=place, role=role, p_value=p_value)

    alone = [head(0, Role.PREVIOUS, 0.04)]
    assert Heads(alone).discoveries() == alone
    among = Heads([*alone, head(1, Role.MIXED, 0.8), head(2, Role.ALONE, None)])
    assert among.discoveries() == []
    assert among.discoveries(0.1) == alone
    with pytest.raises(ValueError, match="rate is 5; expected a fraction between 0 and 1"):
        among.discoveries(5)
