"""What the page asks for to change a model's attention."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from regard.page._answers import Lines, describe, progress_lines
from regard.page._changes import Changes
from regard.page._dependencies import (
    CurrentJobs,
    CurrentRun,
    CurrentSubject,
    View,
    require_model,
)
from regard.page._effects import Over
from regard.page._routes import REFUSALS
from regard.page._sentences import SPANS

__all__ = ["router"]

NO_MODEL = "this is a recording: there is no model to run with changes"

router = APIRouter(prefix="/api", responses=REFUSALS)


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
