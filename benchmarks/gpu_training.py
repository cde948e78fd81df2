"""Training on a GPU: tokens a second against nanoGPT's model, in the same run.

``python -m benchmarks.gpu_training``; with ``--device cpu --setting tiny`` it shows that it runs.

All in bfloat16 where the device multiplies it, with fused AdamW, on the same batches, one model
after the other. The first steps, in which a model is compiled, are not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpt_training import LEARNING_RATE, Setting, Step, batches, operations, ours, trained
from benchmarks.nanogpt import NanoGPT, Update
from benchmarks.report import Report
from regard.gpt.training.hardware import bfloat16, this_machine
from regard.gpt.training.metrics import peak_rate

WARMING = 10  # steps in which a model is compiled, and a GPU reaches its clock
SETTINGS = {
    "tiny": Setting("tiny", 2, 2, 32, 32, 4, 2 * WARMING),
    "small": Setting("GPT-2 small", 12, 12, 768, 1024, 16, 60, vocabulary=50_304),
    "medium": Setting("GPT-2 medium", 24, 16, 1024, 1024, 8, 60, vocabulary=50_304),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    parser.add_argument("--batch", type=int, help="rows, in place of the setting's")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {_name(device)}")
    for name in arguments.setting or ["small", "medium"]:
        setting = SETTINGS[name]
        _table(replace(setting, batch=arguments.batch or setting.batch), device)


def _table(setting: Setting, device: torch.device) -> None:
    report = Report()
    report.table(
        f"training, {setting.name}: {setting.layers} layers of {setting.heads} heads, width "
        f"{setting.dim}, {setting.batch} × {setting.context} tokens",
        *(("model", 20), ("tokens/s", 10), ("× nanoGPT", 10), ("× it compiled", 14)),
        *(("of the peak", 11), ("memory, GB", 10), ("loss", 7)),
    )
    half = bfloat16("auto", this_machine(device), dim=setting.dim).on
    peak = peak_rate(str(device), torch.bfloat16 if half else torch.float32)
    data, rates = batches(setting), dict[str, float]()
    for name, make in _models(setting, device, half=half).items():
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        losses, seconds = trained({name: make()}, data)
        median = statistics.median(seconds[name][WARMING:])
        rates[name] = setting.batch * setting.context / median
        taken = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        plain, compiled = (rates.get(peer) for peer in ("nanoGPT", "nanoGPT, compiled"))
        report.row(
            name,
            f"{rates[name]:,.0f}",
            "" if plain is None else f"{rates[name] / plain:.2f}",
            "" if compiled is None else f"{rates[name] / compiled:.2f}",
            "" if peak is None else f"{operations(setting) * rates[name] / peak:.0%}",
            "" if taken is None else f"{taken / 1e9:.2f}",
            f"{statistics.fmean(losses[name][-WARMING:]):.3f}",
        )


def _models(setting: Setting, device: torch.device, *, half: bool) -> dict[str, Callable[[], Step]]:
    """What makes each model's step, when its turn comes."""

    def nanogpt(*, compiled: bool) -> Step:
        model = NanoGPT(setting.config()).to(device)
        return Update(
            torch.compile(model) if compiled else model,  # type: ignore[arg-type] # still a module
            learning_rate=LEARNING_RATE,
            bfloat16=half,
        )

    return {
        "nanoGPT": partial(nanogpt, compiled=False),
        "nanoGPT, compiled": partial(nanogpt, compiled=True),
        "regard": partial(ours, setting, device, compiled=False),
        "regard, compiled": partial(ours, setting, device, compiled=True),
    }


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


if __name__ == "__main__":
    main()
