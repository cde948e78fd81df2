"""Hints name an install command that works where they are shown."""

import importlib.metadata
import json
import shlex

import pytest

from regard import _extras


def installed(monkeypatch, origin):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (
            {"url": "file:///home/me/a%20folder", "dir_info": {"editable": True}},
            "--editable|/home/me/a folder[plot]",
        ),
        ({"url": "file:///home/me/regard", "dir_info": {}}, "/home/me/regard[plot]"),
        (
            {"url": "https://host/regard", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "regard[plot] @ git+https://host/regard@0a1b",
        ),
        (
            {"url": "file:///tmp/regard-0.1.0.whl", "archive_info": {}},
            "regard[plot] @ file:///tmp/regard-0.1.0.whl",
        ),
        (None, "regard[plot]"),  # from an index
    ],
)
def test_an_extra_comes_from_where_the_package_came(monkeypatch, origin, requirement):
    installed(monkeypatch, origin)
    assert shlex.split(_extras.install("plot")) == ["pip", "install", *requirement.split("|")]


def test_a_checkout_that_is_not_installed_is_named_by_its_folder(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(_extras, "_CHECKOUT", tmp_path)
    assert _extras.install("plot") == "pip install 'regard[plot]'"
    (tmp_path / "pyproject.toml").touch()
    assert shlex.split(_extras.install("plot")) == ["pip", "install", f"{tmp_path}[plot]"]
