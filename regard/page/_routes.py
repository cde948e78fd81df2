"""The page's interface: what it asks for, and the answers.

Numbers in bulk travel as little-endian float32, everything else as JSON.
"""

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from regard.page._changes import Changes, Fields, Number, Over, require_range
from regard.page._errors import NAME, SPANS, PageError
from regard.page._heads import STRONGEST
from regard.page._requests import (
    CurrentJobs,
    CurrentKey,
    CurrentPlace,
    CurrentQuery,
    CurrentRun,
    CurrentSubject,
    Lines,
    Numbers,
    Range,
    Seen,
    SeenRun,
    Update,
    View,
    Whole,
    describe,
    lines,
    numbers,
    progress_lines,
    require,
    require_head,
    require_model,
    token_entry,
)
from regard.page._run import PICTURE
from regard.page._windows import Window
from regard.page._work import Lane
from regard.page.subjects import CHARACTERS, GENERATED, ModelSubject, Subject
from regard.page.training import TrainingHistory

__all__ = ["router"]

PIXELS = 2048
"""Largest side of a picture, in cells."""
WRITTEN = 256
"""Largest number of keys that are written out at a time."""
NO_MODEL = "this is a recording: there is no model to run with changes"

Side = Annotated[int, Query(ge=1, le=PIXELS)]
Page = Annotated[int, Query(ge=1, le=WRITTEN)]
Picked = Annotated[int | None, Query(ge=0, le=2**31)]
BlockSize = Annotated[int, Query(ge=1, le=2**20)]


class Refusal(BaseModel):
    """Why the request failed, and what to do."""

    error: str


class Text(Fields):
    """A text to run the model over."""

    text: str = Field(max_length=CHARACTERS)


class Token(Fields):
    """A token to append."""

    token: Number


class Generation(Fields):
    """Sampling options for generation."""

    tokens: int = Field(default=40, ge=1, le=GENERATED)
    temperature: float = Field(default=0.8, ge=0, le=100, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": "Why the request failed",
        "content": {"application/json": {"schema": Refusal.model_json_schema()}},
    }
    for status in (400, 404, 409, 410, 413, 422, 503)
}
router = APIRouter(prefix="/api", responses=REFUSALS)


@router.get("/health")
async def health() -> dict[str, bool]:
    """Confirm that the server runs."""
    return {"ok": True}


@router.get("/about")
async def about(subject: CurrentSubject) -> dict[str, Any]:
    """Describe the subject."""
    return subject.about()


@router.get("/training")
async def training(subject: CurrentSubject) -> dict[str, Any]:
    """Describe how the heads formed during the training run."""
    return _training(subject).describe()


@router.get("/training/{step}/thumbnails", response_class=Numbers)
async def training_thumbnails(subject: CurrentSubject, step: Update) -> Numbers:
    """Small pictures of all heads at a recorded update."""
    try:
        pictures = _training(subject).images(step)
    except KeyError:
        raise PageError(f"nothing was recorded at update {step}", status=404) from None
    return numbers(pictures, "X-Heads", "X-Rows", "X-Columns")


@router.post("/runs")
async def read(subject: CurrentSubject, jobs: CurrentJobs, view: View, text: Text) -> Response:
    """Run the model over a text."""
    model = require_model(subject)
    return await jobs.run(view, lambda: describe(model.read(text.text)))


@router.get("/runs/{name}")
async def describe_run(run: CurrentRun, jobs: CurrentJobs, view: View) -> Response:
    """Describe an open run."""
    return await jobs.run(view, describe, run, lane=Lane.QUICK)


@router.get("/runs/{name}/views")
async def views(
    run: CurrentRun, jobs: CurrentJobs, view: View, wanted: Seen = "weight"
) -> list[dict[str, Any]]:
    """The views of its patterns, and why it has not some of them."""
    return await jobs.run(view, run.describe_views, wanted, lane=Lane.BACKGROUND)


@router.get("/runs/{name}/writer")
async def writer(
    subject: CurrentSubject, run: CurrentRun, jobs: CurrentJobs, view: View
) -> dict[str, Any]:
    """The head that writes the next token, and what is lost without it."""
    model = require_model(subject)
    return await jobs.run(view, model.writer, run)  # what the sentence waits for


