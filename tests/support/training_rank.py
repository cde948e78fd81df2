"""One rank of a world that trains: it goes through all runs, and ends.

``python training.py RANK SIZE FOLDER RUNS``: RUNS is JSON, a list of arguments for `go`.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch.distributed as dist
from rich.console import Console

from regard.gpt import GPTConfig, TrainConfig, train

TEXT = "the quick brown fox jumps over the lazy dog and does it all again.\n" * 20
# 6 rows, which 3 ranks can't share by passes of two; windows grow, some rows are random spans.
GPT = {"context": 16, "layers": 2, "heads": 2, "dim": 20, "positions": "rotary"}
RECIPE = {"tokenizer": "char", "steps": 7, "warmup": 2, "batch": 2, "accumulate": 3} | {
    "evaluate_every": 3, "clip": 0.5, "weight_decay": 0.5, "precision": "float32", "repeats": 0.3,
}  # fmt: skip


def go(folder, *, stop=0, fails=0, full=0, resume=False, recipe=None, gpt=None):
    """Train; after some updates `stop` as Ctrl-C does, fail, or find the disk full."""

    def interrupt(metrics):
        if metrics.step == stop:
            raise KeyboardInterrupt
        if metrics.step == fails:
            raise LookupError("what a callback may raise")
        if metrics.step == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (99, -1))

    return train(
        folder,
        texts=None if resume else [TEXT],
        gpt=GPTConfig(**GPT | (gpt or {})),
        config=TrainConfig(**RECIPE | (recipe or {})),
        resume=resume,
        console=Console(quiet=True),
        callbacks=[interrupt],
    )


def outcome(task):
    """The result of a task, or its error as text."""
    try:
        return task()
    except Exception as error:  # noqa: BLE001 - all of it is compared
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))


def main(rank, size, folder, runs):
    """Join the world and train."""
    store = dist.FileStore(str(folder / f"store{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    results = []
    for run in runs:
        own = run.pop("ranks", {}).get(str(rank), {})
        result = outcome(lambda args=run | own: go(folder / args.pop("name"), **args))
        if not isinstance(result, str):
            weights = result.model.state_dict()
            result = {name: float(weight.double().norm()) for name, weight in weights.items()}
        results.append(result)
    (folder / f"found{size}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
