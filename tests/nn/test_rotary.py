"""Rotary positions, against a rotation of complex numbers in float64."""

import pytest
import torch

import regard
from regard.nn import Rotation, rotary


def rotated(x, positions, base=10_000.0):
    """Channels i and i + D/2 as one complex number, times e^(i · position · base^(−2i/D))."""
    dim = x.shape[-1]
    pairs = torch.complex(*x.double().chunk(2, dim=-1))
    speed = torch.tensor([base ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    pairs = pairs * torch.exp(1j * positions.double()[..., None] * speed)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_pairs_of_channels_rotate_by_position(base):
    query, key = torch.randn(2, 3, 5, 14), torch.randn(2, 3, 11, 14)
    got_query, got_key = rotary(query, key, base=base)
    # The last of the 5 queries sits at the last of the 11 keys.
    expected = rotated(query, torch.arange(6, 11), base), rotated(key, torch.arange(11), base)
    torch.testing.assert_close(got_query.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_key.double(), expected[1], rtol=1e-5, atol=1e-5)
    exact = rotary(query.double(), key.double(), base=base)
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-12)


def test_a_score_depends_on_the_distance_alone():
    query, key = torch.randn(2, 1, 14, dtype=torch.float64).unbind()

    def score(at, back):
        turn = Rotation.of(torch.tensor([at]), 14, dtype=torch.float64)
        turn_back = Rotation.of(torch.tensor([back]), 14, dtype=torch.float64)
        return turn(query) @ turn_back(key).mT

    torch.testing.assert_close(score(19, 13), score(6, 0), rtol=1e-11, atol=1e-11)
    assert not torch.allclose(score(19, 13), score(19, 12))


def test_each_sequence_may_have_positions_of_its_own():
    x = torch.randn(2, 3, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    got = Rotation.of(positions, 6)(x)
    for row in range(2):
        expected = rotated(x[row], positions[row])
        torch.testing.assert_close(got[row].double(), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_loses_no_position():
    x = torch.randn(1, 1, 8).bfloat16()
    near, far = (Rotation.of(torch.tensor([at]), 8)(x) for at in (4096, 4097))
    assert near.dtype == torch.bfloat16
    assert not near.equal(far)  # bfloat16 has no number between 4096 and 4128
    torch.testing.assert_close(
        near.double(), rotated(x, torch.tensor([4096])), rtol=8e-3, atol=8e-3
    )


def test_more_queries_than_keys_are_placed_as_masks_place_them():
    query, key = torch.randn(5, 4), torch.randn(3, 4)
    got, _ = rotary(query, key)
    torch.testing.assert_close(
        got.double(), rotated(query, torch.arange(-2, 3)), rtol=1e-5, atol=1e-5
    )
    assert regard.causal().visible(5, 3)[4].all()


@pytest.mark.parametrize(
    ("dims", "base", "message"),
    [
        ((7, 7), 10.0, "dim is 7; expected an even number"),
        ((6, 8), 10.0, "query has head dimension 6 and key 8"),
        ((6, 6), 0.0, r"base is 0\.0; expected a finite number above 0"),
        ((6, 6), float("inf"), "base is inf"),
    ],
)
def test_errors_name_what_does_not_fit(dims, base, message):
    with pytest.raises(ValueError, match=message):
        rotary(torch.randn(3, dims[0]), torch.randn(3, dims[1]), base=base)
