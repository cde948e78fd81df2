"""Recordings and runs sent to another process, by pickle and by whatever is made of it."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from record.test_streaming import READOUTS, Layers, growing, rolling, static
from support.caches import Attend, B, D, H, chunks, close, exact, grown, sequence

import regard
from regard.nn import MultiHeadAttention
from regard.record import RecordError, read_while_running


def by_torch(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "torch": by_torch,
    "multiprocessing": lambda thing: ForkingPickler.loads(ForkingPickler.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "twice": lambda thing: pickle.loads(pickle.dumps(copy.copy(copy.deepcopy(thing)))),
}


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, reading in expected.items():
        assert actual[name].axes == reading.axes
        assert actual[name].labels == reading.labels
        assert torch.equal(actual[name].values, reading.values), name


@pytest.mark.each_once
@pytest.mark.parametrize("send", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("cache", [growing, static, rolling])
def test_a_recording_and_what_was_read(send, cache):
    model, (query, key) = Layers(), sequence()
    options = {"heads": [2, 0], "rows": slice(1, None), "tokens": list("abcdefghi")}
    with (
        regard.record(model, **options) as recording,
        read_while_running(model, *READOUTS, **options) as run,
    ):
        cache(model, query, key)
    sent, sent_run = send(recording), send(run)
    for ours, theirs in zip(sent.layers, recording.layers, strict=True):
        assert torch.equal(ours.pattern.dense(), theirs.pattern.dense())
        assert (ours.name, ours.kind, ours.index) == (theirs.name, theirs.kind, theirs.index)
        assert (ours.heads, list(ours.rows)) == (theirs.heads, list(theirs.rows))
    assert sent.tokens == recording.tokens == sent_run.tokens
    expected = recording.read(*READOUTS)  # call by call
    assert_same(sent.read(*READOUTS), expected)
    assert_same(sent_run, expected)
    assert [own.call for own in sent_run.layers] == [own.call for own in run.layers]


def test_what_is_sent_is_its_own():
    layer, (query, key) = Attend(), sequence(7)
    with regard.record(layer) as recording:
        layer(query, key, is_causal=True)
    expected = exact(query, key)
    sent = [send(recording) for send in WAYS.values()]
    query.zero_()
    recording.free()
    for one in sent:
        close(one[0], expected)


def test_a_recording_that_was_moved():
    layer = MultiHeadAttention(6, 2, mask=regard.causal())
    with torch.no_grad(), regard.record(layer) as recording:
        layer(torch.randn(1, 5, 6))
    for one in (recording, recording.to("cpu")):
        (sent,) = pickle.loads(pickle.dumps(one)).layers
        assert torch.equal(sent.pattern.dense(), recording[0].dense())


def test_the_steps_of_a_generation_are_not_each_sent_with_all_keys():
    layer, (query, key) = Attend(), sequence(97)
    mask = torch.ones(97, 97, dtype=torch.bool).tril()
    with regard.record(layer) as recording:
        grown(layer, query, key, chunks(1, *[1] * 96), mask)
    # Queries and keys with an eighth of room, float32; start, stop and position of each row.
    expected = B * H * D * 4 * 97 * (1 + 8 / 7) + 3 * 97 * 8
    assert len(pickle.dumps(recording)) < expected + 20_000  # names, sizes and 97 calls


def test_what_is_lost_can_not_be_sent():
    layer, (query, key) = Attend(), sequence(7)
    query = query.clone()
    with regard.record(layer) as recording:
        layer(query, key, is_causal=True)
    query.add_(1)
    with pytest.raises(RecordError, match="written to after"):
        pickle.dumps(recording)
    recording.free()
    freed = pickle.loads(pickle.dumps(recording))
    assert repr(freed) == repr(copy.deepcopy(recording)) == "Recording(freed)"
    with pytest.raises(RecordError, match="was freed"):
        freed[0]


def test_what_is_sent_while_the_model_runs_is_what_there_is_so_far():
    layer, (query, key) = Attend(), sequence(7)
    with (
        regard.record(layer) as recording,
        read_while_running(layer, regard.readouts.Entropy()) as run,
    ):
        grown(layer, query[..., :4, :], key, chunks(3, 1))
        sent, sent_run = (pickle.loads(pickle.dumps(one)) for one in (recording, run))
        layer(query[..., 4:5, :], key[..., :5, :])
    assert recording[0].shape[-1] == 5
    close(sent[0], exact(query[..., :4, :], key[..., :4, :]))
    assert sent_run["entropy"].values.shape == (1, B, H, 4)
