"""Train a GPT at a rate that is too high, and compare when an alarm comes and when the loss rises.

`python docs/collapse.py 3` prints the table of monitor.md, for the seeds 0 to 2, and draws its
picture. Each run has its learning rate rise to 0.3 over 600 updates, of 900: as it is, with
queries and keys normalised, and with QK-clip.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pages import FOLDER
from torch import Tensor

import regard
from regard.gpt import GPT, GPTConfig, python_texts

if TYPE_CHECKING:
    from regard.lens.monitor import QKClip

UPDATES, WARMUP, RATE = 900, 600, 0.3
BATCH, CONTEXT = 16, 32
EVERY = 10
BOUND = 100.0  # of the alarm, and of QK-clip
WINDOW, MARGIN = 20, 0.2
"""The loss rises where its mean over so many updates is so far above the lowest until then."""
PICTURE = FOLDER / "pictures" / "monitor.png"
WAYS = ("as it is", "QK-norm", "QK-clip")


@dataclass(frozen=True)
class Run:
    """What came of a training run."""

    losses: Tensor
    monitor: regard.Monitor

    @property
    def alarm(self) -> int | None:
        """The update of the first alarm."""
        return self.monitor.alerts[0].update if self.monitor.alerts else None

    @property
    def rise(self) -> int | None:
        """The update at which the loss rises."""
        means = self.losses.unfold(0, WINDOW, 1).mean(dim=1)
        above = means > means.cummin(dim=0).values + MARGIN
        return int(above.nonzero()[0]) + WINDOW - 1 if above.any() else None


def train(seed: int, way: str) -> Run:
    """Train on batches of Python's language reference, the same in each way."""
    text = "".join(python_texts("topics"))[:300_000]
    ids = torch.tensor([min(ord(character), 127) for character in text])
    torch.manual_seed(seed)
    shape = {"layers": 2, "heads": 2, "dim": 32, "context": CONTEXT, "vocab_size": 128}
    model = GPT(GPTConfig(**shape, bias=False, qk_norm=way == "QK-norm"))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    every = 1 if way == "QK-clip" else EVERY
    alarms = [regard.lens.Alarm("max_logit", above=BOUND)]
    monitor = regard.Monitor(model, every=every, alarms=alarms)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for number in range(UPDATES):
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1), generator=generator)
        rows = ids[starts + torch.arange(CONTEXT + 1)]
        with monitor.update(number):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (number + 1) / WARMUP)
        optimizer.step()
        optimizer.zero_grad()
        if way == "QK-clip":
            clip(model, monitor.qk_clip(BOUND))
        losses.append(loss.item())
    return Run(torch.tensor(losses), monitor)


@torch.no_grad()
def clip(model: GPT, layers: tuple[QKClip, ...]) -> None:
    """Multiply the weights of queries and keys by the factors of QK-clip."""
    for layer in layers:
        attention = model.get_submodule(layer.name)
        query, key, _ = attention.c_attn.weight.split(attention.widths)
        query.unflatten(0, (attention.heads, -1)).mul_(layer.query[:, None, None])
        key.unflatten(0, (attention.groups, -1)).mul_(layer.key[:, None, None])


def draw(run: Run) -> None:
    """Draw the largest score of each head, and when the loss rises."""
    figure = run.monitor.plot("max_logit")
    if run.rise is not None:
        axes, column = figure.axes[0], run.rise / EVERY
        axes.axvline(column, color="white", linewidth=2)
        axes.axvline(column, color="#24292f", linewidth=1, linestyle=(0, (4, 3)))
        label = {"ha": "center", "fontsize": 8, "annotation_clip": False}
        axes.annotate("the loss rises", (column, -0.62), **label)
    figure.savefig(PICTURE)


def main(seeds: int) -> None:
    """Print the table."""
    warnings.simplefilter("ignore", regard.lens.monitor.AlarmWarning)
    print("seed  way        first alarm  loss rises  lowest loss  last loss  largest score")
    for seed in range(seeds):
        for way in WAYS:
            run = train(seed, way)
            means = run.losses.unfold(0, WINDOW, 1).mean(dim=1)
            largest = float(run.monitor.values("max_logit").max())
            print(
                f"{seed:4}  {way:9}  {run.alarm!s:>11}  {run.rise!s:>10}  {means.min():11.2f}  "
                f"{means[-1]:9.2f}  {largest:13,.0f}",
                flush=True,
            )
            if (seed, way) == (0, "as it is"):
                draw(run)


if __name__ == "__main__":
    main(int(sys.argv[1]))
