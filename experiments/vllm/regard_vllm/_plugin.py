"""What vLLM calls in each of its processes: it gives workers two methods, and no more."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Let `collective_rpc` reach the reader of a worker; vLLM's group ``vllm.general_plugins``."""
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.regard_attach = attach_worker
    WorkerBase.regard_take = take


def attach_worker(worker: Any) -> None:
    """Have a worker read the requests that ask for it; a second time changes nothing."""
    from regard_vllm._reader import Reader

    if getattr(worker, "regard_reader", None) is None:
        worker.regard_reader = Reader(worker)


def take(worker: Any, name: str, prompt: int, choice: int) -> bytes | None:
    """Hand out an answer, as `Reader.take` does."""
    answer: bytes | None = worker.regard_reader.take(name, prompt, choice)
    return answer
