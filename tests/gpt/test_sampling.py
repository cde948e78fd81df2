"""Each sampling operation, against itself written out in float64."""

from __future__ import annotations

import math

import pytest
import torch

from regard.gpt import Sampling
from regard.gpt.sampling import Sampler, penalised, pick, probabilities, uniform

V = 23


@pytest.fixture
def logits():
    logits = 3 * torch.randn(4, V, generator=torch.Generator().manual_seed(0)).double()
    logits[1, 5] = logits[1, 11] = logits[1, 17] = logits[1].max() + 1  # equals at the top
    logits[2, 3:9] = logits[2].sort(descending=True).values[4]  # equals at the edge of the first k
    return logits


def shares(row):
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return [weight / math.fsum(weights) for weight in weights]


def ranked(row):
    """The ids by falling logit; among equals the lower id first."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def only(row, kept):
    return [x if i in kept else -math.inf for i, x in enumerate(row)]


def penalty_written_out(row, held, penalty):
    return [(x / penalty if x > 0 else x * penalty) if i in held else x for i, x in enumerate(row)]


def temperature_written_out(row, temperature):
    return [x / temperature for x in row]


def top_k_written_out(row, k):
    return only(row, set(ranked(row)[:k]))


def top_p_written_out(row, p):
    probs, kept, total = shares(row), set(), 0.0
    for i in ranked(row):
        kept.add(i)
        total += probs[i]
        if total >= p:
            break
    return only(row, kept)


def min_p_written_out(row, p):
    probs = shares(row)
    return only(row, {i for i in range(len(row)) if probs[i] >= p * max(probs)})


@pytest.mark.parametrize("penalty", [1.0, 1.7, 0.6])
def test_the_penalty(logits, penalty):
    held = torch.rand(4, V, generator=torch.Generator().manual_seed(1)) < 0.4
    got = penalised(logits, held, penalty)
    for row in range(4):
        ids = set(held[row].nonzero().flatten().tolist())
        expected = penalty_written_out(logits[row].tolist(), ids, penalty)
        torch.testing.assert_close(got[row], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (Sampling(temperature=0.4), [(temperature_written_out, 0.4)]),
        (Sampling(temperature=1.0, top_k=2), [(top_k_written_out, 2)]),
        (Sampling(temperature=1.0, top_k=7), [(top_k_written_out, 7)]),
        (Sampling(temperature=1.0, top_k=V + 5), []),
        (Sampling(temperature=1.0, top_p=0.3), [(top_p_written_out, 0.3)]),
        (Sampling(temperature=1.0, top_p=0.95), [(top_p_written_out, 0.95)]),
        (Sampling(temperature=1.0, top_p=1e-9), [(top_p_written_out, 1e-9)]),
        (Sampling(temperature=1.0, min_p=0.2), [(min_p_written_out, 0.2)]),
        (Sampling(temperature=1.0, min_p=1.0), [(min_p_written_out, 1.0)]),
        (
            Sampling(temperature=2.5, top_k=9, top_p=0.8, min_p=0.3),
            [
                (temperature_written_out, 2.5),
                (top_k_written_out, 9),
                (top_p_written_out, 0.8),
                (min_p_written_out, 0.3),
            ],
        ),
    ],
    ids=[str(number) for number in range(10)],
)
def test_the_probabilities_are_the_operations_in_their_order(logits, sampling, steps):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        got = probabilities(logits.to(dtype), sampling)
        for row in range(4):
            expected = logits[row].tolist()
            for step, number in steps:
                expected = step(expected, number)
            wanted = torch.tensor(shares(expected), dtype=dtype)
            torch.testing.assert_close(got[row], wanted, rtol=tolerance, atol=tolerance)
            assert (got[row] > 0).equal(wanted > 0)


def test_exactly_k_tokens_stay_where_more_are_equal():
    level = torch.zeros(2, V)
    level[1, 20] = 1
    kept = probabilities(level, Sampling(top_k=3)) > 0
    assert kept.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 20]]


@pytest.mark.parametrize("before", [{"top_k": 2}, {"temperature": 0.5}], ids=str)
def test_top_p_is_a_share_after_the_filters_before_it(before):
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert (probabilities(row, Sampling(top_p=0.5)) > 0).tolist() == [[True, True, False, False]]
    # Of 0.4 and 0.3, the first alone is 0.57; of the squares, 0.53.
    alone = probabilities(row, Sampling(top_p=0.5, **before))
    assert alone.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_a_draw_is_where_the_running_sum_passes_the_number():
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(6, 4)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-48], dtype=torch.float64)
    assert pick(probs, numbers).tolist() == [0, 0, 2, 2, 3, 3]
    # Never one of probability 0, not even at the very end.
    last = torch.tensor([[0.3, 0.3, 0.4, 0.0]])
    assert pick(last, numbers[-1:]).tolist() == [2]


def test_random_numbers_are_spread_evenly_and_are_a_function_of_seed_copy_and_step():
    numbers = torch.tensor(
        [
            uniform(seed, copy, step)
            for seed in range(20)
            for copy in range(20)
            for step in range(20)
        ]
    )
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 20, 0, 1)  # 400 each, give or take five times 19.5
    assert (counts - 400).abs().max() < 98
    assert len(set(numbers.tolist())) > 7990
    assert uniform(3, 1, 4) == uniform(3, 1, 4)
    assert 0 <= uniform(2**63 - 1, 2**40, 2**40) < 1


def test_the_penalty_applies_to_sampled_tokens():
    sampler = Sampler(
        Sampling(temperature=0.0, repetition_penalty=10.0),
        [torch.tensor([0, 2]), torch.tensor([1, 1])],
        4,
        torch.device("cpu"),
    )
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(2, 4)
    drawn = [sampler.draw(logits).tolist() for _ in range(4)]
    # Row 0 holds 0 and 2, so it draws 1, then 3; then all are held, and 0 is the largest again.
    assert [row[0] for row in drawn] == [1, 3, 0, 0]
    assert [row[1] for row in drawn] == [0, 2, 3, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -0.1}, r"Sampling\.temperature is -0\.1; expected a number >= 0\.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, r"Sampling\.top_k is 0; expected a whole number >= 1"),
        ({"top_p": 0.0}, r"top_p is 0\.0; expected a number > 0\.0 and <= 1\.0"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"min_p": -1.0}, r"min_p is -1\.0; expected a number >= 0\.0 and <= 1\.0"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0; expected a number > 0\.0"),
        ({"seed": -1}, r"Sampling\.seed is -1"),
        ({"seed": 2**63}, r"Sampling\.seed is \d+"),
    ],
)
def test_numbers_out_of_range_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**change)


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_p": 1e-300},
        {"repetition_penalty": 1e-308},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308, "temperature": 1e-308},
    ],
)
def test_the_smallest_and_largest_numbers_still_draw_a_token(extreme):
    logits = torch.tensor([[30.0, 0.0, -2.0, 1.0], [-1.0, -2.0, 0.0, -5.0]])
    prompts = [torch.tensor([0, 1, 2]), torch.tensor([3, 1, 2])]
    sampler = Sampler(Sampling(**extreme, seed=3), prompts, 4, torch.device("cpu"))
    for _ in range(5):
        drawn = sampler.draw(logits)
        assert ((drawn >= 0) & (drawn < 4)).all()
    if "top_p" in extreme:
        assert drawn.tolist() == [0, 2]  # the likeliest alone
    if extreme.get("repetition_penalty", 1) > 1:
        assert drawn.tolist() != [0, 3]
