"""`regard check`: its exit status, and what it shows."""

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from regard_course import pages

PROJECT = Path(__file__).parents[2] / "course/pyproject.toml"


def test_the_course_names_the_command_that_regard_asks_for():
    named = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"]
    (value,) = named["regard.commands"].values()
    run = EntryPoint("check", value, "regard.commands").load()
    assert run("1.3", ["6", "3", "3", "4"])


def test_without_the_course_one_line_names_the_cure(misused, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    assert "pip install regard-course" in misused("check")
    assert "pip install regard-course" in misused("check", "5.5", "my.py")


def test_all_exercises_stand_under_their_pages(regard):
    done = regard("check")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    at = lines.index("5 · The causal mask")
    assert (
        lines[at + 1]
        == "  5.1    predict  The weight that row 0 gives itself under the causal mask"
    )


@pytest.mark.parametrize(("third", "width"), [(0, 60), (1, 80), (2, 120)])
def test_lines_fit_the_terminal(regard, monkeypatch, third, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = regard("check")
    assert max(map(len, done.out.splitlines())) <= width
    words = " ".join(done.out.split())
    exercises = [exercise for page in pages() for exercise in page.exercises]
    assert all(exercise.title in words for exercise in exercises)
    for exercise in exercises[3 * third :: 9]:
        assert max(map(len, regard("check", exercise.number).out.splitlines())) <= width


def test_one_exercise_says_what_it_expects(regard):
    done = regard("check", "5.5")
    assert (done.status, done.err) == (0, "")
    assert "Expected: a function causal_mask(length)." in done.out
    assert "Check it: regard check 5.5 my.py" in done.out
    assert "\nHint: " in done.out


def test_right_and_wrong_answers(regard):
    assert regard("check", "5.3", "1/2", "0.5", "0") == (0, "5.3 right.\n", "")
    assert regard("check", "5.3", "1/2, 1/2, 0").status == 0
    done = regard("check", "5.4", "-24")
    assert (done.status, done.err) == (1, "")
    assert done.out.startswith("5.4 wrong: -24 is not it.\n")
    assert regard("check", "5.7", "row", "0").status == 0


def test_a_file_and_what_it_prints(regard, tmp_path):
    path = tmp_path / "my.py"
    path.write_text("print('seen ' * 1000)\nanswer = 24", "utf-8")
    done = regard("check", "5.4", path)
    assert (done.status, done.err) == (1, "")
    assert done.out.startswith("seen seen ")
    assert len(done.out) < 4400
    cut = "… (the rest of what it prints is left out)\n"
    assert f"{cut}5.4 wrong: 24 is not it.\nMistake: no mask. " in done.out


def test_what_cannot_be_checked_is_one_line(misused):
    assert "there is no exercise '5.x'" in misused("check", "5.x")
    assert "'half' is neither a number nor a Python file" in misused("check", "5.3", "half")
    assert "'--half' is neither a number" in misused("check", "5.3", "--half")
    assert "'1/0' is neither a number" in misused("check", "5.3", "1/0")
    assert "takes one Python file that defines causal_mask(length); got '3'" in misused(
        "check", "5.5", "3"
    )
    assert "no.py is not a file" in misused("check", "5.5", "no.py")
