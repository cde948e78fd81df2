"""Run every benchmark and print its table."""

from __future__ import annotations

import sys

import torch

from benchmarks.arguments import take_none
from benchmarks.compared import compared
from benchmarks.decode import decode
from benchmarks.dropout import dropout
from benchmarks.effects import effects
from benchmarks.equal_area import equal_area
from benchmarks.exploring import exploring
from benchmarks.gpt_generation import gpt_generation
from benchmarks.gpt_training import gpt_training
from benchmarks.growth import growth
from benchmarks.int8_weights import int8_weights
from benchmarks.isolated import isolated
from benchmarks.lenses import lenses
from benchmarks.live import live
from benchmarks.live_real import live_real
from benchmarks.machine import describe
from benchmarks.monitor import monitor
from benchmarks.overhead import overhead
from benchmarks.readouts import readouts
from benchmarks.recipes import recipes
from benchmarks.recording import recording
from benchmarks.report import Report
from benchmarks.slopes import slopes
from benchmarks.spans import spans
from benchmarks.starting import starting
from benchmarks.training import backward, forward
from regard.backends.native.library import why_missing


def main() -> None:
    """Print the tables, and which targets were met."""
    missing = why_missing()
    if missing is not None:
        sys.exit(f"the kernels are what is measured, but {missing}")
    torch.manual_seed(0)
    describe()
    report = Report()
    kernels = (forward, backward, dropout, slopes, decode, spans, readouts, overhead, growth)
    for measure in (
        starting,
        *kernels,
        equal_area,
        effects,
        lenses,
        recording,
        exploring,
        live,
        live_real,
        gpt_training,
        recipes,
        monitor,
        gpt_generation,
        int8_weights,
    ):
        measure(report)
    isolated(report, compared)  # some of those libraries report leaks when they end
    report.summary()


if __name__ == "__main__":
    take_none("benchmarks", "Run every benchmark and print its table; more than half an hour.")
    main()
