"""The site, built once for the tests of this folder, without what the model computes."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.browser import REQUIRED

ROOT = Path(__file__).parents[2]
LIBRARIES = ("griffe", "jinja2", "latex2mathml", "mdit_py_plugins")  # of the extra `site`
collect_ignore_glob = [] if all(map(find_spec, LIBRARIES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site; a page without a model stands in for the live one."""
    from website.build import build

    folder = tmp_path_factory.mktemp("site")
    live = '<!doctype html><html lang="en"><title>live</title><main><h1>Live</h1></main></html>'
    (folder / "live.html").write_text(live)
    build(folder)
    return folder


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """Run the widget's modules under Node.js: lines that return something, on these data."""
    program = shutil.which("node")
    if program is None:
        message = "there is no node, which runs the widget's modules without a browser"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(ROOT / "website/static/widget", folder / "widget")
    (folder / "package.json").write_text('{"type": "module"}')

    def run(imports, code, data):
        (folder / "data.json").write_text(json.dumps(data))
        (folder / "test.js").write_text(
            f"""import {{ readFileSync }} from "node:fs";
            {imports}
            const given = JSON.parse(readFileSync("data.json", "utf8"));
            console.log(JSON.stringify((() => {{ {code} }})()));"""
        )
        done = subprocess.run(
            [program, "test.js"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
