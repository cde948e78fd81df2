"""Training: it learns, it keeps its word on rates, seeds and decay, and it survives Ctrl-C."""

from __future__ import annotations

import io
import json
import math
import re
import signal
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rich.console import Console
from support.small_runs import TEXT, go, same

from regard.errors import Error
from regard.gpt import (
    GPT,
    BPETokenizer,
    CheckpointError,
    GPTConfig,
    Sampling,
    TrainConfig,
    evaluate,
    generate,
    learning_rate,
    load,
    load_training,
    open_corpus,
    recipe_of,
    split_texts,
)
from regard.gpt.errors import DivergedError
from regard.gpt.training.batches import Batches
from regard.gpt.training.optimizer import Optimizers
from regard.gpt.training.schedule import context_length

TINY = GPTConfig(context=16, layers=2, heads=2, dim=32, dropout=0.0)


def brief(**changes):
    options = {"tokenizer": "char", "steps": 6, "warmup": 2, "batch": 4, "evaluate_every": 3}
    return TrainConfig(**(options | {"ramp": 0.0, "repeats": 0.3} | changes))


def run(folder, *, gpt=TINY, config=None, **options):
    return go(folder, gpt=gpt, config=config or brief(), **options)


def files_in(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_tiny_run_memorizes_its_text(tmp_path):
    config = brief(
        steps=150, warmup=10, batch=16, learning_rate=1e-2, repeats=0.0, evaluate_every=75
    )
    result = run(tmp_path / "m", config=config)
    assert result.record["validation_loss"] < 0.35  # guessing: ln 29 = 3.4
    ids = torch.tensor(result.tokenizer.encode("the quick "))
    more = generate(result.model, ids, tokens=57, sampling=Sampling(temperature=0.0)).tolist()
    assert result.tokenizer.decode(more) == TEXT[:67]


def test_the_loss_of_a_focused_update_is_the_mean_by_weights(tmp_path):
    config = brief(
        steps=1, warmup=0, learning_rate=1e-12, focus=1.0, repeats=0.3, precision="float32"
    )
    seen = []
    result = run(tmp_path / "m", config=config, callbacks=[seen.append])
    corpus = open_corpus(tmp_path / "m" / "run" / "corpus")
    batch = Batches(
        tokens=corpus.training,
        context=TINY.context,
        vocab_size=corpus.tokenizer.vocab_size,
        config=config,
    ).batch(0)
    assert len(batch.weights.unique()) > 1
    with torch.no_grad():
        logits = result.model(batch.ids)
    losses = torch.nn.functional.cross_entropy(logits.mT, batch.targets, reduction="none")
    expected = (losses * batch.weights).sum() / batch.weights.sum()
    # The learning rate is as good as none, so the model is still the one that the update met.
    assert seen[0].loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_learning_rate_rises_then_falls_along_a_cosine():
    config = TrainConfig(steps=103, warmup=3, learning_rate=2.0, final=0.25)
    rates = [learning_rate(step, config) for step in range(103)]
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert rates[-1] == pytest.approx(0.5)
    assert rates[2 + 50] == pytest.approx(1.25)  # halfway in time, halfway in height
    assert rates[2 + 25] == pytest.approx(0.5 + 1.5 * (1 + math.cos(math.pi / 4)) / 2)
    assert all(later < earlier for earlier, later in pairwise(rates[2:]))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (5, 0), (5, 5), (2, 1)])
def test_the_learning_rate_at_the_edges(steps, warmup):
    config = TrainConfig(steps=steps, warmup=warmup, learning_rate=1.0, final=0.1)
    rates = [learning_rate(step, config) for step in range(steps)]
    assert max(rates) == pytest.approx(1.0)
    assert min(rates) >= 0.1


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_embeddings_learn_at_a_rate_of_their_own(tmp_path, optimizer):
    config = brief(steps=1, warmup=0, weight_decay=0.0, optimizer=optimizer, learning_rate=0.01)
    before, slow, fast = (
        run(tmp_path / name, config=replace(config, **changes)).model.state_dict()
        for name, changes in (
            ("before", {"learning_rate": 1e-12}),
            ("slow", {"embedding_rate": 0.25}),
            ("fast", {}),
        )
    )
    for name, weight in before.items():
        if name in {"wte.weight", "wpe.weight"}:  # AdamW's first step is the learning rate
            assert (slow[name] - weight).abs().max() == pytest.approx(0.0025, rel=1e-3)
        else:
            assert torch.equal(slow[name], fast[name])


