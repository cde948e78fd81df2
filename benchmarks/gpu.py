"""Attention, readouts and a GPT on a GPU, from a checkout: ``python -m benchmarks.gpu``.

Parts that each end within ten minutes, in this order unless some are named: ``checks`` (the tests
of CUDA, and every readout and backend against float64), ``readouts`` (beside the flash forward and
beside other ways to them), ``memory`` (at 131,072 tokens), ``training`` and ``generation`` (beside
nanoGPT's model). What fails is printed at once, and the next row follows.

``gpu.json`` and ``gpu.md`` in the folder ``--out`` have every number; further parts are added to
them. The exit status is 1 if anything failed. It needs torch, with the Triton that comes with it;
the tests need pytest and hypothesis too. With ``--tiny --device cpu`` every part is tried out on a
CPU, at sizes that say nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu_result import Result
from regard_experiments.gpu import hardware

PARTS = ("checks", "readouts", "memory", "training", "generation")
SECONDS = 540.0  # of a part, so that one ends within ten minutes with its last row


def main() -> None:
    """Run the parts; exit with 1 if something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; all of them by default")
    parser.add_argument("--out", type=Path, default=Path("gpu-result"), help="a folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that all runs")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="at most, of each part")
    arguments = parser.parse_args()
    for name in arguments.part:
        if name not in PARTS:
            parser.error(f"{name!r} is not a part; expected {', '.join(PARTS)}")
    _require_gpu(arguments.device)
    result = Result(arguments.out, torch.device(arguments.device), arguments.seconds)
    parts = _parts(tiny=arguments.tiny)
    for name in arguments.part or PARTS:
        with result.part(name):
            parts[name](result, torch.device(arguments.device))
    print(f"\n{arguments.out / 'gpu.md'}, {arguments.out / 'gpu.json'}")
    if result.failures:
        sys.exit("\n".join(["failed:", *result.failures]))


def _require_gpu(device: str) -> None:
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
        return
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and torch finds none that it can use through CUDA")
    missing = hardware.why_no_triton()
    if missing is not None:
        sys.exit(f"the readouts in Triton are what is measured, but {missing}")


def _parts(*, tiny: bool) -> dict[str, Callable[[Result, torch.device], None]]:
    from benchmarks import gpu_checks, gpu_memory, gpu_models, gpu_readouts

    settings = gpu_models.TINY if tiny else gpu_models.SETTINGS
    shapes = gpu_readouts.TINY if tiny else gpu_readouts.SHAPES
    long = gpu_memory.TINY if tiny else gpu_memory.LONG
    return {
        "checks": lambda result, device: gpu_checks.checks(result, device, tiny=tiny),
        "readouts": lambda result, device: gpu_readouts.readouts(result, shapes, device),
        "memory": lambda result, device: gpu_memory.memory(result, long, device),
        "training": lambda result, device: gpu_models.training(result, settings, device),
        "generation": lambda result, device: gpu_models.generation(result, settings, device),
    }


if __name__ == "__main__":
    main()
