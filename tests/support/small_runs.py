"""Runs of a tiny model that take a second: whole, interrupted, resumed; and what is compared."""

from rich.console import Console

from regard.gpt import GPTConfig, TrainConfig, head_history, load, train
from regard.gpt.training.metrics import read_metrics

TEXT = "the quick brown fox jumps over the lazy dog and does it all again.\n" * 20
# Dropout, accumulation, growing windows, random spans: everything that could depend on the past.
TINY = GPTConfig(context=8, layers=1, heads=2, dim=8, dropout=0.1)
RECIPE = TrainConfig(
    tokenizer="char", steps=9, warmup=2, batch=2, accumulate=2, evaluate_every=2, record_every=3,
    repeats=0.3,
)  # fmt: skip
QUIET = Console(quiet=True)


def go(folder, *, texts=(TEXT,), gpt=TINY, config=RECIPE, console=QUIET, **options):
    return train(folder, texts=texts, gpt=gpt, config=config, console=console, **options)


def resume(folder, *, texts=None, gpt=None, config=None, **options):
    return go(folder, texts=texts, gpt=gpt, config=config, resume=True, **options)


def losses(folder, run="run"):
    timed = {"seconds", "tokens_per_second", "seconds_left", "memory", "share_of_peak"}
    return [
        {name: value for name, value in line.items() if name not in timed}
        for line in read_metrics(folder / run / "metrics.jsonl")
    ]


def weights(folder):
    return load(folder)[0].state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def same_history(one, other):
    one, other = head_history(one), head_history(other)
    return (
        (one.steps, one.tokens, one.roles) == (other.steps, other.tokens, other.roles)
        and one.images.equal(other.images)
        and one.scores.nan_to_num(-1).equal(other.scores.nan_to_num(-1))
    )


def interrupt(folder, step, **options):
    def stop(metrics):
        if metrics.step == step:
            raise KeyboardInterrupt

    assert go(folder, callbacks=[stop], **options).interrupted
