"""The explorer's interface: what the page asks for, and the answers.

Numbers in bulk travel as little-endian float32, everything else as JSON.
"""

import asyncio
from collections.abc import Callable
from threading import Event
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from regard.explorer._answers import Lines, Numbers, describe, drawn, lines, numbers
from regard.explorer._run import MEAN, Run
from regard.explorer._sentences import NAME, PLACE, RANGE
from regard.explorer._walk import STRONGEST
from regard.explorer._work import Lane, ReplacedError, Work
from regard.explorer.subjects import CHARACTERS, GENERATED, ExplorerError, ModelSubject, Subject
from regard.explorer.training import Training

__all__ = ["MissingError", "router"]

PIXELS = 2048
"""Most cells along a side of a picture."""
WRITTEN = 256
"""Most keys that are written out at a time."""

Result = TypeVar("Result")
Name = Annotated[str | None, Header(max_length=64, pattern=NAME)]
Update = Annotated[int, Field(ge=0, le=2**53)]
Whole = Annotated[int, Query(ge=0, le=2**31)]
Place = Annotated[str, Query(pattern=PLACE)]
Range = Annotated[str, Query(pattern=RANGE)]
Side = Annotated[int, Query(ge=1, le=PIXELS)]
Page = Annotated[int, Query(ge=1, le=WRITTEN)]
Picked = Annotated[int | None, Query(ge=0, le=2**31)]
Block = Annotated[int, Query(ge=1, le=2**20)]


class MissingError(LookupError):
    """What is asked for is not there; the message says so."""


class Refusal(BaseModel):
    """Why there is no answer, and what to do."""

    error: str


class Text(BaseModel):
    """A text to run the model over."""

    text: str = Field(max_length=CHARACTERS)


class Token(BaseModel):
    """A token to append."""

    token: int = Field(ge=0, le=2**31)


class Drawing(BaseModel):
    """How to go on."""

    tokens: int = Field(default=40, ge=1, le=GENERATED)
    temperature: float = Field(default=0.8, ge=0, le=100, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)


