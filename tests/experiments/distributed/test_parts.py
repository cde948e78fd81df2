"""The parts that need no second process: layout, merging, tiles and what each rank does."""

import math
from unittest import mock

import pytest
import torch

import regard
from regard._ranks import agree
from regard.gpt import GPTConfig, TrainConfig
from regard.gpt.training.setup import equal_facts
from regard.inputs import Scoring, check
from regard_experiments.distributed import Layout, _kernels
from regard_experiments.distributed._merge import merge, take_in_sink
from regard_experiments.distributed._plan import Plan
from regard_experiments.distributed.ring import Ring, circulate


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_position_lies_on_one_rank(ranks):
    for length in (0, 1, 2, 7, 60, 61):
        layout = Layout(length, ranks)
        held = [layout.positions(rank) for rank in range(ranks)]
        assert torch.cat(held).sort().values.tolist() == list(range(length))
        sizes = [layout.size(rank) for rank in range(ranks)]
        assert sizes == [len(positions) for positions in held]
        assert max(sizes) - min(sizes) <= 2
        for rank, positions in enumerate(held):
            chunks = [range(length)[chunk.positions] for chunk in layout.chunks(rank)]
            assert [p for chunk in chunks for p in chunk] == positions.tolist()
            assert all(chunks), "no chunk is empty"


def test_a_rank_holds_an_early_and_a_late_chunk():
    assert Layout(12, 3).positions(0).tolist() == [0, 1, 10, 11]
    assert Layout(12, 3).positions(1).tolist() == [2, 3, 8, 9]
    assert Layout(12, 3).positions(2).tolist() == [4, 5, 6, 7]


def plan_of(rank, ranks, query, mask):
    layout = Layout(query.shape[-2], ranks)
    mine = query[..., layout.positions(rank), :]
    rows = mask.resolve((), layout.length, layout.length, query.device)
    whole = slice(0, layout.length)
    return Plan(
        ring=mock.create_autospec(Ring, instance=True, rank=rank, size=ranks),
        problem=check(mine, mine),
        queries=layout,
        keys=layout,
        chunks=[(chunk, rows.crop(chunk.positions, whole)) for chunk in layout.chunks(rank)],
    )


def tiles(rank, ranks, step, mask, length=60):
    """What a rank computes at a step of the ring, of queries and keys that are 0."""
    query = torch.zeros(length, 3)
    plan = plan_of(rank, ranks, query, mask)
    owner = (rank - step) % ranks
    key = query[None, None, plan.keys.positions(owner)]
    return list(plan.tiles(owner, key, None))


def seen(tiles):
    return sum(
        int(tile.problem.rows.visible(slice(0, None), slice(0, tile.problem.keys)).sum())
        for tile in tiles
    )


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_causal_mask_gives_every_rank_the_same_to_do(ranks):
    chunk = 60 // (2 * ranks)
    for step in range(1, ranks):
        for rank in range(ranks):
            actual = tiles(rank, ranks, step, regard.causal())
            assert seen(actual) == 2 * chunk * chunk, "half of what the keys here would be"
            computed = sum(b.problem.queries * b.problem.keys for b in actual)
            assert computed == seen(actual), "nothing that is hidden"
    total = [
        sum(seen(tiles(rank, ranks, step, regard.causal())) for step in range(ranks))
        for rank in range(ranks)
    ]
    assert len(set(total)) == 1
    assert sum(total) == 60 * 61 // 2


def test_tiles_that_no_query_sees_are_left_out():
    assert not tiles(0, 3, 1, regard.window(1))
    assert not tiles(0, 3, 0, regard.masks.intervals(torch.full((60,), 7), torch.full((60,), 7)))


