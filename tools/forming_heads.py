"""Train a small model on stories, and say at which update its heads form, over held-out stories.

`python tools/forming_heads.py FOLDER` trains with the recipe of the model that comes with the
package, smaller and shorter, reads an atlas at each checkpoint, and prints the scores with their
intervals and what changed from one to the next.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import regard
from model import FIRST, RECIPE, SHAPE
from regard.gpt import train
from regard.gpt.stories import corpus, stories

CHARACTERS, HELD_OUT, CUT = 2_000_000, 24, 400  # of the text; stories that are read, and how far
SCORES = ("previous_token", "duplicate_token", "induction")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train, read each checkpoint, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=2400)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    every = chosen.updates // 4
    begun = time.process_time()
    shape = replace(SHAPE, vocab_size=512, layers=2, heads=4, dim=64, context=256)
    recipe = replace(
        RECIPE, steps=chosen.updates, warmup=100, evaluate_every=every, keep_every=every
    )
    texts = corpus(seed=FIRST, characters=CHARACTERS)
    train(chosen.folder, texts=texts, gpt=shape, config=recipe, overwrite=True)
    say(f"trained in {(time.process_time() - begun) / 60:.1f} minutes of one core")
    read = [one.text[:CUT] for one in stories(0, HELD_OUT)]
    before = None
    for checkpoint in sorted(chosen.folder.rglob("checkpoints/*")):
        model = regard.models.open(checkpoint)
        atlas = regard.lens.atlas(model, read, effects=0.0)
        say(f"{checkpoint.name}: head, role, {', '.join(SCORES)}")
        for row in atlas.rows:
            scores = (f"{row[name]:.2f} ± {row[f'{name}_margin']:.2f}" for name in SCORES)
            say(f"{row['layer']}.{row['head']}  {row['role']:<17} {'  '.join(scores)}")
        if before is not None:
            say(str(before.diff(atlas)))
        before = atlas


if __name__ == "__main__":
    main()
