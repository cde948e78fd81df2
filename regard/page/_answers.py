"""What the explorer's interface answers with: numbers in bulk, JSON, and JSON line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import TYPE_CHECKING, Any

import torch
from fastapi.responses import JSONResponse, Response, StreamingResponse

from regard.page._work import Lane, ReplacedError, require_wanted
from regard.record import RecordError
from regard.view.tokens import readable, visible

if TYPE_CHECKING:
    from regard.page._run import Run
    from regard.page._work import Work

__all__ = ["Lines", "Numbers", "describe", "lines", "numbers", "progress_lines", "token_entry"]


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
