"""Reading a head in bands equals reading it in one pass, and can be cancelled in between."""

from math import ceil
from threading import Event

import pytest
import torch
from support.explorer import Once

import regard
from regard.lens.naming.repeats import Repeats
from regard.page import RecordingSubject, _bands
from regard.page._bands import (
    PendingHead,
    PendingHeads,
    cancellable_reader,
    readouts_along,
    thumbnail,
)
from regard.page._windows import Window
from regard.page._work import ReplacedError
from regard.pattern.readouts import Blocks

L, D = 61, 5
MASKS = {
    "causal": regard.causal(),
    "window": regard.causal() & regard.window(17),
    "gaps": regard.dense(torch.rand(L, L, generator=torch.Generator().manual_seed(2)) < 0.7),
    "none": None,
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(_bands, "_BAND", L * 7)  # rows that L is not a multiple of


@pytest.fixture(params=MASKS)
def pattern(request):
    query, key = torch.randn(2, L, D, generator=torch.Generator().manual_seed(6))
    return regard.Pattern(3 * query, key, mask=MASKS[request.param])


@pytest.fixture
def bands(monkeypatch):
    """The bands that are read."""
    read, rows = [], _bands.rows
    monkeypatch.setattr(
        _bands, "rows", lambda pattern, *span: read.append(span) or rows(pattern, *span)
    )
    return read


def near(actual, expected):
    # Each band is rounded to float32 by itself.
    torch.testing.assert_close(actual.double(), expected.double(), rtol=3e-6, atol=3e-7)


def expected_along(pattern):
    return torch.stack([pattern.entropy(), pattern.distance(), pattern.mass(0), pattern.received()])


def test_log_sum_exps(pattern, bands):
    known = PendingHead(pattern).finish(None)
    near(known.pattern._logsumexp, pattern.logsumexp[None])
    assert known.cells is known.along is None
    assert len(bands) == ceil(L / 7)


@pytest.mark.parametrize("looks", [0, 1, 5])
def test_a_cancelled_pass_for_log_sum_exps_is_continued(pattern, bands, looks):
    unfinished = PendingHead(pattern)
    with pytest.raises(ReplacedError):
        unfinished.finish(Once(looks))
    assert len(bands) == looks
    near(unfinished.finish(None).pattern._logsumexp, pattern.logsumexp[None])
    assert bands == [(first, min(first + 7, L)) for first in range(0, L, 7)]  # each of them once


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("along", [False, True])
def test_other_results_of_the_pass_for_log_sum_exps(pattern, bands, block, along):
    pending = PendingHead(pattern)
    with pytest.raises(ReplacedError):
        pending.finish(Once(1), block, along=along)
    known = pending.finish(None, block)  # what is read was decided by the first call
    near(known.pattern._logsumexp, pattern.logsumexp[None])
    near(known.cells, pattern.blocks(block, block))
    if along:
        near(known.along, expected_along(pattern))
    else:
        assert known.along is None
    assert all(first % block == 0 for first, _ in bands)
    again = pending.finish(None)
    assert again.pattern.has_logsumexp
    assert again.cells is None


def test_a_pass_that_began_with_log_sum_exps_only(pattern):
    pending = PendingHead(pattern)
    with pytest.raises(ReplacedError):
        pending.finish(Once(1))
    known = pending.finish(None, 2, along=True)
    near(known.pattern._logsumexp, pattern.logsumexp[None])
    assert known.cells is known.along is None


def test_the_last_few_cancelled_heads_keep_partial_results(pattern, bands):
    heads, kept = PendingHeads(), _bands._KEPT
    for head in range(kept + 2):
        with pytest.raises(ReplacedError):
            heads.of((0, head), pattern).finish(Once(2), 2, along=True)
    bands.clear()
    first, last = (
        heads.of((0, head), pattern).finish(None, 2, along=True) for head in (0, kept + 1)
    )
    assert all(start > 0 for start, _ in bands)  # both go on
    for known in (first, last):
        near(known.pattern._logsumexp, pattern.logsumexp[None])
    assert first.cells is first.along is None
    near(last.cells, pattern.read(Blocks(2, 2))[0])
    near(last.along, expected_along(pattern))


@pytest.mark.parametrize("size", [1, 2, 13, 30, 60, 61, 64])
@pytest.mark.parametrize("known", [False, True])
def test_a_thumbnail(pattern, size, known):
    expected = regard.Pattern.of(pattern.problem, None).image(size, size)
    if known:
        pattern.read()
    near(thumbnail(pattern, size, None), expected)


def test_readouts_along_the_text(pattern):
    near(readouts_along(pattern, None), expected_along(pattern))


@pytest.mark.parametrize("looks", [0, 1, 4])
@pytest.mark.parametrize(
    "read", [readouts_along, lambda pattern, cancelled: thumbnail(pattern, 13, cancelled)]
)
def test_readouts_can_be_cancelled(pattern, bands, read, looks):
    cancelled = Once(looks)
    with pytest.raises(ReplacedError):
        read(pattern, cancelled)
    assert cancelled.looks == -1
    assert len(bands) == looks


def test_streamed_readouts_can_be_cancelled_between_blocks(monkeypatch):
    monkeypatch.setattr("regard.pattern.stream._BLOCK_SCORES", L * 7)
    query, key = torch.randn(2, 1, L, D)
    pattern = regard.Pattern(query, key)
    cancelled = Once(5)
    with pytest.raises(ReplacedError):
        cancellable_reader(cancelled)(
            pattern, regard.readouts.Entropy(), Repeats(torch.zeros(L).long(), following=False)
        )
    assert cancelled.looks == -1
    entropy, copies = cancellable_reader(Once(99))(
        pattern, regard.readouts.Entropy(), Repeats(torch.arange(L), following=False)
    )
    assert torch.equal(entropy, pattern.entropy())
    assert not copies.any()


@pytest.fixture
def run(make_recording):
    given = torch.randn(2, 1, 3, L, D, generator=torch.Generator().manual_seed(4))
    return RecordingSubject(make_recording([tuple(given)]), title="x").run("0")


def test_a_column_computes_the_log_sum_exps_of_its_head_once(run, bands):
    first = run.column(0, 1, 5)
    many = len(bands)
    assert many == ceil(L / 7)
    assert torch.equal(run.column(0, 1, 5), first)
    run.column(0, 1, L - 1)
    run.cell(0, 1, 3, 2)
    assert [stop - first for first, stop in bands[many:]] in ([], [1])


def test_a_cell_and_a_row_compute_one_row(run, bands):
    run.cell(0, 1, 31, 5)
    run.row(0, 1, 31)
    run.cell(0, "mean", 31, 5)
    assert bands == []
    assert all(run.head(0, head)._logsumexp is None for head in range(3))


def test_a_head_with_log_sum_exps_is_cached(run):
    run.column(0, 1, 5)
    known = run.head(0, 1)
    assert known._logsumexp is not None
    run.thumbnails(0, 13)
    assert run.head(0, 1) is known


@pytest.mark.parametrize(
    "ask",
    [
        lambda run, cancelled: run.thumbnails(0, 13, cancelled),
        lambda run, cancelled: run.scores(0, cancelled),
        lambda run, cancelled: run.readouts(0, "mean", cancelled),
        lambda run, cancelled: run.column(0, "mean", 7, cancelled),
    ],
    ids=["thumbnails", "scores", "readouts", "column"],
)
def test_long_requests_can_be_cancelled_anywhere(run, ask, monkeypatch):
    monkeypatch.setattr("regard.page._run._AT_ONCE", 0)  # else the heads are scored in one pass
    ask(run, looked := Once(10**9))
    for head in range(3):
        run._heads.pop((0, head))  # forget what was learnt
    looks = 10**9 - looked.looks
    assert looks >= 3 * ceil(L / 7)
    run._readouts.clear()
    run._scores.clear()
    for part in (0, looks // 3, looks - 1):
        cancelled = Once(part)
        with pytest.raises(ReplacedError):
            ask(run, cancelled)
        assert cancelled.looks == -1
        for head in range(3):
            run._heads.pop((0, head), None)
            run._pending.discard((0, head))


def test_a_saved_recording_has_its_log_sum_exps(make_recording, tmp_path, bands):
    given = torch.randn(2, 2, 3, L, D, generator=torch.Generator().manual_seed(4))
    make_recording([tuple(given)]).save(tmp_path)
    run = RecordingSubject(regard.load(tmp_path), title="x").run("1")
    assert run.has_column(0, 2)
    assert run.has_map(0, 2, Window((0, L), (0, L), 1))
    run.column(0, "mean", 7)
    assert bands == []


@pytest.mark.parametrize("first", ["column", "readouts", "a part of the map", "the map"])
def test_the_map_of_a_head_is_computed_with_its_log_sum_exps(make_recording, bands, first):
    """Whatever the page asks for first, its rows are gone through once for both."""
    given = torch.randn(2, 1, 2, L, D, generator=torch.Generator().manual_seed(4))
    run = RecordingSubject(make_recording([tuple(given)]), title="x").run("0")
    whole = Window((0, L), (0, L), 1)
    ask = {
        "column": lambda: run.column(0, 1, 7),
        "readouts": lambda: run.readouts(0, 1),
        "a part of the map": lambda: run.map(0, 1, Window((3, 4), (5, 7), 1), Event()),
        "the map": lambda: run.map(0, 1, whole, Event()),
    }
    ask[first]()
    assert run.has_map(0, 1, whole)
    before = len(bands)
    near(run.map(0, 1, whole, Event()), run.head(0, 1).dense())
    assert len(bands) == before
    along = run.readouts(0, 1)
    assert (len(bands) == before) == (first in {"column", "readouts"})
    near(along, expected_along(run.head(0, 1)))
    run.column(0, "mean", 7)
    assert not run._windows.hold((0, 0), L, whole)  # of a mean, no head is on the page
