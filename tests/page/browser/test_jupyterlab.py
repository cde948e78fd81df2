"""The widget in JupyterLab itself, and what is seen of its notebook without a kernel.

Run with:  make notebook-test

JupyterLab is not among what the other tests need, so this is skipped where it is missing.
"""

import json
import os
import re
import subprocess
import sys
from threading import Thread

import pytest

jupyterlab = pytest.importorskip("jupyterlab", reason="make notebook-test installs JupyterLab")
nbformat = pytest.importorskip("nbformat")

SHOW = """\
import threading
import torch
import regard

torch.manual_seed(0)
with regard.record(tokens=list("abcdefghijk")) as recording:
    regard.attention(*torch.randn(3, 1, 3, 11, 5), mask=regard.causal())
widget = regard.explore(recording, title="eleven letters")
widget
"""
READ = """\
layer, head, query = (widget.selection[name] for name in ("layer", "head", "query"))
print(f"{recording[layer][0, head, query].max():.4f}", query)
print("server:", any(thread.name == "regard explore" for thread in threading.enumerate()))
"""
# Nothing is asked of the network, and no dialog asks whether it may be.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab of its own with one notebook; its address and the notebook's file."""
    file = tmp_path / "work" / "page.ipynb"
    file.parent.mkdir()
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in (SHOW, READ)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, file)
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "overrides.json").write_text(json.dumps(SETTINGS))
    places = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "RUNTIME", "DATA")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--LabApp.app_settings_dir={tmp_path / 'settings'}", str(file.parent)]
    server = subprocess.Popen(
        command,
        env=os.environ | places,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with server:
        address, log = None, []
        for line in server.stderr:
            log.append(line)
            found = re.search(r"(http://127\.0\.0\.1:\d+/)lab", line)
            if found:
                address = found[1]
                break
        assert address, "".join(log)
        Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop it
        yield address, file
        server.terminate()


def test_in_jupyterlab_the_kernel_answers_without_a_server(pages, settled, written, lab):
    address, file = lab
    urls = []
    with pages(viewport={"width": 1500, "height": 1000}) as page:
        page.on("request", lambda request: urls.append(request.url))
        page.goto(f"{address}lab/tree/{file.name}")
        cells = page.locator(".jp-Notebook .jp-CodeCell")
        cells.first.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        frame = page.frame_locator(".jp-OutputArea iframe")
        frame.locator("#view", has_text="Panel").click()
        frame.locator("#tokens .token").nth(7).click()
        frame.locator("#tab-panel-title", has_text="of query 7").wait_for()
        settled(frame)
        page.locator('.jp-OutputArea iframe[name*="&q=7"]').wait_for()  # and Python has it
        cells.nth(1).locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        printed = cells.nth(1).locator(".jp-OutputArea-output")
        printed.wait_for()
        weight, query, *server = printed.inner_text().split()
        assert (query, server) == ("7", ["server:", "False"])
        assert written(float(weight)) in frame.locator("#cross").inner_text()

        run = "([name, options]) => window.jupyterapp.commands.execute(name, options)"
        page.evaluate(run, ["apputils:change-theme", {"theme": "JupyterLab Dark"}])
        frame.locator("html[data-theme=dark]").wait_for()
        page.evaluate(run, ["docmanager:save", {}])
    others = [url for url in urls if not url.startswith((address, "data:", "blob:"))]
    assert others == []

    html = file.with_suffix(".html")
    convert = [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level=ERROR", str(file)]
    subprocess.run(convert, check=True)
    with pages(offline=True) as page:  # its own scripts are on the network; the picture needs none
        page.goto(html.as_uri())
        page.get_by_role("img", name="The heads").wait_for()
