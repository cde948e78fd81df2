"""Arguments and options that several commands share, without imports of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from regard.cli.parameters import Option
from regard.gpt.config import HAS_READ

__all__ = [
    "SHIPPED",
    "Chat",
    "Device",
    "Dtype",
    "Fetch",
    "Model",
    "NoBos",
    "RecordingFolder",
    "Role",
    "Sort",
    "System",
    "View",
    "Weights",
]

SHIPPED = "the model that comes with regard"

RecordingFolder = Annotated[
    Path | None,
    Option("--recording", help="Show a recording in place of a model.", metavar="DIR", exists=True),
]

Model = Annotated[
    str | None,
    Option(
        help="A language model: its name on the Hugging Face hub, such as "
        "HuggingFaceTB/SmolLM2-135M, a folder, a .gguf file, ollama:NAME, or smollm2; by default "
        f"{SHIPPED}. {HAS_READ}",
        metavar="NAME",
    ),
]

Fetch = Annotated[
    bool,
    Option("--fetch", help="Fetch a model of the hub that is not on this machine yet."),
]

Weights = Annotated[
    str | None,
    Option(
        help="Keep the matrices as int8, of a model of regard, a GPT-2 or one of Llama's shape, or "
        "in the blocks of a GGUF as they are; by default float32.",
        metavar="int8|blocks",
    ),
]

View = Annotated[
    str,
    Option(
        help="What is shown of a key: its weight; what is moved, the weight times the length of "
        "its value; what it adds toward the answer; or weights without the sink.",
        metavar="weight|moved|toward|without",
    ),
]

Dtype = Annotated[
    str | None,
    Option(
        help="Of the weights of another model; by default float32.",
        metavar="float32|bfloat16|float16",
    ),
]

Chat = Annotated[
    bool,
    Option("--chat", help="The text is a message: the model's own template surrounds it."),
]

System = Annotated[str | None, Option(help="With --chat: what the system says.", metavar="TEXT")]

NoBos = Annotated[
    bool,
    Option("--no-bos", help="Leave out the tokens that the tokenizer adds, as for the beginning."),
]

Role = Annotated[str | None, Option(help="List heads of this role alone.", metavar="ROLE")]

Sort = Annotated[
    str | None,
    Option(
        help="Sort heads by score, queries, previous, first, current, induction, duplicate, "
        "spread or distance, the largest first, or by head.",
        metavar="COLUMN",
    ),
]

Device = Annotated[
    str, Option(help="Where to compute: cpu, or an accelerator such as cuda or cuda:1.")
]
