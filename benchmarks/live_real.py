"""SmolLM2 in a browser: how soon its page answers, on one thread and on several."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.page.file.live_folder import PASSAGE

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from benchmarks.report import Report

ROUNDS = 5
WORDS = 56  # of a passage, which are some 64 tokens
DRAWN = 32  # tokens
GAIN = 1.7  # of threads, in the time to read a text
PATIENCE = 180_000  # milliseconds until a model that is never there fails
INSTALLED = 3_000  # milliseconds until a service worker is there
# The worker is asked as the page asks it, and its answers are waited for. The page does not open
# itself once more for its service worker's headers.
ASKING = """
sessionStorage.setItem("regard reloaded", "1");
const Original = Worker;
window.Worker = function (...given) {
  window.answering ??= new Original(...given);
  return window.answering;
};
let count = 1e6;
window.ask = (name, ...args) =>
  new Promise((resolve) => {
    const id = ++count;
    const since = performance.now();
    const hear = ({ data }) => {
      if (data.id !== id || data.line !== undefined) return;
      window.answering.removeEventListener("message", hear);
      resolve([performance.now() - since, data.value, data.error]);
    };
    window.answering.addEventListener("message", hear);
    window.answering.postMessage({ id, name, args });
  });
"""


def live_real(report: Report) -> None:
    """Print the table of SmolLM2."""
    from regard.gpt import CheckpointError
    from regard.models import open as open_model

    try:
        from playwright.sync_api import sync_playwright

        model = open_model("smollm2")
    except (ModuleNotFoundError, CheckpointError) as error:
        print(f"\nSmolLM2 in a browser: {str(error).splitlines()[0]}")
        return
    report.table("SmolLM2 in a browser, int8", ("", 42), ("one thread", 26), ("threads", 26))
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as player:
        import regard

        folder = Path(name, "live")
        regard.report(model, folder, live=True)
        browser = player.chromium.launch(executable_path=chromium, args=arguments)
        with _served(folder) as address:
            columns = []
            for workers in ("block", "allow"):  # a service worker brings the headers of threads
                context = browser.new_context(service_workers=workers)
                context.add_init_script(ASKING)
                columns.append(_measured(context.new_page(), address))
                context.close()
        browser.close()
    one, several = columns
    for row, bound in (("64 tokens read", 1000), ("the answer after one more", 100)):
        cells = [report.at_most(row, column[row], bound, ".0f") for column in columns]
        report.row(f"{row}, ms", *cells)
    row = "a head switched off in 64 tokens"
    report.row(f"{row}, ms", *(report.at_most(row, column[row], 1000, ".0f") for column in columns))
    row = "generating"
    report.row(f"{row}, tokens/s", *(report.at_least(row, c[row], 25, ".1f") for c in columns))
    gain = one["64 tokens read"] / several["64 tokens read"]
    report.row("gain of threads, reading", "", report.at_least("gain of threads", gain, GAIN))
    gain = several["generating"] / one["generating"]
    report.row("gain of threads, generating", "", report.at_least("threads generating", gain, GAIN))


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine."""

    class Host(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Host, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _measured(page: Page, address: str) -> dict[str, float]:
    """The median of each time in milliseconds, and tokens a second, from question to answer."""
    page.goto(address)
    page.wait_for_timeout(INSTALLED)
    page.goto(address)
    # It is hidden at first, too, but then says nothing yet; and a kept model is soon there.
    page.locator("#loading[hidden]:not(:empty)").wait_for(state="attached", timeout=PATIENCE)
    page.locator("html[data-settled=true]").wait_for(timeout=PATIENCE)

    def ask(name: str, *given: Any) -> tuple[float, Any]:
        taken, value, error = page.evaluate("(given) => window.ask(...given)", [name, *given])
        assert error is None, error
        return float(taken), value

    text = " ".join(PASSAGE.split()[:WORDS])
    times: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        taken, run = ask("open", f"{number}{text}")
        assert run["length"] in range(60, 70), run["length"]
        times.setdefault("64 tokens read", []).append(taken * 64 / run["length"])
        taken, _ = ask("append", run["id"], 300)
        times.setdefault("the answer after one more", []).append(taken)
        taken, _ = ask("change", run["id"], [{"kind": "off", "layer": 0, "head": number}])
        times.setdefault("a head switched off in 64 tokens", []).append(taken)
        taken, _ = ask("generate", run["id"], {"tokens": DRAWN, "temperature": 0.8, "seed": number})
        times.setdefault("generating", []).append(1000 * DRAWN / taken)
    return {name: statistics.median(each) for name, each in times.items()}
