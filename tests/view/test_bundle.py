"""Modules in one script: in order, with what they export, and nothing that is not understood."""

import json
import re
import shutil
import subprocess

import pytest

from regard.page.file import bundle
from regard.page.file.bundle import deflated, embedded, policy, script, static


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_FOLDER", tmp_path)

    def write(**modules):
        (tmp_path / "sub").mkdir(exist_ok=True)
        for name, text in modules.items():
            (tmp_path / f"{name.replace('__', '/')}.js").write_text(text)

    return write


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node to run the script in")
def test_a_script_does_what_its_modules_do(folder):
    folder(
        main='import * as all from "./b.js";\n'
        'import {\n  one,\n  two as deux,\n} from "./sub/c.js";\n'
        "console.log(JSON.stringify([all.x, one(), deux, new all.Y().z]));\n",
        b='import { one } from "./sub/c.js";\nexport const x = one() + 1;\n'
        "export class Y { z = 5 }\n",
        sub__c='import { three } from "../d.js";\nexport function one() { return 1; }\n'
        "export const two = [...three()].length;\n",
        d="export function* three() { yield 1; yield 2; }\nexport async function four() {}\n",
        other="export function* three() { yield 1; }\n",
    )
    for instead, expected in (({}, [2, 1, 2, 5]), ({"d.js": "other.js"}, [2, 1, 1, 5])):
        code = script("main.js", instead=instead)
        done = subprocess.run([NODE, "-e", code], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ('import thing from "./b.js";\n', "not an import or export"),
        ("export default 7;\n", "not an import or export"),
        ('import { y } from "./b.js";\n', "main.js imports y, not in b.js"),
        ('import { x } from "./b.js";\nexport const m = "</script>";\n', "end a script element"),
        ('import { m } from "./c.js";\nexport const n = m;\n', "must not import each other"),
    ],
)
def test_what_is_not_understood_is_refused(folder, main, message):
    folder(
        main=main,
        b="export const x = 1;\n",
        c='import { n } from "./main.js";\nexport const m = n;\n',
    )
    with pytest.raises(ValueError, match=message):
        script("main.js")


def test_the_page_can_be_bundled():
    stand_in = {"api.js": "offline/api.js"}
    assert not re.search(r"[^#\w]fetch\(", script("main.js", instead=stand_in))
    assert re.search(r"[^#\w]fetch\(", script("main.js"))


def test_comments_stay_with_the_modules():
    """A page of its own carries what runs; words in a line of code are code."""
    code = script("main.js")
    assert "/** The page of `regard explore`" in static("main.js")
    assert not re.search(r"^\s*(//|/\*\*)", code, re.MULTILINE)


def test_json_ends_no_element_and_comes_back():
    content = {"a": "</script><!--&\u2028", "b": [1.5, None]}
    text = embedded(content)
    assert not set("<>&") & set(text)
    assert json.loads(text) == content
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_numbers_as_text_hold_no_tag():
    assert "<" not in deflated([bytes(range(256)) * 99, b""])


def test_a_policy_allows_these_texts_alone():
    words = policy(["a"], ["b"])
    assert "default-src 'none'" in words
    assert "unsafe" not in words.replace("'wasm-unsafe-eval'", "")
    # printf b | openssl dgst -sha256 -binary | base64
    assert "script-src 'sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0='" in words
