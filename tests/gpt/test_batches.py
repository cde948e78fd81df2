"""What an update sees: every window once, in an order that is a function of its number alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.errors import Error
from regard.gpt import TrainConfig
from regard.gpt.training import batches as training_batches
from regard.gpt.training._permutation import mix, permuted
from regard.gpt.training.batches import IGNORED, Batches


def make(tokens, *, context=16, vocab_size=1000, end=None, **recipe):
    recipe = {"batch": 3, "steps": 1000, "warmup": 0, "ramp": 0.0, "repeats": 0.0} | recipe
    return Batches(
        tokens=np.asarray(tokens),
        context=context,
        vocab_size=vocab_size,
        config=TrainConfig(**recipe),
        end=end,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1009])
def test_a_permutation_of_any_size_hits_every_place_once(size):
    places = permuted(np.arange(size), size, key=7)
    assert sorted(places.tolist()) == list(range(size))
    assert permuted(np.array([size - 1]), size, key=7)[0] == places[-1]  # one place, no other
    if size > 100:
        assert not np.array_equal(places, permuted(np.arange(size), size, key=8))
        # Each half of the order holds about half of each half: 252 of 505, deviation 8.
        assert abs((places[: size // 2] < size // 2).sum() - size / 4) < 50


def test_a_huge_permutation_needs_no_memory():
    places = permuted(np.arange(1000), 10**17, key=3)
    assert len(set(places.tolist())) == 1000
    assert places.min() >= 0
    assert places.max() < 10**17
    assert abs(places.mean() / 10**17 - 0.5) < 0.05  # five standard errors of the mean: 0.046


def test_a_mixture_depends_on_every_number():
    seeds = {mix(*numbers) for numbers in [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**63 - 1, 5)]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_pass_visits_every_window_once():
    text = np.arange(16 * 23 + 5)  # 22 windows of 16, whatever the shift
    batches = make(text)
    starts = np.concatenate([batches.batch(step).starts for step in range(22)])
    passes = np.concatenate([batches.batch(step).passes for step in range(22)])
    assert passes.tolist() == [0] * 22 + [1] * 22 + [2] * 22
    orders = starts.reshape(3, 22)
    for order in orders:
        places = np.sort(order)
        assert (np.diff(places) == 16).all()  # side by side: each token in one window
        assert 0 <= places[0] < 16
        assert places[-1] + 16 < len(text)  # and a target for the last
        assert not np.array_equal(order, places)
    assert len({tuple(order - order.min()) for order in orders}) == 3
    assert len({order.min() for order in orders}) > 1  # each pass cuts at other places
    again = make(text)
    assert again.batch(17).starts.tolist() == batches.batch(17).starts.tolist()
    other = make(text, seed=1)
    assert other.batch(0).starts.tolist() != batches.batch(0).starts.tolist()


def test_windows_are_pieces_of_the_text_and_targets_the_next_tokens():
    batch = make(np.arange(17, 1117, dtype=np.uint16), batch=20).batch(0)
    assert batch.ids.dtype == batch.targets.dtype == torch.int64
    assert batch.ids.shape == batch.targets.shape == (20, 16)
    assert batch.ids[:, 0].tolist() == (batch.starts + 17).tolist()
    assert batch.ids.diff(dim=-1).eq(1).all()
    assert batch.targets.equal(batch.ids + 1)
    assert batch.weights.equal(torch.ones(20, 16))


@pytest.mark.parametrize(("accumulate", "ranks"), [(1, 1), (2, 1), (2, 3), (5, 7)])
def test_the_passes_of_all_ranks_hold_each_row_once_and_their_weights_sum_to_1(accumulate, ranks):
    batch = make(np.arange(1000) % 251, batch=2, accumulate=accumulate, repeats=0.3).batch(13)
    shares = [batch.split(accumulate, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(passes) for passes in shares}) == 1  # ranks wait for each other at every pass
    parts = [part for passes in shares for part in passes]
    ids, targets, weights = (torch.cat(each) for each in zip(*parts, strict=True))
    counts = targets.ne(IGNORED).any(dim=-1)
    assert ids[counts].equal(batch.ids)
    assert targets[counts].equal(batch.targets)
    assert weights[targets == IGNORED].eq(0).all()
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))


def test_a_focus_is_on_rare_tokens_that_stand_in_the_same_document_before(monkeypatch):
    monkeypatch.setattr(training_batches, "_COUNTED", 13)  # tokens are counted in many parts
    end, common = 0, 1
    texts = [[5, common, 6, common, 5, 7, end], [5, 8, common, 8, 8, end], [6, 9, 6, end]]
    text = np.concatenate([*texts, np.arange(2000) % 983 + 17, np.full(50, common)])
    batches = make(text, context=len(text) - 1, batch=1, steps=10, focus=0.5, end=end)
    batch = batches.batch(4)
    assert batch.starts.tolist() == [0]
    again = batch.weights[0].eq(1).nonzero().flatten() + 1  # a target is the token after
    assert again[again < 17].tolist() == [4, 10, 11, 15]
    assert again[again >= 17].tolist() == list(range(17 + 983, 17 + 2000))
    assert batch.weights.unique().tolist() == pytest.approx([0.1, 1])
    assert batches.batch(5).weights.eq(1).all()


def test_growing_windows_begin_a_new_pass_and_lose_no_row():
    text = np.arange(400)
    batches = make(text, context=16, batch=2, steps=30, ramp=0.6, repeats=0.25)
    lengths = [batches.batch(step).ids.shape for step in range(30)]
    assert lengths == [(16, 2)] * 6 + [(8, 4)] * 6 + [(4, 8)] * 6 + [(2, 16)] * 12
    runs = [int((batches.batch(step).starts < 0).sum()) for step in range(30)]
    assert sum(runs) == 6 * 4 + 6 * 2 + 6 * 1 + 12 * 0.5
    for first, last in ((0, 6), (6, 12), (12, 18), (18, 30)):
        starts = np.concatenate([batches.batch(step).starts for step in range(first, last)])
        passes = np.concatenate([batches.batch(step).passes for step in range(first, last)])
        assert (passes == 0).all()  # none of the phases reads as much as the text
        text_rows = starts[starts >= 0]
        assert len(set(text_rows.tolist())) == len(text_rows)  # no window twice within a pass


def test_repeated_rows_are_predicted_from_their_second_copy_on():
    batch = make(np.zeros(1000, int), repeats=0.5, batch=400).batch(0)
    random = torch.from_numpy(batch.starts < 0)
    assert random.sum() == 200
    lengths = set()
    for row, target in zip(batch.ids[random], batch.targets[random], strict=True):
        length = int(target.eq(IGNORED).sum())
        lengths.add(length)
        assert target[:length].eq(IGNORED).all()
        assert target[:-1][length:].equal(row[1:][length:])
        assert target[length:].equal(row[1 : len(row) - length + 1])  # what came a run earlier
    assert (min(lengths), max(lengths)) == (2, 8)
    assert batch.targets[~random].eq(0).all()
    other = make(np.zeros(1000, int), repeats=0.5, batch=400).batch(1)
    assert not other.ids[random].equal(batch.ids[random])


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(Error, match=r"16 tokens .* context=16 needs 17"):
        make(np.arange(16))
    batch = make(np.arange(17)).batch(5)
    assert batch.ids.equal(torch.arange(16).expand(3, -1))
    assert batch.passes.tolist() == [15, 16, 17]
