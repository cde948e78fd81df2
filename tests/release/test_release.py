"""What a release states: its version, notices of the files of others, workflows that can run."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(path):
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return [(name, job, step) for name, job in jobs.items() for step in job["steps"]]


def test_the_version_stands_in_one_place():
    stated = re.compile(r"^\s*(__version__|version)\s*[:=]\s*[\"']?\d", flags=re.MULTILINE)
    files = [ROOT / "CITATION.cff", *(ROOT / "regard").rglob("*.py"), *(ROOT / "src").rglob("*.*")]
    again = [path.name for path in files if stated.search(path.read_text("utf-8"))]
    assert not again


def test_the_changelog_begins_with_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changes, flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"]


def test_the_citation_names_the_licence_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["license"] == PROJECT["license"]
    assert citation["title"].startswith(PROJECT["name"])


def test_the_notices_name_every_file_of_others():
    notices = (ROOT / "NOTICE.md").read_text("utf-8")
    skipped = {".venv", "build", "node_modules", ".git"}
    vendored = [
        path
        for folder in ("regard", "src", "course", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and ("vendor" in path.parts or path.suffix in {".woff", ".woff2", ".ttf", ".LICENSE"})
        and not skipped & set(path.parts)
    ]
    assert vendored
    for path in vendored:
        if path.name != "README.md":  # which is the project's own
            assert f"`{path.relative_to(ROOT).as_posix()}`" in notices


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_this_checkout_has(path):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for _, _, step in steps(path):
        command = step.get("run", "")
        for target in re.findall(r"^make (.+)$", command, flags=re.MULTILINE):
            assert set(target.split()) <= set(targets)
        for file in re.findall(r"(?:python |^)((?:tools|\.ci)/\S+)", command, flags=re.MULTILINE):
            assert (ROOT / file).is_file()
        for folder in re.findall(r" ((?:tests|regard)\b\S*)", command):
            assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_takes_actions_by_their_commit_and_keeps_no_secret(path):
    text = path.read_text("utf-8")
    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    for name, job, step in steps(path):
        assert re.search(r"@[0-9a-f]{40}$", step.get("uses", f"@{'0' * 40}"))
        assert name == "publish" or "permissions" not in job
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_the_wheels_that_are_tried_are_those_that_are_built():
    import targets

    tried = re.findall(r"tag: (\S+)", (ROOT / ".github/workflows/wheels.yml").read_text("utf-8"))
    # torch has had no wheel for macOS on x86-64 since 2.3, so nothing there could install ours.
    assert {*tried, "macosx_11_0_x86_64"} == {target.tag for target in targets.TARGETS}
