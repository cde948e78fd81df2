"""Both graders give a point for each right answer, and none for a mistake or an empty cell.

Run by ``make graders``: they bring JupyterLab and much beside it. Each runs as a teacher runs it,
on what `make assignments` writes of page 5.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from regard_course import Answer, exercise, pages
from regard_site.exercises import solution

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("otter", reason="in an environment of its own: make graders")
pytest.importorskip("nbgrader", reason="in an environment of its own: make graders")

ROOT = Path(__file__).parents[3]
PAGE = "05-causal-mask"
(EXERCISES,) = (page.exercises for page in pages() if page.number == "5")
NAMES = [f"exercise_{one.number.replace('.', '_')}" for one in EXERCISES]


def run(*command, folder):
    """Run a command that is installed beside this Python, which is its kernel's too."""
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ["PATH"]])
    done = subprocess.run(
        [beside / command[0], *command[1:]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def assignments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assignments")
    run("python", ROOT / "docs/assignments.py", folder, folder=ROOT)
    return folder


def right(one):
    return solution(one.number)[1]


def mistaken(one):
    """The first mistake that the exercise names."""
    if isinstance(one, Answer):
        return f"{one.variable} = {one.mistakes[0].wrong!r}"
    wrong = f'exercise("{one.number}").mistakes[0].wrong'
    return f"from regard_course import exercise\n{one.name} = {wrong}"


def filled(path, write):
    """A student's notebook with what this writes in the cells to answer in."""
    book = nbformat.read(path, 4)
    cells = [cell for cell in book.cells if is_to_answer(cell)]
    for cell, one in zip(cells, EXERCISES, strict=True):
        cell.source = write(one)
    return book


def is_to_answer(cell):
    tags, marks = cell.metadata.get("tags", []), cell.metadata.get("nbgrader", {})
    return "otter_answer_cell" in tags or marks.get("solution", False)


WRITERS = {"right": right, "mistaken": mistaken}


@pytest.fixture(scope="module")
def otter(assignments):
    """The folder of the assignment, after `otter assign`."""
    folder = assignments / "otter" / PAGE
    run("otter", "assign", f"{PAGE}.ipynb", "dist", folder=folder)
    return folder


@pytest.mark.parametrize("kind", ["right", "mistaken", "empty"])
def test_otter_grades(otter, kind):
    given, graded = otter / f"{kind}.ipynb", otter / kind
    graded.mkdir()
    student = otter / f"dist/student/{PAGE}.ipynb"
    book = filled(student, WRITERS[kind]) if kind in WRITERS else nbformat.read(student, 4)
    nbformat.write(book, given)
    (zipped,) = (otter / "dist/autograder").glob("*.zip")
    run("otter", "run", "-a", zipped, "-o", graded, given, folder=otter)
    results = json.loads((graded / "results.json").read_text("utf-8"))["tests"]
    tests = {one["name"]: one for one in results if "max_score" in one}
    assert [*tests] == NAMES
    assert {one["score"] for one in tests.values()} == {float(kind == "right")}
    if kind == "mistaken":
        for one, name in zip(EXERCISES, NAMES, strict=True):
            assert f"Mistake: {one.mistakes[0].name}." in tests[name]["output"]


def test_otters_students_see_no_solution(otter):
    student = nbformat.read(otter / f"dist/student/{PAGE}.ipynb", 4)
    text = "\n".join(cell.source for cell in student.cells)
    assert 'grader.check("exercise_5_5")' in text
    for one in EXERCISES:
        assert right(one) not in text


def test_nbgrader_grades(assignments):
    folder = assignments / "nbgrader"
    run("nbgrader", "generate_assignment", PAGE, "--create", folder=folder)
    released = folder / f"release/{PAGE}/{PAGE}.ipynb"
    student = nbformat.read(released, 4)
    text = "\n".join(cell.source for cell in student.cells)
    for one in EXERCISES:
        assert right(one) not in text
    given = {kind: filled(released, write) for kind, write in WRITERS.items()}
    for kind, book in {**given, "empty": student}.items():
        target = folder / f"submitted/{kind}/{PAGE}/{PAGE}.ipynb"
        target.parent.mkdir(parents=True)
        nbformat.write(book, target)
    run("nbgrader", "autograde", PAGE, "--create", folder=folder)
    run("nbgrader", "export", folder=folder)
    with (folder / "grades.csv").open(encoding="utf-8", newline="") as file:
        grades = {
            row["student_id"]: (row["score"], row["max_score"]) for row in csv.DictReader(file)
        }
    every = f"{len(EXERCISES)}.0"
    assert grades == {"right": (every, every), "mistaken": ("0.0", every), "empty": ("0.0", every)}

    graded = nbformat.read(folder / f"autograded/mistaken/{PAGE}/{PAGE}.ipynb", 4)
    said = {
        cell.metadata.nbgrader.grade_id: cell.outputs[-1].evalue
        for cell in graded.cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    for one, name in zip(EXERCISES, NAMES, strict=True):
        assert f"Mistake: {exercise(one.number).mistakes[0].name}." in said[f"{name}_check"]