def test_the_next_tensor_travels_while_this_one_is_used():
    events = []
    ring = mock.create_autospec(Ring, instance=True, rank=0, size=3)
    transfer = mock.Mock(**{"wait.side_effect": lambda: events.append("wait")})
    ring.pass_on.side_effect = lambda held, size: events.append(f"{size} come") or transfer
    for owner, _ in circulate(ring, torch.zeros(10), lambda rank: 10 + rank):
        events.append(f"use those of {owner}")
    assert events == [
        *("12 come", "use those of 0", "wait"),
        *("11 come", "use those of 2", "wait"),
        "use those of 1",
    ]


def test_the_longest_facts_of_a_training_fit_into_a_message():
    ring = mock.create_autospec(Ring, instance=True, rank=0, size=2)
    ring.all_gather.side_effect = lambda numbers: [numbers, numbers]
    recipe = TrainConfig(probe="\U0001f98a" * 999, seed=2**63 - 1)
    corpus = mock.Mock(fingerprint="0" * 64)
    facts = equal_facts(GPTConfig.gpt2("xl"), recipe, corpus)
    assert agree(ring, facts)[1]["TrainConfig.probe"] == "\U0001f98a" * 300
    failure = ValueError("\U0001f98a\udcff" * 999)
    with pytest.raises(ValueError, match="\U0001f98a"):
        agree(ring, {}, failure=failure)


def test_merging_weighs_by_the_sums_of_exponentials():
    scores = torch.tensor([math.log(w) for w in (2, 3, 5, 7)], dtype=torch.float64)
    value = torch.tensor([[1.0], [10.0], [100.0], [1000.0]], dtype=torch.float64)

    def part(keys):
        weights = scores[keys].softmax(0)
        return (weights @ value[keys])[None, None, None], scores[keys].logsumexp(0)[
            None, None, None
        ]

    context, logsumexp = part(slice(0, 1))
    merge(context, logsumexp, *part(slice(1, 4)))
    assert float(context) == pytest.approx((2 + 30 + 500 + 7000) / 17)
    assert float(logsumexp) == pytest.approx(math.log(17))
    take_in_sink(context, logsumexp, torch.tensor([[math.log(17)]]))
    assert float(context) == pytest.approx((2 + 30 + 500 + 7000) / 34, rel=1e-6)
    assert float(logsumexp) == pytest.approx(math.log(34), rel=1e-6)


def test_merging_nothing_with_nothing_is_nothing():
    context, logsumexp = torch.zeros(1, 1, 1, 2), torch.full((1, 1, 1), -math.inf)
    merge(context, logsumexp, context.clone(), logsumexp.clone())
    take_in_sink(context, logsumexp, torch.zeros(1, 1))
    assert context.tolist() == [[[[0.0, 0.0]]]]
    assert logsumexp.tolist() == [[[-math.inf]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tile_written_out_in_bands_adds_what_the_kernels_add(dtype):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    query, key, value, gradient = draw(2, 4, 11, 5), draw(2, 2, 13, 5), draw(2, 2, 13, 3), None
    gradient = draw(2, 4, 11, 3)
    alibi = draw(4).abs()
    scoring = Scoring(mask=regard.causal() & regard.window(4), softcap=1.5, alibi=alibi)
    problem = check(query, key, value, scoring)
    block = problem.crop(slice(2, 9), slice(1, 8))
    whole, logsumexp = _kernels.forward(problem)
    rows = gradient[..., 2:9, :], whole[..., 2:9, :], logsumexp[..., 2:9]
    names = ("query", "key", "value", "alibi")
    wanted = _kernels.backward(block, *rows, names)
    objection = mock.patch("regard.backends.native.objection", return_value="not now")
    with objection, mock.patch.object(_kernels, "_SCORES", 8 * 7 * 2):  # two rows a tile
        parts = _kernels.forward(block)
        actual = _kernels.backward(block, *rows, names)
    for one, other in zip(parts, _kernels.forward(block), strict=True):
        torch.testing.assert_close(one, other)
    for name in names:
        torch.testing.assert_close(actual[name], wanted[name], msg=lambda m, n=name: f"{n}: {m}")