class Asked:
    """Work for one request: called off when whoever asked hangs up."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.work: Work = request.app.state.work

    async def run(
        self, view: str | None, compute: Callable[[Event], Result], lane: Lane = Lane.SHOWN
    ) -> Result:
        """Compute something; see `Work.run`."""
        doing = asyncio.ensure_future(self.work.run(view, compute, lane))
        leaving = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ReplacedError("replaced")  # nobody reads it
            return await doing
        finally:
            leaving.cancel()
            doing.cancel()

    async def _left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


# These are coroutines though none waits: in threads, requests would overtake each other, and the
# older of a view would replace the newer.


async def _subject(request: Request, update: Update | None = None) -> Subject:
    subject: Subject = request.app.state.subject
    if update is None:
        return subject
    model = _model(subject)
    work: Work = request.app.state.work
    return await work.run(None, lambda off: model.at(update))  # noqa: ARG005 - it is not called off midway


Shown = Annotated[Subject, Depends(_subject)]


async def _run(subject: Shown, name: str) -> Run:
    try:
        return subject.run(name)
    except KeyError:
        raise MissingError("this text is not open any more; open it again") from None


async def _view(x_client: Name = None, x_view: Name = None) -> str | None:
    return None if x_client is None or x_view is None else f"{x_client}/{x_view}"


async def _work(request: Request) -> Asked:
    return Asked(request)


Open = Annotated[Run, Depends(_run)]
Doing = Annotated[Asked, Depends(_work)]
View = Annotated[str | None, Depends(_view)]
router = APIRouter(
    prefix="/api",
    responses={
        status: {
            "description": "Why there is no answer",
            "content": {"application/json": {"schema": Refusal.model_json_schema()}},
        }
        for status in (400, 404, 409, 410, 413, 422, 503)
    },
)


@router.get("/health")
async def health() -> dict[str, bool]:
    """Tell that the server is there."""
    return {"ok": True}


@router.get("/about")
async def about(subject: Shown) -> dict[str, Any]:
    """Tell what is served."""
    return subject.about()


@router.get("/training")
async def training(subject: Shown) -> dict[str, Any]:
    """Tell how the heads formed while the model was trained."""
    return _training(subject).described()


@router.get("/training/{step}/thumbnails", response_class=Numbers)
async def trained(subject: Shown, step: Update) -> Numbers:
    """Small pictures of all heads at a recorded update."""
    try:
        pictures = _training(subject).images(step)
    except KeyError:
        raise MissingError(f"nothing was recorded at update {step}") from None
    return numbers(pictures, "X-Heads", "X-Rows", "X-Columns")


@router.post("/runs")
async def read(subject: Shown, work: Doing, view: View, text: Text) -> Response:
    """Run the model over a text."""
    model = _model(subject)
    return await work.run(view, lambda off: describe(model.read(text.text)))  # noqa: ARG005 - it is not called off midway


@router.get("/runs/{name}")
async def described(run: Open, work: Doing, view: View) -> Response:
    """Describe an open run."""
    return await work.run(view, lambda off: describe(run), Lane.QUICK)  # noqa: ARG005 - likewise


@router.post("/runs/{name}/append")
async def append(subject: Shown, run: Open, work: Doing, view: View, token: Token) -> Response:
    """Run over one token more."""
    model = _model(subject)
    return await work.run(view, lambda off: describe(model.append(run, token.token)))  # noqa: ARG005


@router.post("/runs/{name}/generate", response_class=Lines)
async def generate(subject: Shown, run: Open, work: Doing, drawing: Drawing) -> Lines:
    """Draw tokens, and send each as soon as it is there."""
    steps = _model(subject).generate(
        run, tokens=drawing.tokens, temperature=drawing.temperature, seed=drawing.seed
    )
    entries = map(drawn, steps)
    return Lines(lines(work.work, Lane.SHOWN, lambda off: next(entries, None)))  # noqa: ARG005 - a token is soon drawn


@router.get("/runs/{name}/heads", response_class=Lines)
async def heads(run: Open, work: Doing) -> Lines:
    """Score all heads, a line a layer."""
    layers = iter(range(len(run.layers)))

    def score(off: Event) -> dict[str, Any] | None:
        layer = next(layers, None)
        return None if layer is None else run.scores(layer, off)

    return Lines(lines(work.work, Lane.ASIDE, score))


@router.get("/runs/{name}/thumbnails", response_class=Numbers)
async def thumbnails(run: Open, work: Doing, view: View, layer: Whole, size: Side = 64) -> Numbers:
    """Small pictures of a layer's heads."""
    _require_head(run, layer)
    pictures = await work.run(view, lambda off: run.thumbnails(layer, size, off), Lane.ASIDE)
    return numbers(pictures, "X-Heads", "X-Rows", "X-Columns")


@router.get("/runs/{name}/map", response_class=Numbers)
async def window(
    run: Open,
    work: Doing,
    view: View,
    layer: Place,
    head: Place,
    queries: Range,
    keys: Range,
    block: Block,
) -> Numbers:
    """A window of a head's pattern or of a mean, averaged down to cells of block × block tokens."""
    at = _require_heads(run, layer, head)
    shown = [
        _range(name, given, len(run.tokens))
        for name, given in (("queries", queries), ("keys", keys))
    ]
    _require_cells(block, *shown)
    lane = _lane(quick=run.has_map(*at, shown[0], shown[1], block))
    cells = await work.run(view, lambda off: run.map(*at, shown[0], shown[1], block, off), lane)
    return numbers(cells, "X-Rows", "X-Columns")


@router.get("/runs/{name}/row", response_class=Numbers)
async def row(
    run: Open, work: Doing, view: View, layer: Place, head: Place, query: Whole
) -> Numbers:
    """What a query attends to."""
    at = _require_heads(run, layer, head)
    _require("query", query, len(run.tokens))
    lane = _lane(quick=run.has_row(*at))
    return numbers(await work.run(view, lambda off: run.row(*at, query, off), lane))