@router.post("/runs/{name}/append")
async def append(
    subject: CurrentSubject, run: CurrentRun, jobs: CurrentJobs, view: View, token: Token
) -> Response:
    """Run over one token more."""
    model = require_model(subject)
    return await jobs.run(view, lambda: describe(model.append(run, token.token)))


@router.post("/runs/{name}/generate", response_class=Lines)
async def generate(
    subject: CurrentSubject, run: CurrentRun, jobs: CurrentJobs, options: Generation
) -> Lines:
    """Generate tokens, and stream each as soon as it is drawn."""
    steps = require_model(subject).generate(
        run, tokens=options.tokens, temperature=options.temperature, seed=options.seed
    )
    entries = map(token_entry, steps)
    return Lines(lines(jobs.work, Lane.SHOWN, lambda _: next(entries, None)))


@router.get("/runs/{name}/heads", response_class=Lines)
async def heads(run: CurrentRun, jobs: CurrentJobs, first: Whole = 0) -> Lines:
    """Score all heads; stream a line for each layer, from `first` on and round."""
    require_head(run, first)
    layers = iter([*range(first, len(run.layers)), *range(first)])

    def score(cancelled: Event) -> dict[str, Any] | None:
        layer = next(layers, None)
        return None if layer is None else run.scores(layer, cancelled)

    return Lines(lines(jobs.work, Lane.BACKGROUND, score))


@router.get("/runs/{name}/thumbnails", response_class=Numbers)
async def thumbnails(
    run: SeenRun, jobs: CurrentJobs, view: View, layer: Whole, size: Side = PICTURE
) -> Numbers:
    """Small pictures of a layer's heads."""
    require_head(run, layer)
    pictures = await jobs.run(view, run.thumbnails, layer, size, lane=Lane.BACKGROUND, cancel=True)
    return numbers(pictures, "X-Heads", "X-Rows", "X-Columns")


@router.get("/runs/{name}/map", response_class=Numbers)
async def window(
    run: SeenRun,
    place: CurrentPlace,
    jobs: CurrentJobs,
    view: View,
    queries: Range,
    keys: Range,
    block: BlockSize,
) -> Numbers:
    """A window of a head's pattern or of a mean, averaged down to cells of block × block tokens."""
    rows, columns = (
        _range(name, value, len(run.tokens))
        for name, value in (("queries", queries), ("keys", keys))
    )
    _require_cells(block, rows, columns)
    part = Window(rows, columns, block)
    lane = _lane(quick=run.has_map(*place, part))
    cells = await jobs.run(view, run.map, *place, part, lane=lane, cancel=True)
    return numbers(cells, "X-Rows", "X-Columns")


@router.get("/runs/{name}/sketch", response_class=Numbers)
async def sketch(
    run: SeenRun, place: CurrentPlace, jobs: CurrentJobs, view: View, block: BlockSize
) -> Numbers:
    """One query for each block of them, its weights averaged over blocks of keys."""
    _require_cells(block, (0, len(run.tokens)))
    lane = _lane(quick=run.has_sketch(*place, block))
    cells = await jobs.run(view, run.sketch, *place, block, lane=lane, cancel=True)
    return numbers(cells, "X-Rows", "X-Columns")


@router.get("/runs/{name}/row", response_class=Numbers)
async def row(
    run: SeenRun, place: CurrentPlace, query: CurrentQuery, jobs: CurrentJobs, view: View
) -> Numbers:
    """The weights of a query."""
    lane = _lane(quick=run.has_row(*place))
    return numbers(await jobs.run(view, run.row, *place, query, lane=lane))


@router.get("/runs/{name}/column", response_class=Numbers)
async def column(
    run: SeenRun, place: CurrentPlace, key: CurrentKey, jobs: CurrentJobs, view: View
) -> Numbers:
    """The weights on a key."""
    lane = _lane(quick=run.has_column(*place))
    return numbers(await jobs.run(view, run.column, *place, key, lane=lane, cancel=True))


@router.get("/runs/{name}/cell")
async def cell(
    run: SeenRun,
    place: CurrentPlace,
    query: CurrentQuery,
    key: CurrentKey,
    jobs: CurrentJobs,
    view: View,
) -> dict[str, Any]:
    """One weight and its score."""
    lane = _lane(quick=run.has_row(*place))
    return await jobs.run(view, run.cell, *place, query, key, lane=lane)


