"""SmolLM2-135M beside llama.cpp and transformers, of one file: ``python -m benchmarks.one_file``.

The file has Q4_1; llama.cpp converts it to Q8_0 and to float16. Ours multiplies the blocks as they
are. That it is right is shown by the same blocks dequantised; that llama.cpp agrees, token after
token of a text that both are given, stands beside it: it rounds its inputs to 8 bits, we to 16.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.arguments import take_none
from benchmarks.llama_decoder import LlamaDecoder, convert, ends_by_signal
from benchmarks.machine import describe
from benchmarks.report import Report
from regard import readouts
from regard.backends.native.library import why_missing
from regard.cli.timing import interleaved
from regard.errors import Error
from regard.gpt import GPT, Engine, GPTCache, Sampling, generate
from regard.models import open as open_model
from regard.models.pretrained import load_gguf
from regard.models.sources import find
from regard.pattern.readout import Readout

PROMPT, NEW, LONG, FORCED = 32, 128, 512, 192
THREADS = (1, 2)
TARGETS = {1: 1.1, 8: 1.5}
"""Of each batch: how many times llama.cpp's tokens a second ours are to reach."""
READING = 1.15
"""How many times a plain step one with readouts may take."""
TEXT = (
    "The lighthouse on the cape had been dark for eleven years when the harbour council voted to "
    "light it again. "
)
GREEDY = Sampling(temperature=0.0)


class _File(NamedTuple):
    kind: str
    path: Path
    model: GPT
    signal: int
    """What ends a process of llama.cpp that reads it; 0 where that generates."""

    def tasks(
        self, stack: ExitStack, ids: Tensor, tokens: int, threads: int
    ) -> dict[str, Callable[[], object]]:
        """How llama.cpp continues prompts; nothing where it can't."""
        if self.signal:
            return {}
        sequences, length = ids.shape
        decoder = LlamaDecoder(
            self.path,
            sequences=sequences,
            tokens=length + tokens,
            threads=threads,
            half_cache=True,
        )
        return {"llama.cpp": partial(stack.enter_context(decoder).generate, ids, tokens)}


def main() -> None:
    """Print the tables, or one line where a part is missing."""
    absent = [name for name in ("llama_cpp", "gguf", "transformers") if find_spec(name) is None]
    if absent:
        print(f"SmolLM2 is not measured: {' and '.join(absent)} can't be imported here")
        return
    missing = why_missing()
    if missing is not None:
        sys.exit(f"the kernels are what is measured, but {missing}")
    try:
        path = find("smollm2").path
    except Error as error:
        print(f"SmolLM2 is not measured: {str(error).splitlines()[0]}")
        return
    assert path is not None, "it is no model that comes with regard"
    describe()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("q4_1", "q8_0", "f16"):
            own = path if kind == "q4_1" else convert(path, Path(folder) / f"{kind}.gguf", kind)
            model = open_model(str(own), weights="blocks")
            assert isinstance(model.module, GPT), "blocks are those of a GPT"
            file = _File(kind, own, model.module, ends_by_signal(own))
            agreement(report, file, torch.tensor(model.read(TEXT * 12).ids[:FORCED]))
            for threads in THREADS:
                torch.set_num_threads(threads)
                generation(report, file, threads)
                prompts(report, file, threads)
                if kind == "q4_1":
                    reading(report, model.module, threads)
    report.summary()


def agreement(report: Report, file: _File, given: Tensor) -> None:
    """Print how far logits are from those of the dequantised blocks, the same tokens given."""
    report.table(
        f"agreement, {file.kind}: {len(given)} tokens given one after another, logits beside "
        "those of the dequantised blocks",
        *(("logits", 34), ("furthest, of their spread", 26), ("same likeliest", 15)),
    )
    exact = open_model(str(file.path)).as_gpt().module
    with torch.inference_mode():
        expected = exact(given)
        engine, cache = Engine(file.model), GPTCache(file.model.config)
        ours = torch.stack([engine.next_logits(token[None], cache) for token in given])
    pairs = {"regard, blocks": (ours, expected)}
    if not file.signal:
        with LlamaDecoder(
            file.path, sequences=1, tokens=len(given), threads=1, half_cache=False
        ) as decoder:
            theirs = decoder.logits(given)
        pairs |= {"llama.cpp": (theirs, expected), "regard beside llama.cpp": (ours, theirs)}
    for name, (one, other) in pairs.items():
        apart = ((one - other).abs().amax(-1) / other.std(-1)).max()
        same = (one.argmax(-1) == other.argmax(-1)).float().mean()
        report.row(name, f"{apart:.4f}", f"{same:.1%}")
    _name_missing(report, file)


