"""Training and generation on a GPU, beside nanoGPT's model in the same run.

All in bfloat16 where the device multiplies it, with fused AdamW, on the same batches, one model
after the other. The first steps, in which a model is compiled, are not counted. Nothing is read
from the device between two steps, of either model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from benchmarks.gpt_training import LEARNING_RATE, Setting, Step, batches, operations, ours
from benchmarks.gpu_clock import finish, one
from benchmarks.gpu_result import Result
from benchmarks.nanogpt import NanoGPT, Update
from regard.gpt import GPT, Sampling, generate
from regard.gpt.training.hardware import bfloat16, this_machine
from regard.gpt.training.metrics import peak_rate

WARMING = 10  # steps in which a model is compiled, and a GPU reaches its clock
TIMED = 10  # steps that are timed as one, so that none is waited for
SETTINGS = (
    Setting("GPT-2 small", 12, 12, 768, 1024, 16, 60, vocabulary=50_304),
    Setting("GPT-2 medium", 24, 16, 1024, 1024, 8, 60, vocabulary=50_304),
)
TINY = (Setting("tiny", 2, 2, 32, 32, 4, WARMING + TIMED),)
PROMPT, NEW = 64, 256


def training(result: Result, settings: tuple[Setting, ...], device: torch.device) -> None:
    """Measure tokens a second, memory and the loss at the end."""
    for setting in settings:
        half = bfloat16("auto", this_machine(device), dim=setting.dim).on
        peak = peak_rate(str(device), torch.bfloat16 if half else torch.float32)
        data = batches(setting)
        result.table(
            f"Training, {setting.name}: {setting.layers} layers of {setting.heads} heads, width "
            f"{setting.dim}, {setting.batch} × {setting.context} tokens",
            *("model", "tokens/s", "× nanoGPT", "× nanoGPT compiled", "of the peak", "GB", "loss"),
        )
        rates: dict[str, float] = {}
        for name, make in _steps(setting, device, half=half).items():
            if not result.has_time(f"{name}, {setting.name}"):
                continue
            with result.attempt(f"training {name}, {setting.name}"):
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats(device)
                taken, loss = _trained(make(), data)
                rates[name] = setting.batch * setting.context / taken
                plain, compiled = (rates.get(n) for n in ("nanoGPT", "nanoGPT, compiled"))
                result.row(
                    name,
                    rates[name],
                    None if plain is None else rates[name] / plain,
                    None if compiled is None else rates[name] / compiled,
                    None if peak is None else operations(setting) * rates[name] / peak,
                    _memory(device),
                    loss,
                )


def _trained(step: Step, data: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Seconds of a step, the median of several runs of steps, and the mean of the last losses."""
    stream = iter(data)
    losses = [step(*batch) for batch in islice(stream, WARMING)]
    times = []
    while some := list(islice(stream, TIMED)):
        finish()
        started = time.perf_counter()
        losses += [step(*batch) for batch in some]
        finish()
        times.append((time.perf_counter() - started) / len(some))
    return statistics.median(times), torch.stack(losses[-TIMED:]).mean().item()


def _memory(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None


def _steps(setting: Setting, device: torch.device, *, half: bool) -> dict[str, Callable[[], Step]]:
    """What makes each model's step, when its turn comes."""

    def nanogpt(*, compiled: bool) -> Step:
        model: nn.Module = NanoGPT(setting.config()).to(device)
        if compiled:
            model.compile()
        return Update(model, learning_rate=LEARNING_RATE, bfloat16=half)

    makers: dict[str, Callable[[], Step]] = {
        "nanoGPT": partial(nanogpt, compiled=False),
        "nanoGPT, compiled": partial(nanogpt, compiled=True),
        "regard": partial(ours, setting, device, compiled=False),
        "regard, compiled": partial(ours, setting, device, compiled=True),
    }
    if device.type == "cuda":
        return makers
    return {name: make for name, make in makers.items() if "compiled" not in name}


def generation(result: Result, settings: tuple[Setting, ...], device: torch.device) -> None:
    """Measure tokens a second, greedily; nanoGPT's model reads the whole text at each."""
    greedy = Sampling(temperature=0.0)
    for setting in settings:
        prompt, new = min(PROMPT, setting.context // 4), min(NEW, setting.context // 2)
        result.table(
            f"Generation, {setting.name}: prompts of {prompt} tokens, {new} drawn greedily",
            *("model", "sequences", "tokens/s", "× nanoGPT"),
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        peer = NanoGPT(setting.config()).to(device, dtype).eval()
        model = GPT(setting.config()).to(device, dtype).eval()
        for batch in (1, 16):
            ids = torch.randint(setting.vocabulary, (batch, prompt), device=device)
            tasks = {
                "nanoGPT": partial(_by_nanogpt, peer, ids, new),
                "regard": partial(generate, model, ids, tokens=new, sampling=greedy),
            }
            rates: dict[str, float] = {}
            for name, task in tasks.items():
                if result.has_time(f"{name}, {batch} at a time, {setting.name}"):
                    with result.attempt(f"generation by {name}, {setting.name}"):
                        task()
                        rates[name] = batch * new / min(one(task) for _ in range(2))
                        peers = rates.get("nanoGPT")
                        result.row(name, batch, rates[name], peers and rates[name] / peers)


@torch.no_grad()
def _by_nanogpt(model: NanoGPT, ids: Tensor, new: int) -> Tensor:
    """Generate as nanoGPT does, without a cache: every step computes all positions."""
    for _ in range(new):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    return ids
