"""`regard explore`: what it shows; how it serves is tested beside the explorer."""

import pytest


@pytest.fixture
def shown(monkeypatch):
    """The subjects that the command has shown."""
    subjects = []

    class Explorer:
        url, port, computing = "http://127.0.0.1:9/", 9, False

        def __init__(self, subject, *, host, **_):
            subjects.append(subject)
            self.is_everywhere = host == "0.0.0.0"

        def serve(self):
            pass

    monkeypatch.setattr("regard.page.Explorer", Explorer)
    monkeypatch.setattr("gc.freeze", lambda: None)  # for good, in this process
    return subjects


def test_a_model_is_set_by_the_option(regard, model, shown):
    assert regard("explore", "--no-open", "--model", model).status == 0
    assert regard("explore", "--no-open").status == 0
    titles = [subject.about()["title"] for subject in shown]
    assert titles == [model.name, "the model that comes with regard"]


def test_weights_are_kept_as_int8_where_asked_for(regard, misused, model, shown):
    assert regard("explore", "--no-open", "--model", model, "--weights", "int8").status == 0
    assert shown[0].model.module.has_int8_weights
    line = misused("explore", "--model", model, "--weights", "int4")
    assert "--weights is 'int4': expected int8" in line


def test_a_server_that_other_machines_reach_says_so(regard, model, shown):
    def lines(*options):
        return regard("explore", "--no-open", "--model", model, *options).out.splitlines()

    here = "http://127.0.0.1:9/  (Ctrl-C ends)"
    assert lines() == lines("--host", "localhost") == [here]
    first, second = lines("--host", "0.0.0.0")
    assert first == here
    assert second.startswith("Other machines reach it, without a password, ")
    assert second.endswith(", port 9")
