"""The heads of one text have the same names wherever they are shown."""

import json
import re

import matplotlib as mpl
import torch

import regard
from regard.cli.app import run as command
from regard.gpt import load
from regard.page import ModelSubject
from regard.page._report import report_html

TEXT = (
    'A green parrot lived in the tent. Leila said to it, "There is a family of hedgehogs down '
    'the well." They listened. Back came the same words, "There is a family of hedgehogs down '
    'the well."'
)


def test_command_figure_page_report_and_notebook_name_heads_alike(capfd, monkeypatch):
    model, tokenizer = load()
    ids = tokenizer.encode(TEXT)
    with torch.no_grad(), regard.record(model, tokens=tokenizer) as recording:
        model(torch.tensor([ids]))
    heads = regard.lens.heads(recording, progress=False)
    assert len({head.role for head in heads}) > 2

    monkeypatch.setenv("COLUMNS", "120")
    assert command(["explain", TEXT]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    figure = recording.plot_heads(size=8)
    written = [text.get_text() for text in figure.findobj(mpl.text.Text)]
    names = [head.role.value for head in heads]
    assert [text for text in written if text in names] == names
    html = heads._repr_html_()
    for head in heads:
        estimate = f"{head.estimate or '–'} {head.queries}"
        row = f"{head.layer}.{head.head} {head.role} {estimate}"
        assert any(line.startswith(row) for line in lines)
        assert re.search(rf"{head.layer}·{head.head}\W.*?{head.role}", html)

    expected = [(one.role.value, one.evidence, one.undecided, list(one.sinks)) for one in heads]
    subject = ModelSubject(model, tokenizer, title="shipped", ids=ids)
    page = subject.run(subject.about()["runs"][0])
    layers = [page.scores(layer) for layer in range(len(page.layers))]
    (packed,) = json.loads(re.search(r'id="report">(.*)</script>', report_html(subject))[1])["runs"]
    for answers in (layers, packed["scores"]):
        shown = [one for layer in answers for one in layer["heads"]]
        fields = ("role", "evidence", "undecided", "sinks")
        assert [tuple(one[name] for name in fields) for one in shown] == expected
