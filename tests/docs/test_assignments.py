"""Assignments have each exercise once, in the forms that otter-grader 7 and nbgrader 0.9 read.

`make graders` grades them with both.
"""

import re

import pytest
from regard_course import Answer, check, pages

nbformat = pytest.importorskip("nbformat")
import assignments  # noqa: E402  # it needs nbformat

PAGES = dict(zip(assignments.sources(), pages(), strict=True))


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Every notebook that is written, by its grader and page."""
    folder = tmp_path_factory.mktemp("assignments")
    written = {path: nbformat.read(path, 4) for path in assignments.write(folder)}
    assert len(written) == 2 * len(PAGES)
    return {
        grader: {
            page: written[folder / grader / page.stem / f"{page.stem}.ipynb"] for page in PAGES
        }
        for grader in ("otter", "nbgrader/source")
    }


@pytest.mark.parametrize("grader", ["otter", "nbgrader/source"])
def test_a_notebook_is_valid_and_leads_nowhere(books, grader):
    for path, book in books[grader].items():
        nbformat.validate(book)
        assert len({cell.id for cell in book.cells}) == len(book.cells)
        prose = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
        assert "](" not in prose
        numbers = re.findall(r"^\*\*Exercise (\w+\.\d+)\*\*", prose, re.MULTILINE)
        assert numbers == [one.number for one in PAGES[path].exercises]


def test_nbgrader_finds_a_cell_to_answer_in_and_one_to_grade(books):
    for path, book in books["nbgrader/source"].items():
        marks = [cell.metadata.nbgrader for cell in book.cells]
        assert {one.schema_version for one in marks} == {3}
        names = [one.grade_id for one in marks]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"\w+", name) for name in names)
        solutions = [one.grade_id for one in marks if one.solution and not one.grade]
        graded = {one.grade_id: one for one in marks if one.grade}
        assert [*graded] == [f"{name}_check" for name in solutions]
        assert all(one.locked and not one.solution for one in graded.values())
        assert sum(one.points for one in graded.values()) == len(PAGES[path].exercises)
        for cell in book.cells:
            has_solution = "### BEGIN SOLUTION\n" in cell.source
            assert has_solution == cell.source.endswith("\n### END SOLUTION")
            assert has_solution == cell.metadata.nbgrader.solution


OTTER = ["# BEGIN QUESTION", "# BEGIN SOLUTION", "# END SOLUTION", "# BEGIN TESTS"]
OTTER += ["# END TESTS", "# END QUESTION"]


def test_otter_finds_a_question_with_solution_prompt_and_test(books):
    for path, book in books["otter"].items():
        first, *marks = [cell.source.splitlines() for cell in book.cells if cell.cell_type == "raw"]
        assert first[0] == "# ASSIGNMENT CONFIG"
        assert [one[0] for one in marks] == OTTER * len(PAGES[path].exercises)
        names = [one[1].removeprefix("name: ") for one in marks if len(one) > 1]
        assert all(re.fullmatch(r"\w+", name) for name in names)
        assert len(set(names)) == len(PAGES[path].exercises)


@pytest.mark.parametrize("grader", ["otter", "nbgrader/source"])
def test_every_cell_runs_and_the_solutions_are_right(books, grader):
    for path, book in books[grader].items():
        names = {}
        for cell in book.cells:
            if cell.cell_type == "code":
                exec(cell.source, names)
        for one in PAGES[path].exercises:
            given = names[one.variable if isinstance(one, Answer) else one.name]
            assert check(one.number, given).right


def test_a_test_fails_with_what_the_check_says(books):
    (path,) = (path for path, page in PAGES.items() if page.number == "5")
    (cell,) = (cell for cell in books["otter"][path].cells if 'check("5.3"' in cell.source)
    with pytest.raises(AssertionError, match="Mistake: itself hidden"):
        exec(cell.source, {"answer_5_3": [1.0, 0.0, 0.0]})
