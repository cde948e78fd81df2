"""Sink keys against their definition in float64, head by head."""

import pytest
import torch

import regard
from regard.lens.sink_keys import OTHERS, READOUTS, RESTING, sinks_of_readings
from regard.record import RecordError, read_while_running

ROUNDING = 1e-5  # weights are of float32, whose scores reach 40


def by_definition(weights, visible):
    """The mean over the other queries that see a key, of one text: two (H, T, T) in float64."""
    heads, queries, keys = weights.shape
    result = torch.full((heads, keys), torch.nan, dtype=torch.float64)
    for head in range(heads):
        seen = [[q for q in range(queries) if visible[head, q, k] and q != k] for k in range(keys)]
        for key, others in enumerate(seen):
            if len(others) >= max(6, max(map(len, seen)) / 5):
                result[head, key] = sum(float(weights[head, q, key]) for q in others) / len(others)
    return result


def planted(heads, length, places, *, batch=1, strength=12.0):
    """Queries and keys of heads of which some rest on a key: {head: key}."""
    query, key = torch.randn(2, batch, heads, length, 7).unbind()
    query[..., 0] = 1.0
    key[..., 0] = 0.0
    for head, place in places.items():
        key[:, head, place, 0] = strength
    return query, key


MASKS = {
    "causal": regard.causal(),
    "window": regard.causal() & regard.window(11),
    "encoder": None,
}


@pytest.mark.parametrize("name", MASKS)
def test_weights_and_sinks_are_those_of_the_definition(name):
    query, key = planted(5, 23, {0: 0, 1: 9, 3: 9})
    with regard.record() as recording:
        regard.attention(query, key, key, mask=MASKS[name], scale=1.0)
    (sinks,) = regard.lens.sinks(recording)
    steps = regard.explain(query.double(), key.double(), key.double(), mask=MASKS[name], scale=1.0)
    weights = steps.weights[0]
    expected = by_definition(weights, weights > 0)
    torch.testing.assert_close(sinks.weights[0], expected, rtol=0, atol=ROUNDING, equal_nan=True)
    assert ((expected - RESTING).abs() > 10 * ROUNDING)[~expected.isnan()].all()
    for head in range(5):
        assert sinks.of(0, head) == tuple((expected[head] > 0.3).nonzero().flatten().tolist())
    assert {head: sinks.of(0, head) for head in (0, 1, 3)} == {0: (0,), 1: (9,), 3: (9,)}
    assert sinks.counts[9] == 2


def test_one_head_of_many_suffices_and_three_percent_are_needed():
    """A mean over all heads would have 0.017 here."""
    every = {}
    for count in (1, 2):
        with regard.record() as recording:
            for layer in range(4):
                rests = {0: 9} if layer < count else {}
                regard.attention(
                    *[*planted(13, 29, rests)[:1], *[planted(13, 29, rests)[1]] * 2],
                    mask=regard.causal(),
                    scale=1.0,
                )
        (every[count],) = regard.lens.sinks(recording)
    assert [every[count].counts[9] for count in (1, 2)] == [1, 2]
    assert [9 in every[count].keys for count in (1, 2)] == [False, True]  # of 52 heads, 1.56 is 3 %
    assert every[1].of(0, 0) == (9,)


def test_a_head_that_looks_by_position_alone_rests_nowhere_however_short_the_text():
    for length in range(2, 24):
        eye = torch.eye(length)
        uniform = torch.zeros(length, length)
        looks = [uniform, eye, eye.roll(1, 0), eye.roll(2, 0)]  # evenly, at itself, 1 and 2 back
        scores = 40 * torch.stack([look.tril() for look in looks])
        with regard.record() as recording:
            regard.attention(scores, eye.expand(4, -1, -1), scores, mask=regard.causal(), scale=1.0)
        (sinks,) = regard.lens.sinks(recording)
        assert not sinks.resting.any(), length


def test_fewer_than_six_other_queries_prove_nothing():
    query, key = planted(2, 3 + OTHERS, {0: 2, 1: 3})
    with regard.record() as recording:
        regard.attention(query, key, key, mask=regard.causal(), scale=1.0)
    (sinks,) = regard.lens.sinks(recording)
    assert sinks.keys == (2,)
    assert sinks.weights[0, :, 3:].isnan().all()


def test_what_the_last_queries_of_a_text_look_at_is_no_sink():
    """A question's queries may all look at the word that it asks about."""
    for length, found in ((41, True), (43, False)):  # of 40 and 42 others, a fifth is 8 and 8.4
        place = length - 9
        query, key = planted(2, length, {1: place})
        with regard.record() as recording:
            regard.attention(query, key, key, mask=regard.causal(), scale=1.0)
        (sinks,) = regard.lens.sinks(recording)
        assert sinks.of(0, 1) == ((place,) if found else ()), length


def test_each_text_of_a_batch_has_its_own_and_padding_counts_nowhere():
    torch.manual_seed(3)
    long, short = 23, 17
    query, key = planted(3, long, {1: 8}, batch=2)
    keep = torch.ones(2, long, dtype=torch.bool)
    keep[1, : long - short] = False
    with regard.record(tokens=[["a"] * long, ["b"] * long]) as recording:
        regard.attention(query, key, key, mask=regard.causal() & regard.padding(keep), scale=1.0)
    first, second = regard.lens.sinks(recording)
    assert [one.of(0, 1) for one in (first, second)] == [(8,), (8,)]
    assert second.tokens[0] == "b"
    with regard.record() as alone:
        own = slice(long - short, None)
        regard.attention(
            query[1:, :, own], key[1:, :, own], key[1:, :, own], mask=regard.causal(), scale=1.0
        )
    (expected,) = regard.lens.sinks(alone)
    torch.testing.assert_close(
        second.weights[..., own], expected.weights, rtol=0, atol=ROUNDING, equal_nan=True
    )
    assert second.weights[..., : own.start].isnan().all()


def test_readings_of_a_running_model_have_the_same():
    layer = regard.nn.MultiHeadAttention(12, 3, mask=regard.causal())
    x = torch.randn(1, 19, 12)
    with regard.record(layer) as recording, read_while_running(layer, *READOUTS) as readings:
        layer(x)
    (expected,) = regard.lens.sinks(recording)
    found = sinks_of_readings(readings.layers)
    assert torch.equal(found.weights.nan_to_num(-1), expected.weights.nan_to_num(-1))


def test_what_has_no_sinks_is_refused():
    query, key = torch.randn(2, 9, 5), torch.randn(2, 11, 5)
    with regard.record() as recording:
        regard.attention(query, key, key)
    with pytest.raises(RecordError, match="over whole sequences that attend to themselves"):
        regard.lens.sinks(recording)
    with regard.record() as twice:
        for _ in range(2):
            regard.attention(query, query, query)
    (sinks,) = regard.lens.sinks(twice)  # two layers, since no module says that they are one
    with pytest.raises(IndexError, match=r"layer 2 has no head 0 .* layers \(0, 1\)"):
        sinks.of(2, 0)


def test_the_repr_has_the_tokens_and_the_heads():
    query, key = planted(2, 11, {0: 0, 1: 2})
    with regard.record(tokens=[*"abcdefghijk"]) as recording:
        regard.attention(query[0], key[0], key[0], mask=regard.causal(), scale=1.0)
    (sinks,) = regard.lens.sinks(recording)
    assert repr(sinks) == "Sinks(0 'a': 1, 2 'c': 1 of 2 heads)"
