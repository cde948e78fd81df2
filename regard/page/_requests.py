"""What the routes are given and what they answer with: from a request to a computation and back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Annotated, Any, Literal, TypeVar

import torch
from fastapi import Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from regard.page._changes import Report
from regard.page._errors import NAME, PLACE, RANGE, PageError
from regard.page._run import MEAN, Run
from regard.page._work import Lane, ReplacedError, Work, require_wanted
from regard.page.subjects import ModelSubject, Subject
from regard.record import RecordError
from regard.view.tokens import readable, visible

Result = TypeVar("Result")
Name = Annotated[str | None, Header(max_length=64, pattern=NAME)]
Update = Annotated[int, Field(ge=0, le=2**53)]
Whole = Annotated[int, Query(ge=0, le=2**31)]
Place = Annotated[str, Query(pattern=PLACE)]
Range = Annotated[str, Query(pattern=RANGE)]
Seen = Annotated[Literal["weight", "moved", "toward", "without"], Query()]
"""What the entries of a pattern are."""


class Jobs:
    """Computations of one request, cancelled when its client disconnects."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.work: Work = request.app.state.work

    async def run(
        self,
        view: str | None,
        compute: Callable[..., Result],
        *arguments: object,
        lane: Lane = Lane.SHOWN,
        cancel: bool = False,
    ) -> Result:
        """Compute something in a thread; see `Work.run`.

        Args:
            view: the view of the page that asks.
            compute: the computation.
            arguments: of `compute`.
            lane: the queue that it waits in.
            cancel: whether `compute` takes, after its arguments, the event that cancels it.
        """

        def begin(cancelled: Event) -> Result:
            return compute(*arguments, *([cancelled] if cancel else []))

        job = asyncio.ensure_future(self.work.run(view, begin, lane))
        gone = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise ReplacedError("replaced")  # the client has disconnected
            return await job
        finally:
            gone.cancel()
            job.cancel()

    async def _disconnected(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


# Dependencies are coroutines though none awaits: FastAPI runs plain functions in threads, where
# requests overtake each other, and a view's older request could replace its newer one.


async def _subject(request: Request, update: Update | None = None) -> Subject:
    subject: Subject = request.app.state.subject
    if update is None:
        return subject
    model = require_model(subject)
    work: Work = request.app.state.work
    return await work.run(None, lambda _: model.at(update))


CurrentSubject = Annotated[Subject, Depends(_subject)]


async def _run(subject: CurrentSubject, name: str) -> Run:
    try:
        return subject.run(name)
    except KeyError:
        raise PageError("this text is not open any more; open it again", status=404) from None


async def _seen(request: Request, run: Annotated[Run, Depends(_run)], view: Seen = "weight") -> Run:
    """A run in a view; the first time the view of the answer takes a run of the model."""
    if view == run.view:
        return run
    work: Work = request.app.state.work
    return await work.run(None, lambda _: run.seen(view), Lane.SHOWN)


async def _view(x_client: Name = None, x_view: Name = None) -> str | None:
    return None if x_client is None or x_view is None else f"{x_client}/{x_view}"


async def _jobs(request: Request) -> Jobs:
    return Jobs(request)


CurrentRun = Annotated[Run, Depends(_run)]
SeenRun = Annotated[Run, Depends(_seen)]


async def _place(run: CurrentRun, layer: Place, head: Place) -> tuple[int | str, int | str]:
    """Layer and head, of which each may be a mean."""
    if layer == MEAN:
        if head != MEAN:
            raise PageError("a mean over layers is one over heads too; ask for head=mean")
        return MEAN, MEAN
    require_head(run, int(layer), None if head == MEAN else int(head))
    return int(layer), MEAN if head == MEAN else int(head)


async def _query(run: CurrentRun, query: Whole) -> int:
    return require("query", query, len(run.tokens))


async def _key(run: CurrentRun, key: Whole) -> int:
    return require("key", key, len(run.tokens))


CurrentPlace = Annotated[tuple[int | str, int | str], Depends(_place)]
CurrentQuery = Annotated[int, Depends(_query)]
CurrentKey = Annotated[int, Depends(_key)]
CurrentJobs = Annotated[Jobs, Depends(_jobs)]
View = Annotated[str | None, Depends(_view)]


def require_model(
    subject: Subject, otherwise: str = "this is a recording, which can't be run over another text"
) -> ModelSubject:
    if not isinstance(subject, ModelSubject):
        raise PageError(otherwise)
    return subject


def require(name: str, value: int, count: int) -> int:
    if value >= count:
        raise PageError(f"there is no {name} {value}; there are 0 … {count - 1}", status=404)
    return value


def require_head(run: Run, layer: int, head: int | None = None) -> None:
    require("layer", layer, len(run.layers))
    if head is not None:
        require("head", head, len(run.layers[layer].heads))


class Numbers(Response):
    """Response of little-endian float32."""

    media_type = "application/octet-stream"


class Lines(StreamingResponse):
    """Response of JSON lines."""

    media_type = "application/x-ndjson"


def describe(run: Run) -> Response:
    """Describe a run, encoded here: FastAPI would first walk a long text token by token."""
    return JSONResponse(run.describe())


def numbers(tensor: torch.Tensor, *names: str) -> Numbers:
    """Encode a tensor, with its sizes in headers of these names."""
    array = tensor.detach().to("cpu", torch.float32).numpy()
    data = array.astype("<f4", copy=False).tobytes()
    headers = {name: str(size) for name, size in zip(names, tensor.shape, strict=len(names) > 0)}
    return Numbers(data, headers=headers)


def token_entry(step: dict[str, Any]) -> dict[str, Any]:
    """Describe a token that was drawn, or the run over all of them."""
    if "run" in step:
        return {"run": step["run"].describe(), "ended": step["ended"]}
    piece = step["piece"]
    return {"token": step["token"], "text": readable(piece), "label": visible(piece)}


async def lines(
    work: Work, lane: Lane, step: Callable[[Event], dict[str, Any] | None]
) -> AsyncIterator[bytes]:
    """Stream entries as they are computed, each a line of JSON; an error ends the stream.

    Args:
        work: the threads that compute.
        lane: the queue that each entry waits in.
        step: computes the next entry; None after the last.
    """
    while True:
        try:
            entry = await work.run(None, step, lane)
        except ReplacedError:  # the server ends
            return
        except (RecordError, ValueError) as error:
            yield json.dumps({"error": str(error)}).encode() + b"\n"
            return
        if entry is None:
            return
        yield json.dumps(entry).encode() + b"\n"


async def progress_lines(
    work: Work,
    view: str | None,
    compute: Callable[[Report, Event], dict[str, Any]],
    lane: Lane = Lane.BACKGROUND,
) -> AsyncIterator[bytes]:
    """Stream the progress of a long computation as lines of JSON, then its result or error.

    Args:
        work: the threads that compute.
        view: the view of the page that asks.
        compute: the computation. It takes a callback for its progress, with the amount done, the
            total and what is known by then, and an event. Once nobody reads the lines, the callback
            raises `ReplacedError` and the event is set.
        lane: the queue that it waits in.
    """
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def begin(cancelled: Event) -> dict[str, Any]:
        def progress(done: int, total: int, /, **known: Any) -> None:
            require_wanted(cancelled)
            loop.call_soon_threadsafe(reports.put_nowait, {"done": done, "total": total, **known})

        return compute(progress, cancelled)

    job = asyncio.ensure_future(work.run(view, begin, lane))
    report = asyncio.ensure_future(reports.get())
    try:
        while not job.done():
            await asyncio.wait({job, report}, return_when=asyncio.FIRST_COMPLETED)
            if report.done():
                yield json.dumps(report.result()).encode() + b"\n"
                report = asyncio.ensure_future(reports.get())
        while not reports.empty():  # progress that arrived together with the result
            yield json.dumps(reports.get_nowait()).encode() + b"\n"
        result = job.result()
    except ReplacedError:
        return
    except (RecordError, ValueError) as error:
        result = {"error": str(error)}
    finally:
        report.cancel()
        job.cancel()
    yield json.dumps(result).encode() + b"\n"
