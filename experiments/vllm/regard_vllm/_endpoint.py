"""The server's route, ``GET /v1/regard/{request}``, of vLLM's group ``vllm.endpoint_plugins``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from regard_vllm._answer import index_of


class AnswerEndpoint:
    """Has the server's engine read the requests that ask for it, and hands out their answers."""

    name = "regard"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the route. It lies below ``/v1``, which the server's key guards, if it has one."""
        app.get("/v1/regard/{request_id}")(answer)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Have the engine read."""
        await engine_client.collective_rpc("regard_attach")
        state.regard_engine = engine_client


async def answer(request: Request, request_id: str, prompt: int = 0, choice: int = 0) -> Response:
    """Hand out an answer, once, as a safetensors file.

    Args:
        request: what came.
        request_id: the ``id`` of the server's response.
        prompt: number of the prompt, of a request with several.
        choice: number of the choice, with ``n`` above 1.
    """
    engine = request.app.state.regard_engine
    (data,) = await engine.collective_rpc("regard_take", args=(request_id, prompt, choice))
    if data is None:
        return _error(404, f"there is no answer of {request_id!r}, or it was handed out before")
    if (error := index_of(data)["error"]) is not None:
        return _error(422, error)
    return Response(data, media_type="application/octet-stream")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)
