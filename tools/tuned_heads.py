"""Tune SmolLM2 on a part of Python's reference, and say which heads changed on the rest of it.

`python tools/tuned_heads.py FOLDER` reads an atlas of the model, tunes it, reads another over the
same documents and prints their difference. Both atlases stay in the folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

import torch
import torch.nn.functional as F

import regard
from regard.lens import Atlas

SEED = 0
HELD_OUT = 8  # documents whose loss is measured
WARMUP = 10  # updates in which the learning rate rises


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def loss(model: Any, text: str) -> torch.Tensor:
    """Return the mean loss of a text's tokens."""
    ids = torch.tensor(model.read(text).ids)[None]
    return F.cross_entropy(model.module(ids).logits[0, :-1], ids[0, 1:])


def held_out(model: Any, texts: list[str]) -> float:
    """Return the mean loss of some texts that the model is not tuned on."""
    with torch.no_grad():
        return sum(float(loss(model, text)) for text in texts[:HELD_OUT]) / HELD_OUT


def tune(model: Any, texts: list[str], updates: int, rate: float) -> None:
    """Tune all weights, a text an update."""
    model.module.requires_grad_(requires_grad=True)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=rate, weight_decay=0.0)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (update + 1) / WARMUP)
        own = loss(model, texts[update % len(texts)])
        optimizer.zero_grad(set_to_none=True)
        own.backward()
        optimizer.step()
        if update % 10 == 0:
            say(f"update {update}: {float(own.detach()):.3f}")
    optimizer.zero_grad(set_to_none=True)
    model.module.requires_grad_(requires_grad=False)


def main() -> None:
    """Read, tune, read again, and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--characters", type=int, default=2000, help="of a document")
    parser.add_argument("--rate", type=float, default=1e-4)
    chosen = parser.parse_args()
    torch.manual_seed(SEED)
    texts = [text for _, text in sorted(topics.items())]
    size = chosen.characters
    tuned_on = [text[at : at + size] for text in texts[::2] for at in range(0, len(text), size)]
    Random(SEED).shuffle(tuned_on)
    read = [text[:size] for text in texts[1::2]]
    model = regard.models.open(chosen.model)
    atlases: list[Atlas] = []
    for name in ("base", "tuned"):
        if name == "tuned":
            begun = time.process_time()
            tune(model, tuned_on, chosen.updates, chosen.rate)
            say(f"tuned for {(time.process_time() - begun) / 60:.1f} minutes of one core")
        say(f"{name}: held-out loss {held_out(model, read):.3f} nats a token")
        begun = time.process_time()
        atlases.append(regard.lens.atlas(model, read, effects=0.0))
        atlases[-1].save(chosen.folder / name)
        say(f"{atlases[-1]!r} in {(time.process_time() - begun) / 60:.1f} minutes of one core")
    before, after = atlases
    say(str(before.diff(after)))


if __name__ == "__main__":
    main()
