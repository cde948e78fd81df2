"""Notebooks say what their pages say; one of them runs in a kernel."""

import re
from collections import Counter

import pages
import pytest
from regard_course import pages as course_pages

nbformat = pytest.importorskip("nbformat")
import notebooks  # noqa: E402  # it needs nbformat

FIRST = pages.FOLDER / "01-averaging.md"


def outputs_of(cell):
    """What stands under a cell, as text."""
    texts = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs]
    return "".join(f"{text}\n" if not text.endswith("\n") else text for text in texts)


def test_a_notebook_has_code_without_prompts_outputs_pictures_and_cells_to_answer_in():
    book = notebooks.notebook(FIRST)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(re.search(r"^(>>>|\.\.\.) ", cell.source, re.MULTILINE) for cell in code)
    (row,) = (cell for cell in code if cell.source == "by_loop[0, :, :3]")
    assert outputs_of(row).startswith("tensor([[0.2961, 0.5166, 0.2517],\n        [0.5070, ")
    (triangle,) = (
        cell for cell in code if cell.source.startswith("triangle = torch.tril(torch.ones(3")
    )
    assert triangle.source.endswith("\ntriangle")
    pictures = [cell for cell in book.cells if "attachments" in cell]
    assert [list(cell.attachments) for cell in pictures] == [["averaging.svg"]]
    text = "".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert "(02-weights-from-the-data.ipynb)" in text
    assert "<!--" not in text
    assert not re.search(r"\]\([^):]+\.(md|py|svg)", text)


def test_every_exercise_has_a_cell_to_answer_in():
    texts = [path.read_text("utf-8") for path in notebooks.sources()]
    cells = [
        cell.source for text in texts for cell in notebooks.prose(text) if cell.cell_type == "code"
    ]
    checked = Counter(re.findall(r'check\("([^"]+)"', "\n".join(cells)))
    assert checked == Counter(one.number for page in course_pages() for one in page.exercises)


# Nothing that takes seconds to import.
SMALL = """# Small

```python
def double(x):
    return 2 * x
```

```python
>>> double(21)
42
>>> print(double("ab"))
abab
```
"""


def test_what_is_folded_around_code_is_left_open():
    hint = "<details><summary>Hint</summary>\n\nh\n\n</details>"
    opens = f"{hint}\n\na\n\n<details><summary>Code</summary>\n\n"
    assert [cell.source for cell in notebooks.prose(opens)] == [f"{hint}\n\na"]
    closes = f"b\n\n</details>\n{hint}"
    assert [cell.source for cell in notebooks.prose(closes)] == [f"b\n\n{hint}"]


@pytest.mark.parametrize("page", ["small", pytest.param("first", marks=pytest.mark.thorough)])
def test_a_notebook_runs_in_a_kernel_and_shows_what_the_page_shows(page, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = FIRST
    if page == "small":
        path = tmp_path / "small.md"
        path.write_text(SMALL, "utf-8")
    book = notebooks.notebook(path)
    expected = [outputs_of(cell) for cell in book.cells if cell.cell_type == "code"]
    nbclient.NotebookClient(book, timeout=120).execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell, text in zip(code, expected, strict=True):
        if "from regard_course import check" in cell.source:  # not answered yet
            assert cell.outputs[-1].ename == "Error"
        else:
            assert outputs_of(cell) == text
