"""Reports: small, as exact as they say, refused with a reason, and never half written."""

import json
import os
import re

import pytest
import torch

import regard
from regard.gpt import GPT, CharTokenizer, GPTConfig
from regard.page import ModelSubject, PageError, RecordingSubject, _report
from regard.page._report import LARGEST, report_html
from regard.page.file import report as page_report
from regard.record import Layer, Recording
from regard.record.layer import Labels

HOSTILE = ["</script><img src=x onerror=alert(1)>", "<!--", "&lt;b&gt;", "\u2028", "\u202e", "\x00"]


def data(html):
    """What the page is given."""
    return json.loads(re.search(r'id="report">(.*)</script>', html)[1])


def recorded(*patterns, tokens=None):
    """A recording of these patterns, a layer each."""
    layers = [
        Layer(
            name=f"layer {index}",
            kind="self",
            index=index,
            heads=tuple(range(len(pattern))),
            rows=range(pattern.shape[-2]),
            get_pattern=lambda pattern=pattern: pattern,
        )
        for index, pattern in enumerate(patterns)
    ]
    names = None if tokens is None else (tuple(tokens),)
    return Recording(lambda: layers, lambda: Labels(target=names, source=None))


@pytest.fixture(scope="module")
def wide():
    """A model as large as the shipped one on a text of 512 tokens, with sharp heads."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=len(letters), context=512, layers=4, heads=5, dim=160))
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight.mul_(8)
    ids = torch.randint(len(letters), (512,)).tolist()
    return ModelSubject(model, CharTokenizer(letters), title="wide", ids=ids)


@pytest.mark.thorough
def test_a_text_of_512_tokens_takes_about_2_5_mb(wide):
    html = report_html(wide)
    assert 2_000_000 < len(html.encode()) < 2_650_000  # as exact as the room allows
    (run,) = data(html)["runs"]
    assert run["description"]["length"] == 512
    assert run["description"]["errors"]["weight"] < 5e-4  # three decimals of a weight are true


def test_it_says_how_exact_it_is(subject):
    actual = data(report_html(subject))
    (run,) = actual["runs"]
    errors = run["description"]["errors"]
    message = run["description"]["notes"][-1]
    assert "from queries, keys and values in few bits" in message
    bounds = [float(number) for number in re.findall(r"0\.\d+|\d+e-\d+", message)]
    for number, name in zip(bounds, ("weight", "score", "context"), strict=True):
        assert errors[name] <= number <= 2.001 * errors[name]  # one figure, rounded up
    worst = max(errors[name] for name in ("score", "product", "vector", "context"))
    assert worst <= 10.0 ** -actual["about"]["decimals"]


def test_of_a_recording_all_sequences_are_there_and_no_values(recorded_subject):
    runs = data(report_html(recorded_subject))["runs"]
    assert [run["description"]["id"] for run in runs] == ["0", "1"]
    head = runs[1]["layers"][0][0]
    assert head["value"] is None
    assert runs[1]["rows"][head["rows"]]["start"][-1] > 0  # it is padded at its left
    assert "from queries and keys in few bits" in runs[0]["description"]["notes"][-1]
    assert "context" not in runs[0]["description"]["notes"][-1]


@pytest.fixture
def recorded_subject(padded):
    return RecordingSubject(padded.recording, title="a recording")


def test_no_token_is_markup():
    x = torch.randn(1, len(HOSTILE), 5)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    subject = RecordingSubject(recorded(pattern, tokens=HOSTILE), title="<img src=y>")
    html = report_html(subject)
    assert "<img" not in html
    assert html.count("<!--") == 0
    assert html.count("</script>") == 4
    shown = data(html)["runs"][0]["description"]["tokens"]
    assert shown[0]["label"] == HOSTILE[0].replace(" ", "␣")


X = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
NAN = X.clone()
NAN[1, 3, 2] = torch.nan
HOLES = torch.ones(7, 7, dtype=torch.bool).tril()
HOLES[5, 2] = False
REFUSED = {
    "a mask with holes": (
        lambda: regard.Pattern(X, X, mask=regard.dense(HOLES)),
        "a mask that is not an interval of keys",
    ),
    "hidden keys": (
        lambda: regard.Pattern(
            X, X, mask=regard.causal() & regard.masks.hide(2, queries=slice(4, None))
        ),
        "a mask that is not an interval of keys",
    ),
    "a bias": (lambda: regard.Pattern(X, X, bias=torch.randn(7, 7)), "adds a bias of its own"),
    "a NaN": (lambda: regard.Pattern(NAN, X), "not finite numbers"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_page_can_not_recompute_is_refused(what, tmp_path):
    make, message = REFUSED[what]
    file = tmp_path / "report.html"
    file.write_text("older")
    with pytest.raises(PageError, match=f"layer 0 .*{message}.*use regard explore"):
        regard.report(recorded(make()), file)
    assert file.read_text() == "older"
    assert list(tmp_path.iterdir()) == [file]


def test_too_many_weights_are_refused_with_the_length_that_fits():
    x = torch.zeros(1, 1, 1).expand(2, 20_000, 1)
    recording = recorded(regard.Pattern(x, x, mask=regard.causal()))
    with pytest.raises(PageError, match=r"2 heads on 20000 tokens .* at most 8192 tokens"):
        report_html(RecordingSubject(recording, title="long"))
    assert _report.WEIGHTS == 2 * 8192**2


@pytest.mark.thorough
def test_both_limits_name_one_length_that_is_within_both(monkeypatch):
    heads, length, dim = 5, 397, 13
    query, key = torch.randn(2, heads, length, dim, generator=torch.Generator().manual_seed(1))

    def subject(tokens):
        pattern = regard.Pattern(query[:, :tokens], key[:, :tokens], mask=regard.causal())
        return RecordingSubject(recorded(pattern), title="long")

    monkeypatch.setattr(page_report, "SIZE", 0)  # as coarse as a report of the largest size
    base, size = (len(report_html(subject(tokens)).encode()) for tokens in (1, length))
    assert size < LARGEST
    most = {}
    for name, limits in {
        "file": {"LARGEST": base + (size - base) // 2},
        "both": {"LARGEST": base + (size - base) // 2, "WEIGHTS": heads * (length - 1) ** 2},
        "weights": {"WEIGHTS": heads * 300**2},
    }.items():
        with monkeypatch.context() as limited:
            for limit, value in limits.items():
                limited.setattr(_report, limit, value)
            message = rf"{heads} heads on {length} tokens .*: give at most (\d+) tokens, or use"
            with pytest.raises(PageError, match=message) as refused:
                report_html(subject(length))
            most[name] = int(re.search(message, str(refused.value))[1])
            assert report_html(subject(most[name]))
    assert most["file"] == most["both"]
    assert 0.8 < most["file"] / (length / 2) < 1
    assert most["weights"] == 300


def test_a_recording_is_written_and_replaced_in_one_go(padded, tmp_path, monkeypatch):
    file = tmp_path / "a report.html"
    file.write_text("older")
    size = regard.report(padded.recording, file, title="mine", start="l=1&h=2")
    assert file.stat().st_size == size
    about = data(file.read_text("utf-8"))["about"]
    assert (about["title"], about["start"]) == ("mine", "l=1&h=2")
    assert (about["writes"], about["generates"], about["report"]) == (False, False, True)
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        regard.report(padded.recording, file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_but_a_file_is_replaced(padded, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FileExistsError, match="not a regular file"):
            regard.report(padded.recording, path)