@router.get("/runs/{name}/readouts", response_class=Numbers)
async def readouts(run: SeenRun, place: CurrentPlace, jobs: CurrentJobs, view: View) -> Numbers:
    """Entropy, distance, weight on the first token and weight received, along the text."""
    return numbers(await jobs.run(view, run.readouts, *place, cancel=True))


@router.get("/runs/{name}/readouts/progress", response_class=Lines)
async def readouts_progress(
    run: SeenRun, place: CurrentPlace, jobs: CurrentJobs, view: View
) -> Lines:
    """Compute and cache a mean's readouts; stream the progress."""

    def compute(progress: Callable[[int, int], None], cancelled: Event) -> dict[str, Any]:
        run.readouts(*place, cancelled, progress)
        return {"ready": True}

    return Lines(progress_lines(jobs.work, view, compute, Lane.SHOWN))


@router.get("/runs/{name}/steps")
async def steps(
    run: SeenRun,
    jobs: CurrentJobs,
    view: View,
    layer: Whole,
    head: Whole,
    query: CurrentQuery,
    first: Whole = 0,
    count: Page = STRONGEST,
    picked: Picked = None,
) -> dict[str, Any]:
    """One query's attention, number by number, for some of its keys."""
    require_head(run, layer, head)
    if picked is not None:
        require("key", picked, len(run.tokens))
    steps_of = partial(run.steps, first=first, count=count, picked=picked)
    return await jobs.run(view, steps_of, layer, head, query, lane=Lane.QUICK)


@router.post("/runs/{name}/changed")
async def change(
    subject: CurrentSubject, run: CurrentRun, jobs: CurrentJobs, view: View, changes: Changes
) -> Response:
    """Run over the same tokens with some attention changed."""
    model = require_model(subject, NO_MODEL)
    return await jobs.run(view, lambda: describe(model.change(run, changes.changes)))


@router.get("/runs/{name}/effects", response_class=Lines)
async def effects(
    subject: CurrentSubject,
    run: CurrentRun,
    jobs: CurrentJobs,
    view: View,
    over: Over,
) -> Lines:
    """Measure what the likeliest next token rests on: progress line by line, then the effects."""
    model = require_model(subject, NO_MODEL)
    return Lines(
        progress_lines(jobs.work, view, lambda progress, _: model.effects(run, over, progress))
    )


@router.get("/runs/{name}/passages", response_class=Lines)
async def passages(
    subject: CurrentSubject,
    run: CurrentRun,
    jobs: CurrentJobs,
    view: View,
    spans: Annotated[str, Query(pattern=SPANS)],
) -> Lines:
    """Measure which passages the likeliest next token needs: progress, then the effects."""
    model = require_model(subject, NO_MODEL)
    ends = [[int(end) for end in span.split(",")] for span in spans.split(";") if span]
    pairs = [(first, stop) for first, stop in ends]
    return Lines(
        progress_lines(jobs.work, view, lambda progress, _: model.passages(run, pairs, progress))
    )


@router.get("/runs/{name}/patched", response_class=Lines)
async def patched(
    subject: CurrentSubject,
    run: CurrentRun,
    jobs: CurrentJobs,
    view: View,
    other: Annotated[str, Query(max_length=64, pattern=NAME)],
) -> Lines:
    """Put each head of another run into this one: progress, then what becomes of the answer."""
    model = require_model(subject, NO_MODEL)
    return Lines(
        progress_lines(jobs.work, view, lambda progress, _: model.patch(run, other, progress))
    )


def _lane(*, quick: bool) -> Lane:
    return Lane.QUICK if quick else Lane.SHOWN


def _training(subject: Subject) -> TrainingHistory:
    history = subject.training if isinstance(subject, ModelSubject) else None
    if history is None:
        sentence = "no training was recorded here; train with --record-every"
        raise PageError(sentence, status=404)
    return history


def _range(name: str, value: str, size: int) -> tuple[int, int]:
    first, stop = map(int, value.split(","))
    require_range(name, (first, stop), size)
    return first, stop


def _require_cells(block: int, *spans: tuple[int, int]) -> None:
    if block.bit_count() != 1:
        raise PageError(f"block={block} is not a power of two")
    most = max(stop - first for first, stop in spans)
    if most > block * PIXELS:
        raise PageError(
            f"{most} tokens in blocks of {block} are more than {PIXELS} cells; ask for larger "
            "blocks or a smaller window"
        )
