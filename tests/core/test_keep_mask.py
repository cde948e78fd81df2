"""Which weights dropout keeps: Philox as published, by the index of a weight only."""

import functools
import itertools
import math
import operator

import pytest
import torch
from support import oracle

from regard.inputs import check
from regard.inputs.dropout import draw_seed, keep_mask, philox

CPU = torch.device("cpu")
B, H, L, S = 2, 3, 5, 11
SEED = 0xFEDCBA98_76543210  # both words differ, and the upper one has its highest bit


def words(seed):
    """The low and the high word of a seed, as tensors."""
    return torch.tensor([seed & 2**32 - 1, seed >> 32])


def number(seed):
    """A seed as one integer of 64 bits."""
    low, high = seed.tolist()
    return low | high << 32


def block(rows, columns, *, seed=SEED, dropout=0.4, heads=(B, H)):
    return keep_mask(words(seed), dropout, heads, rows, columns, CPU)


def whole(queries=L, keys=S, **options):
    return block(slice(0, queries), slice(0, keys), **options)


# The known answers of the Random123 library for philox4x32, 10 rounds: counter, key, words.
KNOWN_ANSWERS = """
00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""


@pytest.mark.parametrize("line", KNOWN_ANSWERS.split("\n")[1:-1])
def test_philox_gives_the_known_answers(line):
    numbers = [int(word, 16) for word in line.split()]
    counter, key, answer = numbers[:4], numbers[4:6], tuple(numbers[6:])
    assert oracle.philox(counter, key) == answer
    counter = tuple(torch.full((1, 1, 1, 1), word) for word in counter)
    assert tuple(map(int, philox(counter, tuple(torch.tensor(key))))) == answer


@pytest.mark.parametrize("dropout", [1e-9, 0.1, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2**32, SEED, 2**64 - 1])
def test_kept_weights_are_those_of_the_definition(seed, dropout):
    kept = whole(seed=seed, dropout=dropout)
    assert torch.equal(kept, oracle.keep_mask(seed, dropout, (B, H, L, S)))


def test_a_weight_is_kept_where_its_word_reaches_the_threshold():
    word = 0x6627E8D5  # of key 0, query 0, head 0 under seed 0: the first known answer
    at = word / 2**32
    for dropout, kept in (
        (at, True),
        (math.nextafter(at, 0), True),
        (math.nextafter(at, 1), False),
    ):
        assert bool(whole(1, 1, seed=0, dropout=dropout, heads=(1, 1))) == kept


@pytest.mark.parametrize(
    "counters",  # one row at a time, two, all
    [
        pytest.param(1, marks=pytest.mark.thorough),
        40,
        pytest.param(2**17, marks=pytest.mark.thorough),
    ],
    ids="counters={}".format,
)
def test_a_block_equals_the_slice_of_the_whole(counters, monkeypatch):
    expected = oracle.keep_mask(SEED, 0.4, (B, H, L, S))
    monkeypatch.setattr("regard.inputs.dropout._COUNTERS", counters)
    rows = [slice(*ends) for ends in itertools.combinations_with_replacement((0, 2, 3, L), 2)]
    columns = [slice(*ends) for ends in itertools.combinations_with_replacement(range(S + 1), 2)]
    for row, column in itertools.product(rows, columns):
        assert torch.equal(block(row, column), expected[..., row, column])


def test_a_block_does_not_need_earlier_blocks():
    row, column = 2**31 + 5, 2**33 + 7  # beyond int32 each, the number of four keys too
    kept = block(slice(row, row + 2), slice(column, column + 9), heads=(1, 2))
    for (h, i, j), actual in zip(
        itertools.product(range(2), range(2), range(9)), kept.flatten(), strict=True
    ):
        counter = ((column + j) // 4, row + i, h, 0)
        word = oracle.philox(counter, (SEED % 2**32, SEED // 2**32))[(column + j) % 4]
        assert bool(actual) == (word >= 0.4 * 2**32)


def test_heads_are_numbered_across_the_batch():
    assert torch.equal(whole().reshape(1, B * H, L, S), whole(heads=(1, B * H)))
    assert whole(heads=(0, H)).shape == (0, H, L, S)


@pytest.mark.parametrize("dropout", [0.1, 0.25, 0.5, 0.9])
def test_the_fraction_of_kept_weights_is_right_in_each_word(dropout):
    kept = whole(101, 404, dropout=dropout)
    shares = kept.reshape(-1, 4).double().mean(0)
    # Five standard deviations of a mean of coin tosses.
    allowed = 5 * math.sqrt(dropout * (1 - dropout) / (kept.numel() / 4))
    assert bool(((shares - (1 - dropout)).abs() < allowed).all())


def test_a_seed_has_64_bits_and_follows_its_generator():
    generator = torch.Generator().manual_seed(3)
    seeds = [number(draw_seed(generator)) for _ in range(64)]
    generator.manual_seed(3)
    assert seeds == [number(draw_seed(generator)) for _ in range(64)]
    # Each bit is set in one and clear in another; one chance in 2⁵⁷ that some bit is not.
    everything = 2**64 - 1
    assert functools.reduce(operator.or_, seeds) == everything
    assert functools.reduce(operator.and_, seeds) == 0
    assert all(0 <= seed <= everything for seed in seeds)


def test_without_a_generator_the_seed_is_torch_s_own():
    torch.manual_seed(3)
    seed = draw_seed(None)
    assert torch.equal(seed, draw_seed(torch.Generator().manual_seed(3)))
    assert not torch.equal(seed, draw_seed(None))


def test_a_seed_is_drawn_only_for_dropout():
    x, generator = torch.randn(L, 7), torch.Generator().manual_seed(3)
    before = generator.get_state()
    assert check(x, x, x, generator=generator).seed is None
    assert torch.equal(generator.get_state(), before)
    assert check(x, x, x, dropout=0.1, generator=generator).seed is not None
    assert not torch.equal(generator.get_state(), before)


def test_a_part_of_a_problem_refuses_dropout():
    x = torch.randn(B, H, L, 7)
    problem = check(x, x, x, dropout=0.4)
    for part in (
        lambda p: p.at(torch.tensor([1])),
        lambda p: p.select(torch.tensor([1])),
        lambda p: p.entry(1),
    ):
        with pytest.raises(AssertionError, match="position in the whole problem"):
            part(problem)
        assert part(problem.detached()).seed is None
