"""Reading of an engine in one's own program, ``vllm.LLM``."""

from __future__ import annotations

from typing import Any

from regard_vllm._answer import Answer, AnswerError


class Answers:
    """The answers of an engine; made by `attach`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def take(self, output: Any, choice: int = 0) -> Answer:
        """Take what was read of a request; an answer is handed out once.

        Args:
            output: the request's, of ``generate`` or ``chat``.
            choice: which of its outputs, with ``n`` above 1.

        Raises:
            AnswerError: if it was not read, with the reason.
        """
        name = output.request_id
        (data,) = self._engine.collective_rpc("regard_take", args=(name, 0, choice))
        if data is None:
            raise AnswerError(
                f"there is no answer of the request {name!r}, choice {choice}: it asked for "
                "nothing, the answer was taken before, or it went to make room"
            )
        return Answer.from_bytes(data)


def attach(engine: Any) -> Answers:
    """Have an engine read the requests that ask for it.

    Args:
        engine: a ``vllm.LLM``.

    Raises:
        Exception: vLLM's own, with the reason in its text, for an engine whose attention can't be
            read: of several workers, with speculative decoding, or not of vLLM's CPU attention.
    """
    engine.collective_rpc("regard_attach")
    return Answers(engine)