@pytest.mark.parametrize(("most", "clipped"), [(0.01, 6), (1e3, 0)])
def test_the_gradient_is_clipped_to_the_norm(tmp_path, monkeypatch, most, clipped):
    calls, norms = [], []
    clip, step = torch.nn.utils.clip_grads_with_norm_, Optimizers.step
    monkeypatch.setattr(
        torch.nn.utils, "clip_grads_with_norm_", lambda *given: calls.append(None) or clip(*given)
    )

    def measured(self):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        step(self)

    monkeypatch.setattr(Optimizers, "step", measured)
    lengths = []
    run(
        tmp_path / "m",
        config=brief(clip=most),
        callbacks=[lambda metrics: lengths.append(metrics.gradient_norm)],
    )
    assert len(norms) == 6
    assert len(calls) == clipped  # a short gradient is left as it is
    assert norms == pytest.approx([min(most, length) for length in lengths], rel=1e-3)


def test_the_same_seed_gives_the_same_model_and_leaves_torchs_generator_alone(tmp_path):
    gpt = GPTConfig(context=16, layers=1, heads=2, dim=16, dropout=0.2)
    state = torch.get_rng_state()
    models = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        torch.rand(len(models))
        before = torch.get_rng_state()
        result = run(tmp_path / name, gpt=gpt, config=brief(seed=seed))
        assert torch.get_rng_state().equal(before)
        models.append(result.model.state_dict())
    torch.set_rng_state(state)
    a, b, c = models
    assert same(a, b)
    assert not a["wte.weight"].equal(c["wte.weight"])


def test_evaluation_predicts_every_token_once():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=11, context=4, layers=1, heads=1, dim=8, dropout=0.5)).train()
    tokens = torch.randint(11, (14,))
    expected = 0.0
    model.eval()
    for target in range(1, 14):
        start = (target - 1) // 4 * 4
        logits = model(tokens[start:target])[-1]
        expected -= torch.log_softmax(logits, dim=-1)[tokens[target]].item() / 13
    model.train()
    for batch in (1, 2, 100):
        assert evaluate(model, tokens, batch=batch) == pytest.approx(expected, rel=1e-5)
    assert model.training
    assert evaluate(model, tokens[:2]) > 0
    with pytest.raises(ValueError, match="tokens holds 1; expected at least two"):
        evaluate(model, tokens[:1])


def test_the_files_and_the_record_of_training(tmp_path):
    result = run(tmp_path / "m")
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    model = ["config.json", "model.safetensors", "run", "run.json", "tokenizer.json"]
    assert names == [*model, "training.json"]
    inner = sorted(path.name for path in (tmp_path / "m" / "run").iterdir())
    assert inner == ["checkpoints", "corpus", "metrics.jsonl"]
    record = load_training(tmp_path / "m")
    assert record == json.loads(json.dumps(result.record))
    assert record["step"] == 6
    assert record["tokens"] == 6 * 4 * 16
    assert [entry["step"] for entry in record["history"]] == [3, 6]
    assert record["interrupted"] is result.interrupted is False
    assert TrainConfig(**record["config"]) == brief()
    assert record["corpus"]["bytes"] == len(TEXT)
    model, tokenizer = load(tmp_path / "m")
    assert model.config.vocab_size == tokenizer.vocab_size == len(set(TEXT))
    assert evaluate(model, torch.tensor(tokenizer.encode(TEXT))) > 0
    assert same(model.state_dict(), result.model.state_dict())