def generation(report: Report, file: _File, threads: int) -> None:
    """Print tokens a second beside llama.cpp."""
    report.table(
        f"generation, {file.kind}; {threads} threads: prompts of {PROMPT} tokens, {NEW} drawn "
        "greedily",
        *(("model", 34), ("tokens/s", 9), ("× llama.cpp", 18)),
    )
    for batch, target in TARGETS.items():
        ids, engine = _drawn(file.model, batch, PROMPT), Engine(file.model)
        with ExitStack() as stack:
            tasks: dict[str, Callable[[], object]] = {
                "regard": partial(generate, engine, ids, tokens=NEW, sampling=GREEDY),
                **file.tasks(stack, ids, NEW, threads),
            }
            _rows(report, tasks, batch * NEW, f", {batch} at a time", {"llama.cpp": target})
    _name_missing(report, file)


def prompts(report: Report, file: _File, threads: int) -> None:
    """Print tokens a second of a long prompt beside llama.cpp and transformers."""
    report.table(
        f"prompt, {file.kind}; {threads} threads: {LONG} tokens read, the logits of the last",
        *(("model", 34), ("tokens/s", 9), ("× the other", 18)),
    )
    ids, engine = _drawn(file.model, 1, LONG), Engine(file.model)
    with ExitStack() as stack:
        tasks: dict[str, Callable[[], object]] = {
            "regard": lambda: engine.next_logits(ids, GPTCache(file.model.config)),
            **file.tasks(stack, ids, 1, threads),
        }
        if file.kind == "q4_1":
            for dtype in (torch.bfloat16, torch.float32):
                name = f"transformers, {str(dtype).removeprefix('torch.')}"
                tasks[name] = partial(_read_by_transformers, _transformers(file.path, dtype), ids)
        _rows(report, tasks, LONG, "", {"transformers, bfloat16": 1.0})
    _name_missing(report, file)


def reading(report: Report, model: GPT, threads: int) -> None:
    """Print what a step with readouts takes, times a plain one."""
    report.table(
        f"readouts, {threads} threads: received, entropy and top-8 of every layer at every step",
        *(("keys before", 34), ("× a plain step", 18)),
    )
    read: list[Readout[Any, Any]] = [readouts.Received(), readouts.Entropy(), readouts.TopK(8)]
    for before in (PROMPT, LONG):
        ids = _drawn(model, 1, before)
        tasks = {
            name: partial(generate, engine, ids, tokens=NEW, sampling=GREEDY)
            for name, engine in {"plain": Engine(model), "read": Engine(model, read=read)}.items()
        }
        taken = interleaved(tasks).ratio("read", "plain").median
        report.row(f"{before}", report.at_most(f"{before} keys", taken, READING))


def _drawn(model: GPT, batch: int, tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, tokens), generator=generator)


def _transformers(file: Path, dtype: torch.dtype) -> Any:
    return load_gguf(file, dtype=dtype, device="cpu", blocks=False)[0]


@torch.inference_mode()
def _read_by_transformers(model: Any, ids: Tensor) -> object:
    return model(ids, use_cache=True, logits_to_keep=1)


def _name_missing(report: Report, file: _File) -> None:
    if file.signal:
        report.row("llama.cpp", f"not measured: llama.cpp ended by signal {file.signal}")


def _rows(
    report: Report,
    tasks: Mapping[str, Callable[[], object]],
    tokens: int,
    suffix: str,
    targets: Mapping[str, float],
) -> None:
    """Print tokens a second of each task, and how many times another's ours are."""
    measured = interleaved(tasks)
    for name, seconds in measured.seconds.items():
        row, cell = f"{name}{suffix}", ""
        if name != "regard":
            times = measured.ratio(name, "regard").median
            cell = report.at_least(f"× {row}", times, targets.get(name))
        report.row(row, f"{tokens / seconds:.1f}", cell)


if __name__ == "__main__":
    take_none("benchmarks.one_file", "Measure SmolLM2 beside llama.cpp, all of one file.")
    main()
