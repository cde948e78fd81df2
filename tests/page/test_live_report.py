"""Live reports: written from Python and from the command line, and what they refuse."""

import json
import re

import pytest
import torch
from click.testing import CliRunner

import regard
from regard.cli.app import app
from regard.gpt import GPT, BPETokenizer, CharTokenizer, GPTConfig, save
from regard.page import ModelSubject, PageError, RecordingSubject
from regard.page._live import LIVE_SIZE, live_html


def data(html, name):
    """What the page is given."""
    return json.loads(re.search(f'id="{name}">(.*)</script>', html)[1])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=5, context=13, layers=1, heads=2, dim=6))


TOKENIZER = CharTokenizer("abc <")


def test_a_model_is_written_with_its_text(model, tmp_path):
    file = tmp_path / "live.html"
    options = {"tokenizer": TOKENIZER, "text": "a cab <", "live": True, "title": "</script>"}
    size = regard.report(model, file, **options, start="l=0&h=1")
    html = file.read_text("utf-8")
    assert size == len(html.encode())
    report = data(html, "report")
    assert report["about"] | {"writes": True, "generates": True} == report["about"]
    assert report["about"]["start"] == "l=0&h=1"
    assert report["about"]["limits"]["tokens"] == 13
    assert report["first"] == {"ids": TOKENIZER.encode("a cab <"), "notes": []}
    assert data(html, "model")["tokenizer"]["characters"] == " <abc"
    assert html.count("</script>") == 6
    assert "worker-src blob:" in html


def test_a_model_is_written_as_it_ran_too(model, tmp_path):
    file = tmp_path / "report.html"
    regard.report(model, file, tokenizer=TOKENIZER, text="a cab")
    html = file.read_text("utf-8")
    assert [run["description"]["text"] for run in data(html, "report")["runs"]] == ["a cab"]
    assert "worker-src" not in html


def test_a_cut_text_keeps_its_note(model):
    subject = ModelSubject(model, TOKENIZER, title="m", text="abc" * 7)
    first = data(live_html(subject), "report")["first"]
    assert len(first["ids"]) == 13
    assert "these are the first 13" in first["notes"][0]


def test_what_can_not_run_in_a_page_is_refused_by_name(model, padded, tmp_path):
    file = tmp_path / "live.html"
    with pytest.raises(PageError, match="a recording has no model"):
        regard.report(padded.recording, file, live=True)
    other = json.loads(BPETokenizer.train(["a b"], vocab_size=256).to_json())
    other = BPETokenizer.from_json(
        json.dumps(other | {"decoder": {"type": "BPEDecoder", "suffix": "x"}})
    )
    large = GPT(GPTConfig(vocab_size=256, context=3, layers=1, heads=1, dim=6))
    with pytest.raises(PageError, match="its decoder is BPEDecoder"):
        regard.report(large, file, tokenizer=other, live=True)
    large = GPT(GPTConfig(vocab_size=5, context=13, layers=1, heads=2, dim=6, hidden=600_000))
    with pytest.raises(
        PageError, match=r"takes 1\d MB or more, and at most 12 MB .* name a folder"
    ):
        regard.report(large, file, tokenizer=TOKENIZER, live=True)
    shape = {"vocab_size": 5, "context": 13, "layers": 1, "heads": 2, "dim": 6}
    with pytest.raises(PageError, match="does not compute logit_softcap, which this model has"):
        regard.report(
            GPT(GPTConfig(**shape, logit_softcap=3.0)), file, tokenizer=TOKENIZER, live=True
        )
    assert not file.exists()


def test_a_model_comes_with_its_tokenizer_and_a_recording_without(model, padded, tmp_path):
    with pytest.raises(TypeError, match="give tokenizer="):
        regard.report(model, tmp_path / "r.html")
    with pytest.raises(TypeError, match="go with a model"):
        regard.report(padded.recording, tmp_path / "r.html", text="a")
    with pytest.raises(TypeError, match="go with a model"):
        regard.report(RecordingSubject(padded.recording, title="r"), tmp_path / "r.html", text="a")


def test_the_command_writes_one_and_says_what_it_is(model, tmp_path):
    save(tmp_path / "run", model, TOKENIZER)
    out = tmp_path / "live.html"
    command = ["report", "a cab", "--model", str(tmp_path / "run"), "--live", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert done.output.strip().endswith("the model runs in it, over any text")
    assert out.stat().st_size < LIVE_SIZE
