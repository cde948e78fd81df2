"""Sums in integers: equal in any order, and the variance between documents."""

import itertools

import pytest
import torch

from regard.errors import Error
from regard.lens.head_atlas.sums import DocumentSums, ExactSum, products, variance


def test_a_sum_is_the_same_in_any_order_where_that_of_floats_is_not():
    terms = [
        torch.tensor([value], dtype=torch.float64) for value in (1e14 / 3, 1e-4 / 7, -1e14 / 3)
    ]
    sums = []
    for order in itertools.permutations(terms):
        total = ExactSum()
        for term in order:
            total.add(term)
        sums.append(total.parts)
    assert all(torch.equal(one, sums[0]) for one in sums)
    assert len({float(sum(order)) for order in itertools.permutations(terms)}) > 1
    # Each term is rounded to a multiple of 2⁻⁴⁴.
    assert float(total.value) == pytest.approx(1e-4 / 7, abs=3 * 2.0**-45)


def test_parts_are_merged_like_terms():
    values = torch.randn(11, 3, 5, dtype=torch.float64) * 1e6
    whole, left, right = ExactSum(), ExactSum(), ExactSum()
    for number, value in enumerate(values):
        whole.add(value)
        (left if number % 3 else right).add(value)
    right.merge(left)
    assert torch.equal(whole.parts, right.parts)
    torch.testing.assert_close(whole.value, values.sum(0), rtol=0, atol=1e-8)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**90])
def test_numbers_that_no_sum_could_hold_are_refused(value):
    with pytest.raises(Error, match="not finite" if value != 2.0**90 else "too large to sum"):
        ExactSum().add(torch.tensor([1.0, value], dtype=torch.float64))


def test_squares_of_sums_over_long_documents_fit():
    """Distances of 131,072 uniform tokens sum to 4e9 a document; their squares to 2e19 each."""
    total, value = ExactSum(), (131072.0**2 / 4) ** 2
    for _ in range(50):
        total.add(torch.tensor([value, -value, 0.1], dtype=torch.float64))
    expected = torch.tensor([50 * value, -50 * value, 5.0], dtype=torch.float64)
    torch.testing.assert_close(total.value, expected, rtol=1e-15, atol=1e-11)


def test_the_variance_is_that_of_the_documents_residuals():
    """Of a ratio Σ s / Σ n, written out document by document."""
    numbers = torch.rand(7, 3, 2, dtype=torch.float64) + 0.5  # documents, heads, (n, s)
    sums = DocumentSums()
    for number, one in enumerate(numbers):
        sums.add(number, {"ratio": one}, {"plain": one[:, :1]})
    n, s = numbers.sum(0).T
    ratio = s / n
    residual = (numbers[..., 1] - ratio * numbers[..., 0]) / n
    expected = residual.square().sum(0) * 7 / 6
    weights = torch.stack([-ratio, torch.ones(3, dtype=torch.float64)], dim=-1) / n[:, None]
    found = variance(sums.second("ratio"), weights, sums.count("ratio"))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)  # rounded to 2⁻⁴⁴
    assert variance(sums.second("ratio"), weights, 1).isnan().all()
    assert sums["plain"].shape == (3, 1)
    again = DocumentSums.of(sums.documents, sums.tensors())
    assert torch.equal(again.second("ratio"), sums.second("ratio"))
    assert again.count("ratio") == 7


def test_products_are_those_of_each_two_numbers():
    values = torch.randn(2, 3)
    assert torch.equal(
        products(values)[0],
        torch.stack([values[0, i] * values[0, j] for i in range(3) for j in range(i, 3)]),
    )
