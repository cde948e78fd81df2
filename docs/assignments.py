"""Make assignments of the course: ``python docs/assignments.py build/assignments``.

An assignment is a page's exercises without its prose, which gives answers away; their solutions,
which the grader's own command takes out; and a point for each that the course's check finds right.
Each is written twice: for ``otter assign``, and for ``nbgrader generate_assignment``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import v4
from notebooks import LINK, blank, exercises, given, sources
from regard_course import Exercise
from regard_site.exercises import solution, solutions_of

_TITLE = re.compile(r"# (?P<number>\w+) · .+")
_IMPORTS = re.compile(r"^(?:import|from) .+$", flags=re.MULTILINE)


def write(folder: Path) -> list[Path]:
    """Write both notebooks of every page: each in a folder of its own, as the graders want them."""
    written = []
    for path in sources():
        for grader, book in (("otter", for_otter(path)), ("nbgrader/source", for_nbgrader(path))):
            target = folder / grader / path.stem / f"{path.stem}.ipynb"
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(book, target)
            written.append(target)
    return written


def for_otter(path: Path) -> nbformat.NotebookNode:
    """A page's exercises in the format of `otter assign`, whose marks stand in raw cells."""
    text = path.read_text("utf-8")
    config = "# ASSIGNMENT CONFIG\ninit_cell: true\ncheck_all_cell: true\nexport_cell: false\n"
    cells = [v4.new_raw_cell(f"{config}name: {path.stem}"), *_beginning(text)]
    for one, words in _asked(text):
        prompt = f'""" # BEGIN PROMPT\n{blank(one)}\n"""; # END PROMPT'
        solved = f"# BEGIN SOLUTION NO PROMPT\n{_solved(one)}\n# END SOLUTION"
        cells += [
            v4.new_raw_cell(f"# BEGIN QUESTION\nname: {_name(one)}\npoints: 1"),
            v4.new_markdown_cell(words),
            v4.new_raw_cell("# BEGIN SOLUTION"),
            v4.new_code_cell(f"{solved}\n{prompt}"),
            v4.new_raw_cell("# END SOLUTION"),
            v4.new_raw_cell("# BEGIN TESTS"),
            v4.new_code_cell(_test(one)),
            v4.new_raw_cell("# END TESTS"),
            v4.new_raw_cell("# END QUESTION"),
        ]
    return _book(cells)


def for_nbgrader(path: Path) -> nbformat.NotebookNode:
    """A page's exercises in the format of nbgrader, which reads what a cell is in its metadata."""
    text = path.read_text("utf-8")
    cells = [
        _marked(cell, f"beginning_{at}", locked=True) for at, cell in enumerate(_beginning(text))
    ]
    for one, words in _asked(text):
        solved = f"### BEGIN SOLUTION\n{_solved(one)}\n### END SOLUTION"
        asked = f"# {given(one)}: {one.expects}"
        name = _name(one)
        cells += [
            _marked(v4.new_markdown_cell(words), f"{name}_asked", locked=True),
            _marked(v4.new_code_cell(f"{asked}\n{solved}"), name, solution=True),
            _marked(v4.new_code_cell(_test(one)), f"{name}_check", grade=True, locked=True),
        ]
    return _book(cells)


def _beginning(text: str) -> list[nbformat.NotebookNode]:
    """The page's title, and what its solutions import."""
    match = _TITLE.match(text)
    assert match is not None, "a page of the course begins with its number and title"
    imports = _IMPORTS.findall(solutions_of(match["number"]))
    cells = [v4.new_markdown_cell(f"{match[0]}: exercises")]
    return [*cells, v4.new_code_cell("\n".join(imports))] if imports else cells


def _asked(text: str) -> Iterator[tuple[Exercise, str]]:
    """Each exercise with what the page says; of links to other pages the words stay."""
    for one, match in exercises(text):
        yield one, LINK.sub(r"\g<words>", match[0]).strip()


def _solved(one: Exercise) -> str:
    why, code = solution(one.number)
    return f"# {why}\n{code}"


def _test(one: Exercise) -> str:
    """The course's own check: what fails says which number is wrong, and why."""
    return (
        "from regard_course import check\n\n"
        f'verdict = check("{one.number}", {given(one)})\nassert verdict.right, verdict'
    )


def _name(one: Exercise) -> str:
    """A name without a full stop, which neither grader takes."""
    return f"exercise_{one.number.replace('.', '_')}"


def _marked(
    cell: nbformat.NotebookNode,
    name: str,
    *,
    grade: bool = False,
    solution: bool = False,
    locked: bool = False,
) -> nbformat.NotebookNode:
    """The cell with what nbgrader wants to know of it, in version 3 of its metadata."""
    kinds = {"grade": grade, "solution": solution, "locked": locked, "task": False}
    cell.metadata["nbgrader"] = {"schema_version": 3, "grade_id": name, **kinds}
    if grade:
        cell.metadata["nbgrader"]["points"] = 1
    return cell


def _book(cells: list[nbformat.NotebookNode]) -> nbformat.NotebookNode:
    for at, cell in enumerate(cells):
        cell["id"] = f"cell-{at}"  # the same from run to run
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


if __name__ == "__main__":
    for _path in write(Path(sys.argv[1])):
        print(_path)
