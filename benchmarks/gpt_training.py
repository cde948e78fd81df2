"""Training a GPT: tokens a second against nanoGPT's model and transformers', on the same batches.

Each row's model has the same shape and starts anew; all see the same batches in the same order, so
that their losses can be compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from benchmarks.nanogpt import NanoGPT, Update
from benchmarks.report import Report
from regard.backends.native.peak import peak_flops
from regard.gpt import GPT, GPTConfig, TrainConfig, python_texts
from regard.gpt.training.batches import Batch
from regard.gpt.training.hardware import bfloat16, this_machine
from regard.gpt.training.optimizer import make_optimizer
from regard.gpt.training.parallel import SingleProcess
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.train_step import TrainStep

Step = Callable[[Tensor, Tensor], Tensor]

CHARACTERS = 65  # as many as nanoGPT's small corpus has
LEARNING_RATE = 1e-3
AVERAGED_LOSSES = 10  # losses at the end that are averaged
_TURN = 10
"""Updates of a model before the next model's turn; then the machine's peaks are measured again.

As in a run, an update finds the caches as the update before left them.
"""


@dataclass(frozen=True)
class Setting:
    """A shape and a batch."""

    name: str
    layers: int
    heads: int
    dim: int
    context: int
    batch: int
    steps: int
    vocabulary: int = CHARACTERS
    times: tuple[float, float] = (1.0, 1.0)
    """How many times nanoGPT's tokens a second are aimed at, in float32 and in bfloat16."""

    def config(self) -> GPTConfig:
        """The shape of a model, with nothing that nanoGPT's has not."""
        return GPTConfig(
            vocab_size=self.vocabulary,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            dim=self.dim,
            bias=False,
        )


SETTINGS = (
    Setting("small", 4, 4, 128, 64, 12, 200, times=(2.5, 1.0)),
    Setting("large", 6, 6, 384, 256, 12, 30, times=(3.0, 1.5)),
    Setting("default", 4, 4, 128, 512, 8, 100, vocabulary=GPTConfig().vocab_size, times=(3.0, 1.5)),
)


def gpt_training(report: Report) -> None:
    """Print a table for each setting."""
    for setting in SETTINGS:
        _table(report, setting)


def _table(report: Report, setting: Setting) -> None:
    report.table(
        f"training, {setting.name}: {setting.layers} layers of {setting.heads} heads, width "
        f"{setting.dim}, {setting.batch} × {setting.context} characters",
        *(("model", 28), ("tokens/s", 9), ("× nanoGPT f32", 20), ("× its bf16", 20)),
        *(("of peak", 13), ("loss", 7)),
    )
    models = _models(setting)
    peaks: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    losses, seconds = trained(
        {name: step for name, (step, _) in models.items()}, batches(setting), peaks
    )
    plain, half = statistics.median(seconds["nanoGPT"]), statistics.median(seconds["nanoGPT, bf16"])
    for name, (_, dtype) in models.items():
        median = statistics.median(seconds[name])
        # Compiling is an option that is off by default: it is printed, and aimed at nothing.
        aims = setting.times if name == "regard" else (None, None)
        rate = setting.batch * setting.context / median
        share = operations(setting) * rate / statistics.median(peaks[dtype])
        report.row(
            name,
            f"{rate:,.0f}",
            report.at_least(f"{setting.name}, {name}", plain / median, aims[0]),
            report.at_least(f"{setting.name}, {name}, bf16", half / median, aims[1]),
            f"{share:.0%} of {'bf16' if dtype == torch.bfloat16 else 'f32'}",
            f"{statistics.fmean(losses[name][-AVERAGED_LOSSES:]):.3f}",
        )


def trained(
    models: dict[str, Step],
    batches: list[tuple[Tensor, Tensor]],
    peaks: dict[torch.dtype, list[float]],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Train all of them in turns of some updates, and measure the machine's peaks once a turn."""
    losses: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for first in range(0, len(batches), _TURN):
        for dtype, measured in peaks.items():
            measured.append(peak_flops(dtype))
        for name, step in models.items():
            for ids, targets in batches[first : first + _TURN]:
                start = time.perf_counter()
                losses[name].append(step(ids, targets).item())
                seconds[name].append(time.perf_counter() - start)
    return losses, seconds


def _models(setting: Setting) -> dict[str, tuple[Step, torch.dtype]]:
    """What makes an update of each, and in which dtype it multiplies matrices."""
    config, cpu = setting.config(), torch.device("cpu")
    models: dict[str, tuple[Step, torch.dtype]] = {
        name: (Update(NanoGPT(config), learning_rate=LEARNING_RATE, bfloat16=half), dtype)
        for name, half, dtype in (
            ("nanoGPT", False, torch.float32),
            ("nanoGPT, bf16", True, torch.bfloat16),
        )
    }
    if find_spec("transformers") is not None:
        peer = Update(_transformers(config), learning_rate=LEARNING_RATE, bfloat16=False)
        models["transformers"] = peer, torch.float32
    half = bfloat16("auto", this_machine(cpu), dim=setting.dim).on
    dtype = torch.bfloat16 if half else torch.float32
    return models | {
        "regard": (ours(setting, cpu, compiled=False), dtype),
        "regard, compiled": (ours(setting, cpu, compiled=True), dtype),
    }


def _transformers(config: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.context,
        n_layer=config.layers,
        n_head=config.heads,
        n_embd=config.dim,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(shape)  # with SDPA, its default


def ours(setting: Setting, device: torch.device, *, compiled: bool) -> Step:
    """Our update, as `regard train` makes it, with ``--compile on`` or without."""
    recipe = TrainConfig(
        steps=setting.steps, warmup=0, final=1.0, learning_rate=LEARNING_RATE, batch=setting.batch
    )
    model = GPT(setting.config()).to(device)
    half = bfloat16("auto", this_machine(device), dim=setting.dim)
    reason = f"{half.reason}; {'' if compiled else 'not '}compiled"
    print(f"regard: bfloat16 {'on' if half.on else 'off'}, {reason}")
    parallel = SingleProcess(model)
    train_step = TrainStep(
        parallel=parallel,
        ranks=Ranks(),
        optimizer=make_optimizer(model, recipe),
        config=recipe,
        bfloat16=half.on,
        end=None,
        loss=torch.compile(parallel.loss) if compiled else parallel.loss,
    )
    done = count()

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        nowhere = torch.zeros(len(ids), dtype=torch.int64).numpy()
        weights = torch.ones(targets.shape)
        batch = Batch(ids=ids, targets=targets, weights=weights, starts=nowhere, passes=nowhere)
        return train_step(next(done), batch)[0]

    return step


def batches(setting: Setting) -> list[tuple[Tensor, Tensor]]:
    """The batch of each step."""
    return list(islice(_endless(setting), setting.steps))


def _endless(setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows at random places of the language reference, as characters."""
    text = "".join(python_texts("topics"))
    common = sorted(sorted(set(text)), key=text.count, reverse=True)[: CHARACTERS - 1]
    number = {character: i + 1 for i, character in enumerate(common)}
    ids = torch.tensor([number.get(character, 0) for character in text])
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(ids) - setting.context, (setting.batch, 1), generator=generator)
        rows = ids[starts + torch.arange(setting.context + 1)]
        yield rows[:, :-1], rows[:, 1:]


def operations(setting: Setting) -> float:
    """Operations a token of a step takes: forward, and twice as many backward."""
    weights = 12 * setting.layers * setting.dim**2 + setting.vocabulary * setting.dim
    return 6.0 * weights + 6.0 * setting.layers * setting.context * setting.dim