def test_a_bpe_is_trained_on_the_training_text_alone(tmp_path):
    gpt = GPTConfig(vocab_size=270, context=8, layers=1, heads=1, dim=8)
    config = brief(tokenizer="bpe")
    result = run(tmp_path / "m", gpt=gpt, config=config)
    assert result.model.config.vocab_size == result.tokenizer.vocab_size == 270
    alone = BPETokenizer.train(
        split_texts([TEXT], validation=config.validation, seed=config.seed)[0],
        vocab_size=270,
        end=True,
    )
    assert result.tokenizer.to_json() == alone.to_json()


@pytest.mark.parametrize("where", ["between updates", "inside an update"])
def test_ctrl_c_writes_a_checkpoint(tmp_path, monkeypatch, where):
    def interrupt(*_):
        raise KeyboardInterrupt

    seen = []

    def watch(metrics):
        seen.append(metrics.step)
        if where == "between updates" and metrics.step == 4:
            raise KeyboardInterrupt
        if where == "inside an update" and metrics.step == 4:
            monkeypatch.setattr(torch.nn.utils, "get_total_norm", interrupt)

    result = run(tmp_path / "m", callbacks=[watch])
    assert result.interrupted
    assert not result.model.training
    model, _ = load(tmp_path / "m")
    assert load_training(tmp_path / "m")["interrupted"] is True
    assert load_training(tmp_path / "m")["step"] == len(seen) == 4
    assert same(model.state_dict(), result.model.state_dict())


@pytest.mark.parametrize(
    ("number", "usual"),
    [(signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)],
)
def test_a_signal_waits_for_the_update_that_is_under_way(tmp_path, monkeypatch, number, usual):
    original = torch.nn.utils.get_total_norm
    calls = []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 4:
            signal.raise_signal(number)
        return original(*arguments)

    before = signal.signal(number, usual)
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", interrupted)
    try:
        done = run(tmp_path)
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert done.interrupted
    assert done.signal == number
    assert done.record["step"] == 4


@pytest.mark.parametrize("ends", ["too short", "no number", "Ctrl-C"])
def test_the_old_model_stays_until_the_first_checkpoint_of_the_new_one(tmp_path, monkeypatch, ends):
    run(tmp_path)
    before = files_in(tmp_path)
    wider = GPTConfig(context=8, layers=1, heads=1, dim=24)
    text, error = TEXT, {"no number": DivergedError, "Ctrl-C": KeyboardInterrupt}.get(ends)

    def end(*_, **__):
        if error is KeyboardInterrupt:
            raise error
        return math.nan

    if ends == "too short":
        text, error = "abcdef", Error
    elif ends == "no number":
        monkeypatch.setattr("regard.gpt.training.loop.mean_loss", end)
    else:
        monkeypatch.setattr(torch.nn.utils, "get_total_norm", end)
    with pytest.raises(error):
        run(tmp_path, texts=[text], gpt=wider, overwrite=True)
    after = files_in(tmp_path)
    assert {name: data for name, data in after.items() if name in before} == before
    # A run that had begun leaves its metrics; one that had not, nothing.
    assert (after == before) is (ends != "no number")
    monkeypatch.undo()
    run(tmp_path, gpt=wider, overwrite=True)
    assert load(tmp_path)[0].config.dim == 24
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run-2"]
    assert recipe_of(tmp_path)[0].dim == 24


def test_progress_shows_loss_speed_and_time_left(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    history = []
    run(tmp_path / "m", console=console, callbacks=[history.append])
    shown = console.file.getvalue()
    shown_by = ("training", "6/6", "loss", "tokens/s", "0:00:00", "validation loss", "bits/byte")
    for part in (*shown_by, "perplexity", "bfloat16: no"):
        assert part in shown
    assert "training" in shown[: shown.index("loss ")]  # before there was anything to tell
    assert "nan" not in shown
    assert not re.search(r"\b0 tokens/s", shown)
    assert [metrics.step for metrics in history] == [1, 2, 3, 4, 5, 6]
    assert [metrics.validation_loss is None for metrics in history] == [1, 1, 0, 1, 1, 0]
    assert all(metrics.tokens_per_second > 0 for metrics in history)


def test_progress_of_a_finished_run_shows_no_loss(tmp_path):
    run(tmp_path / "m")
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    run(tmp_path / "m", texts=None, resume=True, console=console)
    shown = console.file.getvalue()
    assert "6/6" in shown
    assert not re.search("nan|loss|tokens/s", shown)


def test_a_folder_with_a_model_is_not_trained_over(tmp_path):
    run(tmp_path / "m")
    with pytest.raises(CheckpointError, match="already holds a model; train into another folder"):
        run(tmp_path / "m")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "training.json"])
