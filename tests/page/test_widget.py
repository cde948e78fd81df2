"""The widget without a notebook: its messages, and its state in Python."""

import json
import sys
from base64 import b64decode
from types import SimpleNamespace

import pytest
import torch
import traitlets
from support.notebook import Elements

import regard
from regard.page import Explorer, ExplorerWidget
from regard.page.file.notebook import widget_module, widget_page

LIMIT = 30  # seconds, for what should not take any
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def widget(comms, subject):
    widget = ExplorerWidget(subject)
    yield widget
    widget.close()


@pytest.fixture
def notebook(monkeypatch):
    """Have Python believe that a kernel runs it."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))
    )


def test_its_page_and_its_answers_come_as_messages(widget, comms, client):
    comm = comms[-1]
    assert comm.state["_esm"] == widget_module()
    for number, (path, body) in enumerate(
        [("/", widget_page().encode()), ("/api/about", client.get("/api/about").content)]
    ):
        request = {"page": "p", "id": number, "method": "GET", "path": path}
        comm.receive({"method": "custom", "content": request})
        data, buffers = comm.sent.get(timeout=LIMIT)
        while "pending" in data["content"]:  # on a busy machine
            data, buffers = comm.sent.get(timeout=LIMIT)
        assert data["method"] == "custom"
        assert (data["content"]["id"], data["content"]["status"]) == (number, 200)
        assert buffers == [body]


def test_python_reads_what_is_chosen_and_does_not_write_it(widget, comms):
    assert widget.selection == dict.fromkeys(("layer", "head", "query", "key"))
    selections = []
    widget.observe(lambda change: selections.append(change.new), "selection")
    chosen = {"layer": 1, "head": 2, "query": 5, "key": None}
    comms[-1].receive({"method": "update", "state": {"selection": chosen}})
    assert widget.selection == chosen
    assert selections == [chosen]
    with pytest.raises(traitlets.TraitError, match="read-only"):
        widget.selection = chosen


def test_without_a_kernel_the_widget_shows_the_heads(widget):
    bundle, _ = widget._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png", VIEW}
    assert b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle[VIEW]["model_id"] == widget.model_id
    elements = Elements(bundle["text/html"])
    assert elements.text == "regard explore: a model. Run this cell to see the page."
    assert elements.actual["img"]["src"] == f"data:image/png;base64,{bundle['image/png']}"


def test_a_closed_one_answers_nothing(comms, subject):
    widget = ExplorerWidget(subject)
    comm = comms[-1]
    widget.close()
    widget.close()
    request = {"page": "p", "id": 1, "method": "GET", "path": "/api/health"}
    comm.receive({"method": "custom", "content": request})
    assert comm.sent.empty()


def test_in_a_notebook_a_model_is_shown_as_a_widget(comms, notebook, network):
    model, tokenizer = network
    widget = regard.explore(model, tokenizer=tokenizer, text="the dog", title="mine")
    assert isinstance(widget, ExplorerWidget)
    assert '"title":"mine"' in json.dumps(widget._subject.about(), separators=(",", ":"))
    widget.close()


def test_a_port_asks_for_a_server_in_a_notebook_too(notebook, padded):
    explorer = regard.explore(padded.recording, port=0)
    assert isinstance(explorer, Explorer)
    explorer.stop()


def test_without_anywidget_a_notebook_is_told_how_to_get_it(notebook, subject, monkeypatch):
    monkeypatch.setattr("regard.page.file.notebook.find_spec", lambda name: None)
    explorer = regard.explore(subject)
    explorer.stop()
    html = explorer._repr_html_()
    assert "pip install" in html
    assert "[notebook]" in html
    monkeypatch.delitem(sys.modules, "IPython")
    assert "pip install" not in explorer._repr_html_()  # no notebook


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="shown is a list; it must be a recording"):
        regard.explore([1, 2])
    with pytest.raises(TypeError, match="reads texts by its tokenizer"):
        regard.explore(torch.nn.Linear(3, 2))
