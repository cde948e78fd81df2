"""The site, built once for the tests of this folder, without what the model computes."""

import contextlib
import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.browser import REQUIRED

ROOT = Path(__file__).parents[2]
STUB = '<!doctype html><html lang="en"><title>live</title><main><h1>Live</h1></main></html>'
LIBRARIES = ("griffe", "jinja2", "latex2mathml", "mdit_py_plugins")  # of the extra `site`
collect_ignore_glob = [] if all(map(find_spec, LIBRARIES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def gallery(tmp_path_factory):
    """A gallery of a small map and of two heads over three updates."""
    from regard_site.gallery.exhibit import Exhibit, write_picture
    from regard_site.gallery.long_map import levels

    folder = tmp_path_factory.mktemp("gallery")
    shapes = {"tokens": 1024, "tile": 256, "whole": 1, "finest": 2, "corner": 512}
    heads = {"steps": [1, 2, 3], "columns": 2, "captions": [["one", "two"]] * 3}
    lines = [[0.1, 0.2, 0.3], [None, 1.0, 0.8]]
    heads |= {
        "curves": [{"title": title, "most": 2, "lines": lines} for title in ("a loss", "more")]
    }
    for name, data in {"long-map": shapes, "forming": heads}.items():
        (folder / name).mkdir()
        viewer = {"long-map": "pyramid.js", "forming": "forming.js"}[name]
        one = Exhibit(
            name=name, title=f"The {name}", text="How to read it.", viewer=viewer, data=data
        )
        one.write(folder / name)
    image = torch.full((1024, 1024), 0.5).tril()
    for level, row, column, weights in levels(image, 2, range(3), first=0):
        (folder / "long-map" / str(level)).mkdir(exist_ok=True)
        write_picture(folder / f"long-map/{level}/{row}-{column}.png", weights)
    write_picture(folder / "forming/heads.png", torch.rand(4, 6))
    (folder / "atlas").mkdir()
    (folder / "atlas/index.html").write_text(STUB)
    frame = "gallery/atlas/index.html"
    resting = {"resting": [[0.0, 1.0, 0.5]] * 5}
    atlas = Exhibit(name="atlas", title="The atlas", text="x", frame=frame, data=resting)
    atlas.write(folder / "atlas")
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory, gallery):
    """The folder of the site; a page without a model stands in for the live one."""
    from regard_site.build import build

    folder = tmp_path_factory.mktemp("site")
    (folder / "live.html").write_text(STUB)
    real = tmp_path_factory.mktemp("real")
    (real / "index.html").write_text(STUB)
    (real / "pieces").mkdir()
    (real / "pieces/0").write_bytes(bytes(2_900_000))
    notebooks = tmp_path_factory.mktemp("notebooks")
    (notebooks / "05-causal-mask.ipynb").write_text("{}")
    build(folder, gallery, notebooks, real)
    return folder


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """Run the widget's modules under Node.js: lines that return something, on these data."""
    program = shutil.which("node")
    if program is None:
        message = "node is missing; it runs the widget's modules without a browser"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(ROOT / "course/regard_site/static/widget", folder / "widget")
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


@pytest.fixture
def show(pages, site):
    """Open a page from its file; whatever it asks for or complains about fails the test."""
    complaints = []

    def check_request(request):
        if not request.url.startswith((site.as_uri(), "data:")):
            complaints.append(f"asks {request.url}")

    def says(message):
        if message.type == "error":
            complaints.append(message.text)

    with contextlib.ExitStack() as stack:

        def go(address, *, width=1440, height=900, **options):
            viewport = {"width": width, "height": height}
            page = stack.enter_context(pages(viewport=viewport, **options))
            page.on("request", check_request)
            page.on("console", says)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(f"{site.as_uri()}/{address}")
            return page

        yield go
    assert complaints == []
