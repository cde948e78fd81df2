"""What the routes are given and what they answer with: from a request to a computation and back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Annotated, Any, TypeVar

import torch
from fastapi import Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

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


class Jobs:
    """Computations of one request: cancelled when its sender hangs up."""

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
            view: what it is for.
            compute: does it.
            arguments: of `compute`.
            lane: what it may have to wait for.
            cancel: whether `compute` takes, after its arguments, the event that cancels it.
        """

        def begin(cancelled: Event) -> Result:
            return compute(*arguments, *([cancelled] if cancel else []))

        job = asyncio.ensure_future(self.work.run(view, begin, lane))
        hang_up = asyncio.ensure_future(self._hang_up())
        try:
            await asyncio.wait({job, hang_up}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise ReplacedError("replaced")  # the sender has hung up
            return await job
        finally:
            hang_up.cancel()
            job.cancel()

    async def _hang_up(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


# These are coroutines though none waits: in threads, requests would overtake each other, and the
# older of a view would replace the newer.


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


async def _view(x_client: Name = None, x_view: Name = None) -> str | None:
    return None if x_client is None or x_view is None else f"{x_client}/{x_view}"


async def _jobs(request: Request) -> Jobs:
    return Jobs(request)


CurrentRun = Annotated[Run, Depends(_run)]


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
    """Numbers in bulk."""

    media_type = "application/octet-stream"


class Lines(StreamingResponse):
    """JSON, line by line."""

    media_type = "application/x-ndjson"


def describe(run: Run) -> Response:
    """Describe a run, as JSON at once: FastAPI goes through a long text token by token first."""
    return JSONResponse(run.describe())


def numbers(tensor: torch.Tensor, *names: str) -> Numbers:
    """Send numbers, with their shape in headers."""
    array = tensor.detach().to("cpu", torch.float32).numpy()
    data = array.astype("<f4", copy=False).tobytes()
    headers = {name: str(size) for name, size in zip(names, tensor.shape, strict=len(names) > 0)}
    return Numbers(data, headers=headers)


def token_entry(step: dict[str, Any]) -> dict[str, Any]:
    """Describe a token that was drawn, or the run over all of them."""
    if "run" in step:
        return {"run": step["run"].describe()}
    piece = step["piece"]
    return {"token": step["token"], "text": readable(piece), "label": visible(piece)}


async def lines(
    work: Work, lane: Lane, step: Callable[[Event], dict[str, Any] | None]
) -> AsyncIterator[bytes]:
    """Send entries as they are computed, each a line of JSON; an error is the last of them.

    Args:
        work: computes.
        lane: what each entry may have to wait for.
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
    compute: Callable[[Callable[[int, int], None], Event], dict[str, Any]],
    lane: Lane = Lane.BACKGROUND,
) -> AsyncIterator[bytes]:
    """Send how far a long computation is, a line of JSON each, and at last its result or error.

    Args:
        work: computes.
        view: what it is for.
        compute: does it; it calls the first that it is given with how much is done, and of how
            much. Once nobody reads the lines, that raises `ReplacedError`, and the second, an
            event, is set.
        lane: what it may have to wait for.
    """
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def begin(cancelled: Event) -> dict[str, Any]:
        def progress(done: int, total: int) -> None:
            require_wanted(cancelled)
            loop.call_soon_threadsafe(reports.put_nowait, {"done": done, "total": total})

        return compute(progress, cancelled)

    job = asyncio.ensure_future(work.run(view, begin, lane))
    report = asyncio.ensure_future(reports.get())
    try:
        while not job.done():
            await asyncio.wait({job, report}, return_when=asyncio.FIRST_COMPLETED)
            if report.done():
                yield json.dumps(report.result()).encode() + b"\n"
                report = asyncio.ensure_future(reports.get())
        while not reports.empty():  # what came together with the result
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
