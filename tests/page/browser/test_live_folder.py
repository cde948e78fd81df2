"""A live report in a folder, from a static host: words before the model, threads, no network."""

import functools
import http.server
import threading

import pytest

import regard
from regard.page.file import live_folder

TEXT = "A green parrot lived in the tent. Leila said to Tom"
TYPE = """(text) => {
  document.getElementById("entry-text").value = text;
  document.getElementById("entry-text").dispatchEvent(new Event("input", { bubbles: true }));
}"""


class Host(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(shipped, tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / "model"
    model, tokenizer = shipped
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_folder, "PIECE", 2**18)
        regard.report(model, folder, tokenizer=tokenizer, text=TEXT, live=True, title="the model")
    assert len(list(folder.glob("weights-*"))) > 3
    handler = functools.partial(Host, directory=folder.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/model/"
        server.shutdown()


def words(page):
    return page.locator("#tokens .token").all_inner_texts()


def test_words_can_be_read_while_the_model_is_fetched(pages, settled, address):
    with pages(service_workers="block") as page:
        held, waiting = [], True

        def hold(route):
            if waiting:
                held.append(route)
            else:
                route.continue_()

        page.route("**/weights-*", hold)
        page.goto(address)
        page.locator("#loading:visible", has_text="Fetching the model").wait_for()
        page.locator("#predictions > *").first.wait_for()
        assert len(words(page)) == 12
        assert len(held) == 1  # a piece at a time
        waiting = False
        held[0].continue_()
        settled(page)
        assert page.locator("#loading").is_hidden()
        assert not page.evaluate("crossOriginIsolated")
        assert page.locator("#problem").is_hidden()


def test_what_was_fetched_once_runs_on_threads_and_without_a_network(pages, settled, address):
    fetched = []
    with pages() as page:
        page.context.on("request", lambda request: fetched.append(request.url.rsplit("/", 1)[1]))
        page.goto(address)
        page.wait_for_url(address)
        settled(page)
        page.reload()
        settled(page)
        pieces = [name for name in fetched if name.startswith("weights-")]
        assert len(pieces) == len(set(pieces)) > 3
        assert page.evaluate("crossOriginIsolated")
        before = words(page)
        fetched.clear()
        page.context.set_offline(True)
        page.reload()
        settled(page)
        assert words(page) == before
        page.evaluate(TYPE, TEXT + " a story")
        page.locator("#tokens .token", has_text="story").wait_for()
        settled(page)
        assert page.locator("#problem").is_hidden()
        assert not any(name.startswith(("weights-", "tokenizer-")) for name in fetched)


def test_a_piece_that_is_missing_is_told(pages, address):
    with pages(service_workers="block") as page:
        page.route("**/weights-*", lambda route: route.fulfill(status=404))
        page.goto(address)
        page.locator("#problem:visible", has_text="could not be fetched").wait_for()
        assert "the host answers 404). Reload the page" in page.locator("#problem").inner_text()


@pytest.mark.thorough
def test_in_firefox(firefox, address):
    firefox.goto(address)
    firefox.wait_for("document.documentElement.dataset.settled === 'true'")
    assert firefox.evaluate("document.getElementById('loading').hidden")
    assert firefox.evaluate("crossOriginIsolated")