def test_a_file_of_something_else_is_not_trained_over(tmp_path, name):
    (tmp_path / name).write_text('{"port": 8080}')
    with pytest.raises(CheckpointError, match=f"holds {name}, which would be lost"):
        run(tmp_path)
    assert (tmp_path / name).read_text() == '{"port": 8080}'
    run(tmp_path, overwrite=True)
    assert load(tmp_path)[0].config.vocab_size > 1


def test_a_diverging_run_raises_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    def spoil(metrics):
        if metrics.step == 4:
            with torch.no_grad():
                spoil.model.wte.weight.fill_(math.nan)

    original = GPT.train

    def train_mode(self, mode=True):
        spoil.model = self
        return original(self, mode)

    monkeypatch.setattr(GPT, "train", train_mode)
    config = brief(repeats=0.3)
    with pytest.raises(
        DivergedError,
        match=r"the loss is nan at update 5, whose batch has .* begin at token \d+, .* of update 3",
    ) as error:
        run(tmp_path / "m", config=config, callbacks=[spoil])
    assert issubclass(DivergedError, Error)
    assert error.value.step == 5
    corpus = open_corpus(tmp_path / "m" / "run" / "corpus")
    made = Batches(
        tokens=corpus.training, context=16, vocab_size=corpus.tokenizer.vocab_size, config=config
    )
    starts = [start for start in made.batch(4).starts.tolist() if start >= 0]
    assert error.value.starts == tuple(starts)
    assert f"{len(starts)} windows of 16 tokens that begin at token {starts[0]}, " in str(
        error.value
    )
    model, _ = load(tmp_path / "m")
    assert load_training(tmp_path / "m")["step"] == 3
    assert all(weight.isfinite().all() for weight in model.state_dict().values())


def test_a_text_too_short_for_the_context_is_refused(tmp_path):
    with pytest.raises(Error, match="window of context=16 needs 17"):
        run(tmp_path / "m", texts=["abcdef"])
    with pytest.raises(Error):  # at once, not where the windows have grown
        run(tmp_path / "m", texts=["abcdef"], config=brief(ramp=1.0))
    assert not (tmp_path / "m").exists()


def test_a_context_without_room_for_repeated_runs_is_refused(tmp_path):
    gpt = GPTConfig(context=1, layers=1, heads=1, dim=8)
    with pytest.raises(ValueError, match=r"context is 1 and repeats 0\.3: .* at least 2"):
        run(tmp_path, gpt=gpt, config=brief(repeats=0.3))
    alone = run(tmp_path, gpt=gpt, config=brief(repeats=0.0))
    assert math.isfinite(alone.record["validation_loss"])


def test_windows_grow_by_doubling_and_batches_keep_their_size(tmp_path, monkeypatch):
    shapes = []
    original = GPT.loss

    def spy(self, ids, *rest, **options):
        if self.training:
            shapes.append(tuple(ids.shape))
        return original(self, ids, *rest, **options)

    monkeypatch.setattr(GPT, "loss", spy)
    config = brief(steps=10, ramp=0.6)
    result = run(tmp_path / "m", config=config)
    expected = [(32, 2)] * 2 + [(16, 4)] * 2 + [(8, 8)] * 2 + [(4, 16)] * 4
    assert shapes == expected
    assert result.record["tokens"] == 10 * 64
    assert {context_length(step, 16, brief(ramp=0.0)) for step in range(6)} == {16}
    assert [context_length(step, 1, brief(ramp=1.0)) for step in range(6)] == [1] * 6
    assert min(context_length(step, 5, brief(ramp=1.0)) for step in range(6)) == 2
