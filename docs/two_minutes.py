"""Train the reader's GPT on stories: ``python docs/two_minutes.py``, beside ``mine.py``.

It takes the tokenizer of the model that comes with regard, and leaves the trained model in a folder
that `regard explore --model` opens.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from regard.gpt import GPT, GPTConfig, load, save
from regard.gpt.stories import stories

T, E, H, LAYERS, B = 64, 64, 4, 2, 16


def main(updates: int = 1600, folder: str = "runs/mine", count: int = 3000) -> list[float]:
    """Train on so many stories, say what comes of it, and save the model; the loss of each step."""
    sys.path.insert(0, str(Path.cwd()))
    import mine  # the reader's

    _, tokenizer = load()
    ids = torch.tensor(tokenizer.encode("".join(one.text for one in stories(0, count))))
    torch.manual_seed(0)
    model = mine.GPT(tokenizer.vocab_size, T, E, H, LAYERS)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = mine.batch(ids, torch.randint(len(ids) - T, (B,)), T)
        return inputs, targets

    losses: list[float] = []
    start = time.process_time()
    for rate in (3e-3, 2e-3, 1e-3, 3e-4):
        losses += mine.train(model, draw, updates // 4, lr=rate)
    spent = time.process_time() - start
    print(f"{len(losses)} updates in {spent:.0f} seconds of one core")
    print(f"loss {losses[0]:.1f} at first and {losses[-1]:.1f} at last")
    begin = torch.tensor(tokenizer.encode("Anna had a"))[None]
    text = mine.generate(model.eval(), begin, T - begin.shape[1], temperature=0.5)[0]
    print(tokenizer.decode(text.tolist()))

    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, context=T, layers=LAYERS, heads=H, dim=E, dropout=0.0
    )
    theirs = GPT(config)
    theirs.load_state_dict(model.state_dict())
    save(folder, theirs, tokenizer, overwrite=True)
    print(f"regard explore --model {folder}")
    return losses


if __name__ == "__main__":
    main()
