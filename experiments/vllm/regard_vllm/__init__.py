"""A plugin of vLLM: readouts of the attention of requests that ask for them.

``ask`` makes the arguments of a request, ``attach`` has an engine read, ``Answers.take`` gives what
was read of a request. A server gives it on a route of its own; see the README.
"""

from regard_vllm._answer import Answer, AnswerError
from regard_vllm._offline import Answers, attach
from regard_vllm._request import ask

__all__ = ["Answer", "AnswerError", "Answers", "ask", "attach"]
