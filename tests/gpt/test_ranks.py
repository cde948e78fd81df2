"""Several ranks train as one process does, and others go on with what they began."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import training_rank
from support.ranks import SECONDS, run_ranks

from regard.gpt import GPT, GPTConfig, TrainConfig, load, load_training
from regard.gpt.training.batches import Batches
from regard.gpt.training.metrics import read_metrics
from regard.gpt.training.optimizer import make_optimizer
from regard.gpt.training.parallel import DDP
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.train_step import TrainStep

WORKER = training_rank.__file__
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
FEW = {"batch": 1, "accumulate": 1, "ramp": 0}
# Sums of another order: float32's rounding, grown over seven updates.
NEAR = {"rel": 1e-5}


def world(size, folder, runs):
    """The result of each rank of a world in each run."""
    command = [sys.executable, "-W", "error", WORKER]
    arguments = (str(size), folder, json.dumps(runs))
    codes, outputs = run_ranks(
        ([*command, str(rank), *arguments] for rank in range(size)), ENVIRONMENT
    )
    assert codes == [0] * size, "\n".join(outputs)
    actual = [json.loads((folder / f"found{size}-{rank}.json").read_text()) for rank in range(size)]
    return list(zip(*actual, strict=True))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "m"
    training_rank.go(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, alone):
    """Runs of two ranks and of three; one is begun by two, and goes on with three."""
    folder = tmp_path_factory.mktemp("together")
    two = [{"name": "two"}, {"name": "on", "stop": 3}]
    three = [{"name": "three"}, {"name": "on", "resume": True, "stop": 5}]
    two.append({"name": "recorded", "recipe": {"record_every": 2, "steps": 2}})
    three.append({"name": "few", "recipe": FEW})
    two.append({"name": "one-stops", "ranks": {"1": {"stop": 4}}})
    three.append({"name": "one-fails", "ranks": {"2": {"fails": 4}}})
    two.append({"name": "one-is-full", "ranks": {"0": {"full": 4}}})
    two.append({"name": "differs", "ranks": {"1": {"recipe": {"learning_rate": 0.5}}}})
    three.append({"name": "unfit", "gpt": {"context": 5000}})
    actual = {2: world(2, folder, two), 3: world(3, folder, three)}
    return folder, actual


def curve(folder):
    return [line["loss"] for line in read_metrics(folder / "run" / "metrics.jsonl")]


def norms(folder):
    return [line["gradient_norm"] for line in read_metrics(folder / "run" / "metrics.jsonl")]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["two", "three"])
def test_several_ranks_compute_what_one_process_does(alone, folder, name):
    require_alike(folder[0] / name, alone)


@pytest.mark.thorough
def test_two_ranks_compute_what_one_process_does(alone, tmp_path):
    world(2, tmp_path, [{"name": "two"}])
    require_alike(tmp_path / "two", alone)


def require_alike(together, alone):
    assert curve(together) == pytest.approx(curve(alone), **NEAR)
    assert norms(together) == pytest.approx(norms(alone), rel=1e-4)
    one, other = load_training(alone), load_training(together)
    assert other["validation_loss"] == pytest.approx(one["validation_loss"], **NEAR)
    assert other["tokens"] == one["tokens"]
    (model, _), (expected, _) = load(together), load(alone)
    for name, weight in expected.state_dict().items():
        # AdamW divides by gradients' sizes, so where they are rounding, their signs decide.
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=1e-3, atol=2e-4)


@pytest.mark.thorough
def test_a_run_goes_on_with_another_number_of_ranks(alone, folder):
    together = folder[0] / "on"
    assert load_training(together)["step"] == 5
    training_rank.go(together, resume=True)  # by this process
    assert curve(together) == pytest.approx(curve(alone), **NEAR)
    assert norms(together) == pytest.approx(norms(alone), rel=1e-4)
    assert (together / "run/checkpoints/00000007/optimizer.safetensors").is_file()


@pytest.mark.thorough
def test_every_rank_has_the_model_in_the_end(folder):
    for actual in folder[1].values():
        for one, *others in actual[:2]:
            assert isinstance(one, dict), one
            assert all(other == one for other in others)


@pytest.mark.thorough
def test_recordings_and_ranks_without_rows(folder, tmp_path):
    patterns = folder[0] / "recorded/run/patterns"
    assert sorted(path.name for path in patterns.iterdir()) == [
        "00000002.safetensors",
        "probe.json",
    ]
    training_rank.go(tmp_path / "few", recipe=FEW)
    assert curve(folder[0] / "few") == pytest.approx(curve(tmp_path / "few"), **NEAR)


@pytest.mark.thorough
def test_ranks_that_can_not_go_on_all_raise(folder):
    for outputs in folder[1][2][-1]:
        assert re.match(
            r"ValueError: the ranks disagree about TrainConfig.learning_rate: rank 0 has 0.003, "
            r"rank 1 has 0.5; start every rank by the same command",
            outputs,
        ), outputs
    first, *others = folder[1][3][-1]
    assert first.startswith("Error: the text has")
    assert not (folder[0] / "differs").exists()
    assert not (folder[0] / "unfit").exists()
    assert all("Error: the text has" in outputs for outputs in others)


@pytest.mark.thorough
def test_the_failure_of_one_rank_is_raised_by_all(folder):
    at_two, at_three = folder[1].values()
    names = {"one-is-full": at_two[-2], "one-fails": at_three[-2]}
    assert names["one-fails"][2] == "LookupError: what a callback may raise"
    for outputs in names["one-fails"][:2]:
        assert outputs == (
            "Error: rank 2 of 3 can't take part, and raises LookupError: what a callback may raise"
        )
    for outputs in names["one-is-full"]:
        assert "File too large" in outputs, outputs
        assert "the checkpoint of update 3 is whole" in outputs, outputs
    training_rank.go(folder[0] / "one-is-full", resume=True)
    training_rank.go(folder[0] / "one-fails", resume=True)
    for name in names:
        assert curve(folder[0] / name) == pytest.approx(curve(folder[0] / "two"), **NEAR)
        kept = sorted(path.name for path in (folder[0] / name / "run/checkpoints").iterdir())
        assert kept == ["00000007"]


@pytest.mark.thorough
def test_where_one_rank_is_stopped_all_are_after_the_same_update(folder):
    assert load_training(folder[0] / "one-stops")["step"] == 4
    assert load_training(folder[0] / "one-stops")["interrupted"]


def test_gradients_are_exchanged_once_an_update():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = GPT(GPTConfig(vocab_size=11, context=7, layers=1, heads=2, dim=6))
        copies = DDP(model)
        exchanges = []

        def exchange(_, bucket):
            exchanges.append(bucket.index())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        copies.loss.register_comm_hook(None, exchange)
        config = TrainConfig(batch=2, accumulate=3)
        train_step = TrainStep(
            parallel=copies,
            ranks=Ranks(),
            optimizer=make_optimizer(model, config),
            config=config,
            bfloat16=False,
            end=None,
            loss=copies.loss,
        )
        tokens = np.arange(300) % 11
        batch = Batches(tokens=tokens, context=7, vocab_size=11, config=config).batch(0)
        train_step(0, batch)
        assert exchanges == [0]
        train_step(1, batch)
        assert exchanges == [0] * 2
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Agents:
    """Two agents of torchrun, as on two machines, each with one process that trains."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
        command += [f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
        command += ["-m", "regard", "train", *map(str, arguments)]
        self.agents = [
            subprocess.Popen(
                command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            agent.terminate()  # and it ends its process, too
            agent.communicate(timeout=SECONDS)

    def workers(self):
        """The processes that train, of each agent."""
        children = [Path(f"/proc/{one.pid}/task/{one.pid}/children") for one in self.agents]
        return [int(one.read_text().split()[0]) for one in children]

    def ends(self):
        """Status and outputs of each agent."""
        outputs = [agent.communicate(timeout=SECONDS) for agent in self.agents]
        return [
            (agent.returncode, *message)
            for agent, message in zip(self.agents, outputs, strict=True)
        ]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_killed_rank_ends_two_agents_and_they_go_on(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "m"
    text.write_text(training_rank.TEXT, "utf-8")
    steps = 100_000  # it is killed long before
    recipe = ["--tokenizer", "char", "--steps", steps, "--warmup", 2, "--batch", 2]
    shape = ["--context", 8, "--layers", 1, "--heads", 2, "--dim", 6, "--schedule", "wsd"]
    options = ["--ramp", 0, "--evaluate-every", 5]
    metrics = out / "run/metrics.jsonl"
    with Agents("--out", out, "--text", text, *recipe, *shape, *options) as agents:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 12:
            with pytest.raises(subprocess.TimeoutExpired):  # it must not end by itself
                agents.agents[0].wait(timeout=0.02)
        os.kill(agents.workers()[0], signal.SIGKILL)
        killed, other = agents.ends()
    assert killed[0] == other[0] == 1
    assert "Signal 9 (SIGKILL)" in killed[2]
    assert re.search(
        r"regard: rank \d of 2 lost another rank: .* start all of them again with --resume",
        other[2],
    ), other[2]
    load(out)  # what was kept is whole
    step = json.loads((out / "run.json").read_text())["step"]
    with Agents("--out", out, "--resume", "--steps", step + 3) as agents:
        ended = agents.ends()
    assert [status for status, *_ in ended] == [0, 0], ended
    silent, outputs = sorted(message for _, message, _ in ended)
    assert silent == ""
    assert f"{step + 3} updates, validation loss" in outputs
    assert [line["step"] for line in read_metrics(metrics)] == list(range(1, step + 4))
