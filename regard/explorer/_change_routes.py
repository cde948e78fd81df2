"""What the page asks for to change a model's attention."""

from fastapi import APIRouter
from fastapi.responses import Response

from regard.explorer._answers import describe
from regard.explorer._changes import Changes
from regard.explorer._routes import (
    REFUSALS,
    CurrentJobs,
    CurrentRun,
    CurrentSubject,
    View,
    require_model,
)

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
