"""The explorer of a model on a GPU: maps are computed there, and what is sent is the same."""

from threading import Event

import pytest
import torch
from support.fake_gpu import DEVICE, FakeGPUTensor, gpu

from regard.gpt import GPT, CharTokenizer, GPTConfig
from regard.page import ModelSubject, report
from regard.page._windows import Window

TEXT = "the cat sat on the mat, the dog sat on the cat"
OFF = Event()


def opened(device):
    """A subject and the run of its first text."""
    tokenizer = CharTokenizer(TEXT)
    size = {"vocab_size": tokenizer.vocab_size, "context": 53, "layers": 2, "heads": 3, "dim": 15}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**size)).to(device)
    subject = ModelSubject(model, tokenizer, title="a model", text=TEXT)
    return subject, subject.run(subject.about()["runs"][0])


def maps(run):
    whole, part = (0, len(run.tokens)), (5, 37)
    return {
        "window": run.map(1, 2, Window(part, whole, 4), OFF),
        "whole": run.map(1, 2, Window(whole, whole, 1), OFF),
        "window of the whole": run.map(1, 2, Window(whole, whole, 8), OFF),
        "mean": run.map(1, "mean", Window(part, part, 2), OFF),
        "thumbnails": run.thumbnails(0, 9),
        "row": run.row(0, 1, 7),
        "column": run.column("mean", "mean", 7),
        "readouts": run.readouts(1, 0),
        "readouts of a mean": run.readouts("mean", 2),
    }


def readings_of(run):
    return {
        "description": run.describe(),
        "scores": run.scores(1),
        "cell": run.cell(1, 0, 9, 4),
        "cell of a mean": run.cell("mean", "mean", 9, 4),
        "steps": run.steps(1, 2, 20, count=5, picked=3),
    }


def test_maps_and_readouts_of_a_model_on_a_gpu_are_computed_there():
    _, expected = opened("cpu")
    with gpu() as crossed:
        _, run = opened(DEVICE)
        actual = maps(run)
        assert crossed == []
        assert all(isinstance(one, FakeGPUTensor) for one in actual.values())
        for name, one in maps(expected).items():
            here = actual[name].cpu().double()
            # Sums over dozens of float32 weights, which other kernels add in another order.
            torch.testing.assert_close(here, one.double(), rtol=1e-5, atol=1e-5)


def test_what_is_told_of_a_run_is_the_same_and_a_row_of_numbers_is_copied_at_a_time():
    _, expected = opened("cpu")
    with gpu() as crossed:
        _, run = opened(DEVICE)
        actual = readings_of(run)
        length = len(run.tokens)
        assert {shape for shape in crossed if shape} == {(length,), (1,)}
    wanted = readings_of(expected)
    for name in ("cell", "cell of a mean"):
        assert actual[name] == pytest.approx(wanted[name])
    assert actual["description"] | {"next": None} == wanted["description"] | {"next": None}
    one, other = (steps["keys"] for steps in (actual["steps"], wanted["steps"]))
    assert [key["position"] for key in one] == [key["position"] for key in other]
    for name in ("weight", "score", "key", "value"):
        assert [key[name] for key in one] == [pytest.approx(key[name], abs=1e-5) for key in other]


@pytest.mark.thorough
def test_it_generates_and_reads_on(tmp_path):
    subject, run = opened("cpu")
    drawing = {"tokens": 4, "temperature": 0.5, "seed": 3}
    expected = list(subject.generate(run, **drawing))
    with gpu():
        subject, run = opened(DEVICE)
        actual = list(subject.generate(run, **drawing))
        assert actual[:-1] == expected[:-1]
        assert actual[-1]["run"].tokens == expected[-1]["run"].tokens
        assert subject.append(run, 2).layers[0].pattern.device == DEVICE
        assert report(subject, tmp_path / "there.html") > 0
    subject, _ = opened("cpu")
    report(subject, tmp_path / "here.html")
    sizes = [(tmp_path / name).stat().st_size for name in ("here.html", "there.html")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)  # other kernels round otherwise
