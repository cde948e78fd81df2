"""Every page is there, says what its Markdown says, and leads somewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from regard_site.markup import render
from regard_site.sources import ROOT, colours, sections

LIMIT = 15_000_000  # bytes


class Read(HTMLParser):
    """What a page refers to, which anchors it has, and what its code blocks say."""

    def __init__(self, path):
        super().__init__()
        self.path, self.links, self.loads, self.anchors, self.code = path, [], [], [], []
        self._in_code = self._in_solution = False
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.anchors.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        address = attributes.get("src") or (tag == "link" and attributes.get("href"))
        if address:
            self.loads.append(address)
        if tag == "details":
            self._in_solution = attributes.get("class") == "solution"
        if tag == "pre" and not self._in_solution:
            self._in_code = True
            self.code.append("")

    def handle_endtag(self, tag):
        if tag == "details":
            self._in_solution = False
        if tag == "pre":
            self._in_code = False

    def handle_data(self, data):
        if self._in_code:
            self.code[-1] += data


@pytest.fixture(scope="module")
def read(site):
    return {path: Read(path) for path in site.rglob("*.html")}


def test_every_link_and_anchor_exists(read):
    broken = []
    for path, page in read.items():
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if parts.scheme:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if "=" in anchor:  # what the live page is to show
                anchor = ""
            if not file.is_file() or (anchor and anchor not in read[file].anchors):
                broken.append((path.name, target))
    assert broken == []


def test_no_sign_of_markdown_is_left(site):
    for path in site.rglob("*.html"):
        lines = re.findall(r"<(p|li|td)>([^<>]{0,3})</\1>", path.read_text("utf-8"))
        assert not [text for _, text in lines if set("[]*`!#") & set(text)], path


def test_no_anchor_stands_twice_on_a_page(read):
    assert all(len(page.anchors) == len(set(page.anchors)) for page in read.values())


def test_nothing_is_loaded_from_elsewhere(read, site):
    loads = {target for page in read.values() for target in page.loads}
    assert {urlsplit(target).scheme for target in loads} == {"", "data"}
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert "http" not in styles
    assert "@import" not in styles


def test_it_is_small(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < LIMIT


@pytest.mark.parametrize("page", [p for s in sections() for p in s.pages], ids=lambda p: p.address)
def test_code_and_numbers_are_those_of_the_markdown(page, read, site):
    fences = re.findall(r"^```\w*\n(.*?)^```$", page.text(), flags=re.DOTALL | re.MULTILINE)
    code = [text.rstrip("\n") for text in read[site / page.address].code]
    # A prompt with nothing after it has a space on the page, as the others have.
    assert [re.sub(r"^(>>>|\.\.\.) $", r"\1", text, flags=re.MULTILINE) for text in code] == [
        text.rstrip("\n") for text in fences
    ]


def test_every_page_of_docs_is_on_the_site():
    written = {page.source for section in sections() for page in section.pages}
    docs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert docs < written


def test_a_link_to_no_page_and_html_are_refused():
    def nowhere(target):
        raise ValueError(f"no page {target}")

    with pytest.raises(ValueError, match=r"no page gone\.md"):
        render("[here](gone.md)", link=nowhere)
    with pytest.raises(ValueError, match="HTML other than comments"):
        render("text\n\n<b>bold</b>", link=nowhere)
    assert "comment" not in render("text\n\n<!-- a comment -->", link=nowhere).html


def test_formulas_need_no_script(site):
    page = (site / "01-averaging.html").read_text("utf-8")
    assert page.count("<math") == 2
    assert "<msub>" in page
    assert "$" not in re.sub(r"<(script|pre)\b.*?</\1>", "", page, flags=re.DOTALL)


def test_colours_are_those_of_the_explorer_s_page():
    page = (Path(ROOT) / "regard/page/static/page.css").read_text("utf-8")
    light, dark = colours().split("\n:root[")
    for block in (light, dark):
        for name in ("paper", "ink", "soft", "accent", "changed", "line"):
            assert re.search(rf"--{name}: (#\w+);", block)[0] in page
    assert light != dark
