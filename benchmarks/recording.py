"""What it costs to record a generation, and to take readouts of it while it runs.

The models are transformers': SmolLM2, where its weights are here, and a small one of its shape, of
which Python's part is larger. The clock is the processor's, so other processes disturb little.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.arguments import take_none
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved
from regard.errors import Error
from regard.record import read_while_running

PROMPT, NEW = 16, 64
READOUTS = (regard.readouts.Received(), regard.readouts.Entropy(), regard.readouts.TopK(8))
TARGETS = {"recorded": 1.1, "three readouts": 1.25}
_SECONDS = 60.0  # of the rounds of a model


def recording(report: Report) -> None:
    """Print the table."""
    if find_spec("transformers") is None:
        print("\nrecording a generation: transformers is not installed")
        return
    report.table(
        f"recording a generation by transformers: {NEW} tokens after {PROMPT}, processor time",
        *(("model", 34), ("ms", 9), ("of the plain one", 16), ("half of the rounds", 18)),
    )
    for name, model in _models():
        ids = torch.arange(PROMPT)[None]
        measured = interleaved(
            _tasks(model, ids), seconds_of_rounds=_SECONDS, clock=time.process_time
        )
        for task, seconds in measured.seconds.items():
            ratio = measured.ratio(task, "plain")
            row = f"{name}, {task}"
            report.row(
                row,
                milliseconds(seconds),
                report.at_most(row, ratio.median, TARGETS.get(task)),
                f"{ratio.low:.2f} to {ratio.high:.2f}",
            )


def _models() -> Iterator[tuple[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    try:
        yield "SmolLM2-135M", regard.models.open("smollm2").module
    except (Error, ModuleNotFoundError) as error:
        print(f"SmolLM2 is not here: {str(error).splitlines()[0]}")
    config = LlamaConfig(
        vocab_size=1009,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    yield "6 layers × 6 heads, 192 channels", LlamaForCausalLM(config).eval()


def _tasks(model: Any, ids: Tensor) -> dict[str, Callable[[], object]]:
    generate = partial(
        model.generate,
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
    )

    def inside(block: Callable[[], Any]) -> object:
        with warnings.catch_warnings(), block() as result:
            warnings.simplefilter("ignore")
            generate()
        return result

    return {
        "plain": generate,
        "recorded": partial(inside, partial(regard.record, model)),
        "three readouts": partial(inside, partial(read_while_running, model, *READOUTS)),
    }


if __name__ == "__main__":
    take_none("benchmarks.recording", "Measure what it costs to record a generation.")
    report = Report()
    recording(report)
    report.summary()
