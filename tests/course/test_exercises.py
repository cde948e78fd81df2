"""Of every exercise the solution passes, mistakes are recognised, and the page has it."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from regard_course import Answer, check, pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = pages()
EXERCISES = [one for page in PAGES for one in page.exercises]
ON_PAGE = re.compile(r"\*\*Exercise (?P<number>\w+\.\d+)\*\* \((?P<kind>[\w ]+), \d+ minutes?\)\.")
ABLE = re.compile(r"(?ms)^## After this page you can\n\n(.+?)\n\n## Exercises$")
FOLDED = re.compile(r"<details><summary>Hint</summary>(.+?)</details>", flags=re.DOTALL)


def file_number(page):
    """The number of a page as files have it, such as 05 or 09a."""
    digits = re.match(r"\d+", page.number)[0]
    return digits.zfill(2) + page.number.removeprefix(digits)


def markdown(page):
    (path,) = DOCS.glob(f"{file_number(page)}-*.md")
    return path.read_text("utf-8")


def solution_text(page):
    return (DOCS / "solutions" / f"{file_number(page)}.py").read_text("utf-8")


def solutions(page):
    path = DOCS / "solutions" / f"{file_number(page)}.py"
    spec = spec_from_file_location(f"solutions_{file_number(page)}", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def by_number(page):
    return f"page {page.number}"


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_solutions_are_right(page):
    names = solutions(page)
    for one in page.exercises:
        verdict = check(one.number, names[one.variable if isinstance(one, Answer) else one.name])
        assert verdict.right, verdict.text


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_solutions_stand_in_the_order_of_the_exercises(page):
    numbers = re.findall(r"^# (\w+\.\d+):", solution_text(page), flags=re.MULTILINE)
    assert numbers == [one.number for one in page.exercises]


@pytest.mark.parametrize("one", EXERCISES, ids=[one.number for one in EXERCISES])
def test_mistakes_are_recognised_by_their_names(one):
    for mistake in one.mistakes:
        verdict = check(one.number, mistake.wrong)
        assert not verdict.right, mistake.name
        assert f"\nMistake: {mistake.name}. {mistake.why}\n" in verdict.text
        assert verdict.text.endswith(f"\nHint: {one.hint}"), mistake.name


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_a_page_has_the_exercises_that_are_checked(page):
    text = markdown(page)
    assert text.startswith(f"# {page.number} · {page.title}\n")
    on_page = [(match["number"], match["kind"]) for match in ON_PAGE.finditer(text)]
    assert on_page == [(one.number, one.kind) for one in page.exercises]
    for one in page.exercises:
        assert f"`regard check {one.number} " in text
        if not isinstance(one, Answer):
            assert f"`{one.signature}`" in text
            assert one.title.startswith(f"{one.signature}: ")


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_the_hints_of_a_page_are_those_of_the_command(page):
    folded = [" ".join(hint.replace("`", "").split()) for hint in FOLDED.findall(markdown(page))]
    assert folded == [one.hint.replace("`", "") for one in page.exercises]


def test_every_page_with_exercises_has_checks():
    with_exercises = {
        path.name for path in DOCS.glob("[0-9]*.md") if ON_PAGE.search(path.read_text("utf-8"))
    }
    assert {name.partition("-")[0] for name in with_exercises} == {
        file_number(one) for one in PAGES
    }


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_a_page_has_exercises_of_every_kind(page):
    kinds = [one.kind for one in page.exercises]
    assert kinds.count("predict") >= 1
    assert kinds.count("by hand") >= 2
    assert kinds.count("write") >= 2
    assert kinds.count("break") >= 1
    names = [one.name for one in page.exercises if not isinstance(one, Answer)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_a_page_says_three_things_that_one_can_do_after_it_and_which_exercise_shows_each(page):
    (able,) = ABLE.findall(markdown(page))
    things = re.split(r"^\* ", able, flags=re.MULTILINE)[1:]
    assert len(things) == 3
    for thing in things:
        said, _, named = thing.partition(": ")
        assert 3 <= len(said.split()) <= 25, thing
        numbers = set(re.findall(r"\b(?:\d+[a-z]?)\.\d+\b", named))
        assert numbers, thing
        assert numbers <= {one.number for one in page.exercises}
        for number, anchor in re.findall(r"\[exercise (\S+)\]\(#exercise-([\w-]+)\)", named):
            assert anchor == number.replace(".", "-")


@pytest.mark.parametrize("page", PAGES, ids=by_number)
def test_an_exercise_names_its_mistakes(page):
    for one in page.exercises:
        names = {mistake.name for mistake in one.mistakes}
        assert len(names) == len(one.mistakes) > 0
        assert one.title == one.title.strip().rstrip(".")