@router.get("/runs/{name}/column", response_class=Numbers)
async def column(
    run: Open, work: Doing, view: View, layer: Place, head: Place, key: Whole
) -> Numbers:
    """What attends to a key."""
    at = _require_heads(run, layer, head)
    _require("key", key, len(run.tokens))
    lane = _lane(quick=run.has_column(*at))
    return numbers(await work.run(view, lambda off: run.column(*at, key, off), lane))


@router.get("/runs/{name}/cell")
async def cell(
    run: Open, work: Doing, view: View, layer: Place, head: Place, query: Whole, key: Whole
) -> dict[str, Any]:
    """One weight and its score."""
    at = _require_heads(run, layer, head)
    _require("query", query, len(run.tokens))
    _require("key", key, len(run.tokens))
    lane = _lane(quick=run.has_row(*at))
    return await work.run(view, lambda off: run.cell(*at, query, key, off), lane)


@router.get("/runs/{name}/readouts", response_class=Numbers)
async def readouts(run: Open, work: Doing, view: View, layer: Place, head: Place) -> Numbers:
    """Entropy, distance, weight on the first token and weight received, along the text."""
    at = _require_heads(run, layer, head)
    return numbers(await work.run(view, lambda off: run.readouts(*at, off)))


@router.get("/runs/{name}/steps")
async def steps(
    run: Open,
    work: Doing,
    view: View,
    layer: Whole,
    head: Whole,
    query: Whole,
    first: Whole = 0,
    count: Page = STRONGEST,
    picked: Picked = None,
) -> dict[str, Any]:
    """One query's attention, number by number, for some of its keys."""
    _require_head(run, layer, head)
    _require("query", query, len(run.tokens))
    if picked is not None:
        _require("key", picked, len(run.tokens))
    return await work.run(
        view,
        lambda off: run.steps(layer, head, query, first=first, count=count, picked=picked),  # noqa: ARG005 - it takes milliseconds
        Lane.QUICK,
    )


def _lane(*, quick: bool) -> Lane:
    return Lane.QUICK if quick else Lane.SHOWN


def _training(subject: Subject) -> Training:
    found = subject.training if isinstance(subject, ModelSubject) else None
    if found is None:
        raise MissingError("no training was recorded here; train with --record-every")
    return found


def _model(subject: Subject) -> ModelSubject:
    if not isinstance(subject, ModelSubject):
        raise ExplorerError("this is a recording, which can't be run over another text")
    return subject


def _require(name: str, given: int, count: int) -> None:
    if given >= count:
        raise MissingError(f"there is no {name} {given}; there are 0 … {count - 1}")


def _require_head(run: Run, layer: int, head: int | None = None) -> None:
    _require("layer", layer, len(run.layers))
    if head is not None:
        _require("head", head, len(run.layers[layer].heads))


def _require_heads(run: Run, layer: str, head: str) -> tuple[int | str, int | str]:
    """Check numbers that may stand for a mean."""
    if layer == MEAN:
        if head != MEAN:
            raise ExplorerError("a mean over layers is one over heads too; ask for head=mean")
        return MEAN, MEAN
    _require_head(run, int(layer), None if head == MEAN else int(head))
    return int(layer), MEAN if head == MEAN else int(head)


def _range(name: str, given: str, size: int) -> tuple[int, int]:
    first, stop = map(int, given.split(","))
    if not first < stop <= size:
        raise ExplorerError(f"{name}={given} is no range within 0,{size}")
    return first, stop


def _require_cells(block: int, *spans: tuple[int, int]) -> None:
    if block.bit_count() != 1:
        raise ExplorerError(f"block={block} is no power of two")
    most = max(stop - first for first, stop in spans)
    if most > block * PIXELS:
        raise ExplorerError(
            f"{most} tokens in blocks of {block} are more than {PIXELS} cells; ask for larger "
            "blocks or a smaller window"
        )
