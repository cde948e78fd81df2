"""Generating with a model of GPT-2's smallest shape, against transformers' generate.

What bounds it: each step of a batch reads every weight once, so the bandwidth that is measured in
the same rounds, in huge pages as the weights have them, gives the most tokens a second that the
machine allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.cases import name_of
from benchmarks.report import Report
from regard.backends.native.peak import peak_bandwidth
from regard.cli.timing import interleaved
from regard.gpt import GPT, Engine, GPTConfig, Sampling, generate
from regard.gpt.model_files import to_huge_pages

PROMPT, NEW = 32, 128
SHARE = 0.9  # of the bandwidth, one sequence at a time
OVER_TRANSFORMERS = 3.0


def gpt_generation(report: Report) -> None:
    """Print the table; the weights are random, the work is the same."""
    report.table(
        f"generation: GPT-2's shape, prompts of {PROMPT} tokens, {NEW} drawn greedily",
        *(("model", 34), ("tokens/s", 9), ("of bandwidth", 18), ("× transformers", 18)),
    )
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        model = GPT(GPTConfig.gpt2("small")).to(dtype).eval()
        to_huge_pages(model)  # as `load` does
        peer = _transformers(dtype)
        for batch in (1, 8):
            _rows(report, model, peer, batch)


def _rows(report: Report, model: GPT, peer: Any, batch: int) -> None:
    ids = torch.randint(model.config.vocab_size, (batch, PROMPT))
    greedy = Sampling(temperature=0.0)
    tasks: dict[str, Callable[[], object]] = {
        "regard": partial(generate, Engine(model), ids, tokens=NEW, sampling=greedy)
    }
    if peer is not None:
        options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
        tasks["transformers"] = partial(peer.generate, ids, **options)
    measured = interleaved(tasks, peak_bandwidth)
    dtype = name_of(model.dtype)
    rates = {name: batch * NEW / taken for name, taken in measured.seconds.items()}
    for name, rate in rates.items():
        row = f"{name}, {dtype}, {batch} at a time"
        ours = name == "regard"
        share = rate / batch * _bytes(model) / measured.limit
        over = rate / rates["transformers"] if "transformers" in rates else float("nan")
        report.row(
            row,
            f"{rate:.1f}",
            report.at_least(row, share, SHARE if ours and batch == 1 else None, ".0%"),
            report.at_least(row, over, OVER_TRANSFORMERS if ours and peer is not None else None),
        )


def _bytes(model: GPT) -> int:
    """What a step reads: all weights, but one row of the positions."""
    assert model.wpe is not None
    read = [p for p in model.parameters() if p is not model.wpe.weight]
    return sum(p.numel() * p.element_size() for p in read)


def _transformers(dtype: torch.dtype) -> Any:
    if find_spec("transformers") is None:
        return None
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(pad_token_id=0)).to(dtype).eval()  # with SDPA, its default
