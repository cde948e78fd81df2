"""`regard report`: a thin command; what a report holds is tested beside the explorer."""

import json
import os
import re

import pytest
import torch

import regard as library
from regard.nn import MultiHeadAttention

TEXT = "the cat sat on the cat"


def content(file):
    return json.loads(re.search(r'id="report">(.*)</script>', file.read_text("utf-8"))[1])


@pytest.fixture
def kept(tmp_path):
    """Folder of a recording."""
    with library.record(tokens=list("abcde")) as recording, torch.no_grad():
        MultiHeadAttention(6, 2, mask=library.causal())(torch.randn(1, 5, 6))
    recording.save(tmp_path / "kept")
    return tmp_path / "kept"


def test_a_model_reads_a_text_or_a_file(regard, model, tmp_path):
    file, text = tmp_path / "a report.html", tmp_path / "text.txt"
    text.write_text(TEXT)
    done = regard("report", TEXT, "--model", model, "--out", file)
    assert (done.status, done.err) == (0, "")
    size = file.stat().st_size
    assert done.out == f"{file}: {size / 1e6:.2f} MB, opens offline in a browser\n"
    report = content(file)
    assert report["about"]["title"] == model.name
    assert report["runs"][0]["description"]["text"] == TEXT
    before = file.read_bytes()
    assert regard("report", "--model", model, "--file", text, "--out", file).status == 0
    assert file.read_bytes() == before


def test_a_text_that_is_cut_says_so(regard, model, tmp_path):
    done = regard("report", TEXT * 40, "--model", model, "--out", tmp_path / "report.html")
    note, line = done.out.splitlines()
    assert re.fullmatch(r"the text has [\d,]+ tokens; these are the first \d+, .* context", note)
    assert line.startswith(f"{tmp_path}/report.html: ")


def test_a_recording_is_shown_as_it_is(regard, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert regard("report", "--recording", kept).out.startswith("report.html: ")
    tokens = content(tmp_path / "report.html")["runs"][0]["description"]["tokens"]
    assert [token["text"] for token in tokens] == list("abcde")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--file", __file__), "given twice"),
        (("",), "empty"),
        (("--out", "/proc/no/page.html"), "/proc/no/page.html cannot be written"),
        (("one", "more"), "unexpected extra argument"),
    ],
)
def test_impossible_arguments_are_refused_in_one_line(misused, model, arguments, message):
    assert message in misused("report", "--model", model, *arguments)


def test_folders_that_hold_neither_are_refused(misused, tmp_path):
    for option in ("--model", "--recording"):
        assert str(tmp_path / "none") in misused("report", option, tmp_path / "none")


def test_weights_are_kept_as_int8_where_asked_for(regard, misused, model, tmp_path):
    pages = [tmp_path / "own.html", tmp_path / "int8.html"]
    text = (TEXT, "--model", model)
    assert regard("report", *text, "--out", pages[0]).status == 0
    assert regard("report", *text, "--out", pages[1], "--weights", "int8").status == 0
    own, int8 = (content(page)["runs"][0] for page in pages)
    assert own["description"]["tokens"][0]["text"] == int8["description"]["tokens"][0]["text"]
    assert own != int8
    line = misused("report", *text, "--out", pages[1], "--weights", "int8", "--live")
    assert "--live rounds a model to int8 where it needs to, and --weights is int8" in line
    line = misused("report", *text, "--out", pages[1], "--weights", "blocks", "--live")
    assert "--weights blocks goes into a folder, and --out is" in line


def test_masks_that_a_page_can_not_recompute_are_refused(misused, tmp_path):
    holes = torch.ones(5, 5, dtype=torch.bool).tril()
    holes[4, 2] = False
    x = torch.randn(1, 1, 5, 3)
    with library.record() as recording:
        library.attention(x, x, x, mask=library.dense(holes))
    recording.save(tmp_path / "kept")
    out = tmp_path / "report.html"
    assert "not an interval of keys" in misused(
        "report", "--recording", tmp_path / "kept", "--out", out
    )
    assert not out.exists()


def test_a_report_replaces_nothing_but_a_file(misused, model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        line = misused("report", TEXT, "--model", model, "--out", path)
        assert f"{path} exists and is not a regular file; choose another --out FILE" in line
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "a"
    line = misused("report", TEXT, "--model", model, "--live", "--out", below)
    assert f"{below} cannot be written: File exists; choose another --out FILE" in line


def test_a_report_goes_where_a_link_leads(regard, model, tmp_path):
    (tmp_path / "pages").mkdir()
    link, target = tmp_path / "link.html", tmp_path / "pages" / "page.html"
    link.symlink_to(target)
    assert regard("report", TEXT, "--model", model, "--out", link).status == 0
    assert link.is_symlink()
    assert target.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("text", ["😀 👩‍👩‍👧", "</script><img src=x>", "\n\n\t\r\n", "a"])
def test_any_text_can_be_shown(regard, model, tmp_path, text):
    file = tmp_path / "report.html"
    assert regard("report", text, "--model", model, "--out", file).status == 0
    assert "<img" not in file.read_text("utf-8")
    shown = content(file)["runs"][0]["description"]["text"]
    assert text.replace("\r\n", "\n").startswith(shown)  # as much as the model reads


def test_a_live_report_without_a_suffix_is_a_folder(regard, model, tmp_path):
    folder = tmp_path / "live"
    done = regard("report", TEXT, "--model", model, "--live", "--out", folder)
    assert done.status == 0, done.err
    assert done.out.startswith(f"{folder}: 1 MB for any static host, or python -m http.server")
    assert (folder / "index.html").is_file()
    again = regard("report", TEXT, "--model", model, "--live", "--out", folder)
    assert again.status == 2
    assert "exists and is not an empty folder; choose another --out" in again.err
