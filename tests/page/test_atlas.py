"""The pages of an atlas as files: all heads are there, text is harmless, each is small."""

import json
import re
from types import SimpleNamespace

import pytest
from support.atlas import BYTES, COLUMNS, EXAMPLES, HEADS, LAYERS, SCRIPT, MadeUp

from regard.page.atlas import write_atlas

LARGEST = 40_000  # bytes of a head's own folder


@pytest.fixture(scope="module")
def atlas():
    return MadeUp()


@pytest.fixture(scope="module")
def folder(atlas, tmp_path_factory):
    index = write_atlas(atlas, tmp_path_factory.mktemp("atlas"))
    assert index.name == "index.html"
    return index.parent


def data_of(page):
    """What the one script of data holds; a page has no other that is not a file."""
    text = page.read_text("utf-8")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script", text, re.DOTALL)
    (held,) = [content for attributes, content in scripts if "application/json" in attributes]
    assert all(not content for attributes, content in scripts if "src=" in attributes)
    assert len(scripts) == 3
    return json.loads(held)


def test_all_heads_have_a_row_and_a_page(folder, atlas):
    heads = data_of(folder / "index.html")["heads"]
    assert [(one["layer"], one["head"]) for one in heads] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    pages = {path.parent.name for path in folder.glob("L*/index.html")}
    assert pages == {f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)}
    for one, row in zip(heads, atlas.rows, strict=True):
        assert one["words"] == row["words"]
        for k, (name, *_) in enumerate(COLUMNS):
            assert one["values"][k] == (
                None if row[name] is None else pytest.approx(row[name], rel=1e-3)
            )


def test_what_was_not_measured_is_null_and_never_0(tmp_path):
    row = {"layer": 0, "head": 0, "role": None, "evidence": None, "a": None, "b": float("nan")}
    columns = [{"name": name, "title": name} for name in ("a", "b", "c", "d")]
    one = SimpleNamespace(
        about={}, columns=columns, rows=[{**row, "d": 0.0}], details=lambda *_: {"needed": None}
    )
    write_atlas(one, tmp_path)
    (head,) = data_of(tmp_path / "index.html")["heads"]
    assert head["values"] == [None, None, None, 0]
    assert head["margins"] == [None] * 4
    details = data_of(tmp_path / "L0H0" / "index.html")
    assert details["needed"] is details["profile"] is details["previous"] is details["next"] is None


def test_a_heads_folder_is_small(folder):
    for page in folder.glob("L*"):
        own = sum(path.stat().st_size for path in page.rglob("*"))
        examples = data_of(page / "index.html")["examples"]
        assert {name: len(all_) for name, all_ in examples.items()} == dict.fromkeys(
            ("moved", "received", "effect", "deciles", "sample"), EXAMPLES
        )
        assert own < LARGEST


@pytest.mark.parametrize("kind", ["moved", "received"])  # links before the position, and after
def test_an_example_keeps_its_tokens_and_links(folder, atlas, kind):
    data = data_of(folder / "L3H2" / "index.html")
    given = atlas.details(3, 2)["examples"][kind]
    for one, true in zip(data["examples"][kind], given, strict=True):
        source, position, start, tokens, value, *_, decile, links = one
        assert data["sources"][source] == true["source"]
        assert (position, start, decile) == (true["position"], true["start"], None)
        assert value == pytest.approx(true["value"], rel=5e-3)
        # Spaces are as they are, a line break has its sign.
        assert tokens.split("\n") == [token.replace("\n", "↵") for token in true["tokens"]]
        for link, truly in zip(links, true["links"], strict=True):
            inside = start <= truly["position"] < start + len(true["tokens"])
            assert link[0] == truly["position"]
            assert link[1] == pytest.approx(truly["weight"], rel=5e-3)
            assert len(link) == (3 if inside else 5)
            if not inside:
                assert link[3].split("\n")[link[4]] == truly["tokens"][truly["at"]]


def test_heads_name_their_neighbours(folder):
    first, middle = (data_of(folder / name / "index.html") for name in ("L0H0", "L2H0"))
    assert (first["previous"], first["next"]) == (None, [0, 1])
    assert (middle["previous"], middle["next"]) == ([1, HEADS - 1], [2, 1])


def test_tokens_and_names_end_no_script(tmp_path):
    atlas = MadeUp(layers=1, heads=1)
    atlas.about = {"model": f"{SCRIPT} {{{{DATA}}}}", "corpus": [SCRIPT]}
    write_atlas(atlas, tmp_path)
    page = tmp_path / "L0H0" / "index.html"
    assert any(
        SCRIPT in one[3] and BYTES[0] in one[3] for one in data_of(page)["examples"]["moved"]
    )
    text = page.read_text("utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 3
    assert "</script" not in (tmp_path / "static" / "about.js").read_text("utf-8")


def test_it_reaches_nothing_outside_its_folder(folder):
    for page in (folder / "index.html", folder / "L1H1" / "index.html"):
        text = page.read_text("utf-8")
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy.startswith("default-src 'none'; img-src data:; style-src 'self'")
        links = re.findall(r'(?:src|href)="([^"]*)"', text)
        own = [link for link in links if not link.startswith("data:image/svg+xml,")]
        assert len(own) == 3
        assert all((page.parent / link).is_file() for link in own)
    code = (folder / "static" / "atlas.js").read_text("utf-8")
    assert not re.search(
        r"^(?:import|export)\b|\bfetch\(|\binnerHTML\b|\beval\(", code, re.MULTILINE
    )
