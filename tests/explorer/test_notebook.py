"""What a notebook shows of an explorer: a link, and a report or the page itself below it."""

import pytest
import torch
from support.notebook import Elements

from regard.explorer import Explorer, RecordingSubject, _report


@pytest.fixture
def shown():
    explorers = []

    def show(subject):
        explorers.append(Explorer(subject))
        return explorers[-1], Elements(explorers[-1]._repr_html_())

    yield show
    for explorer in explorers:
        explorer.stop()


def test_a_recording_is_part_of_the_notebook_and_the_link_leads_to_the_page(shown, recorded):
    explorer, elements = shown(recorded)
    assert elements.actual["a"]["href"] == explorer.url
    frame = elements.actual["iframe"]
    assert frame["srcdoc"].startswith("<!doctype html>")
    assert '<script type="text/plain" id="numbers">' in frame["srcdoc"]
    assert "src" not in frame
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    assert "forward" not in elements.text


def served(explorer, elements):
    assert elements.actual["a"]["href"] == elements.actual["iframe"]["src"] == explorer.url
    assert "srcdoc" not in elements.actual["iframe"]
    assert f"ssh -N -L {explorer.port}:127.0.0.1:{explorer.port} " in elements.text
    assert "VS Code" in elements.text


def test_of_a_model_the_page_itself_is_shown_and_what_to_forward(shown, subject):
    served(*shown(subject))


def test_what_is_too_long_is_served(shown, recorded, monkeypatch):
    monkeypatch.setattr(_report, "_NOTEBOOK_WEIGHTS", 2 * 2 * 6 * 13**2 - 1)
    served(*shown(recorded))
    monkeypatch.setattr(_report, "_NOTEBOOK_WEIGHTS", 2 * 2 * 6 * 13**2)
    monkeypatch.setattr(_report, "SIZE", 1000)
    served(*shown(recorded))


def test_what_a_report_can_not_hold_is_served(shown, make_recording):
    gaps = torch.rand(1, 1, 13, 13, generator=torch.Generator().manual_seed(3)) < 0.6
    query, key = torch.randn(2, 1, 3, 13, 5)
    served(*shown(RecordingSubject(make_recording([(query, key)], [gaps]), title="x")))
