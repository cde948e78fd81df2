"""The curves of `tools/removal_curves.py`: their points by a loop, their areas by hand."""

import pytest
import torch

from regard.gpt import GPT, GPTConfig
from regard.lens import Answer
from removal_curves import curve, gap, magnitude_aligned, removed, rise

MOST = torch.tensor([0.0, -1.0, -0.5, -4.0, -5.0]).double()
LEAST = torch.tensor([0.0, -0.1, -0.2, -1.0, -5.0]).double()


def test_rise_is_the_area_under_what_is_left():
    # left: 1, 0.8, 0.8 since it never rises again, 0.2, 0
    assert rise(MOST) == pytest.approx((1 / 2 + 0.8 + 0.8 + 0.2) / 4)


def test_what_is_left_is_clipped_where_the_answer_becomes_likelier():
    # left: 1, 1 in place of 1.5, 0.5, 0 in place of −0.5, 0
    logs = torch.tensor([-2.0, -1.0, -3.0, -5.0, -4.0]).double()
    assert rise(logs) == pytest.approx((1 / 2 + 1 + 0.5) / 4)


def test_the_magnitude_of_the_scores_counts():
    order, scores = [3, 0, 2, 1], torch.tensor([5.0, -7.0, 4.0, 1.0])
    gone = removed(order, 4)
    assert gone == [[], [3], [3, 0], [3, 0, 2], [3, 0, 2, 1]]
    # the share of scores that is left: 1, 0.9, 0.4, 0, 0; of the log-probability as above
    areas = 1 / 2 + (0.8 + 0.1) + 1 + (0.2 + 0.2)  # 0.8 + 0.4 is cut off at 1
    assert magnitude_aligned(MOST, scores, gone) == pytest.approx(areas / 4)


def test_gap_is_the_area_between_both_orders():
    assert gap(MOST, LEAST) == pytest.approx((0.9 + 0.3 + 3.0) / 4)


def test_steps_of_unequal_size_end_with_all():
    assert [len(places) for places in removed(range(7), 3)] == [0, 2, 5, 7]


def test_a_curve_is_the_answers_log_probability_in_each_changed_text():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=31, context=17, layers=2, heads=3, dim=15)).eval()
    ids, answer = torch.randint(31, (13,)), Answer(slice(8, 11))
    gone = removed([5, 2, 7], 3)
    expected = []
    for places in gone:
        text = ids.clone()
        text[places] = 29
        with torch.no_grad():
            logs = model(text[None])[0].double().log_softmax(-1)
        expected.append(sum(logs[place - 1, ids[place]] for place in (8, 9, 10)))
    found = curve(model, ids, answer, gone, 29)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
