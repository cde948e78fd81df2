"""A live report in a folder, from a static host: words before the model, threads, no network."""

import functools
import http.server
import threading

import pytest

import regard
from regard.page.file import live_folder

TEXT = "A green parrot lived in the tent. Leila said to Tom"


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


def write(page, text):
    """Type a text in place of the one that is shown."""
    page.locator("#examples button").last.click()
    page.locator("#entry-text").fill(text)


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
        page.wait_for_url("**t=*")
        assert "&l=" not in page.url  # opened again meanwhile, it still chooses the head by itself
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
        write(page, TEXT + " a story")
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


def test_a_full_storage_and_other_addresses_do_not_keep_the_page_away(pages, settled, address):
    kept = """caches.open("regard page").then((one) => one.keys())
        .then((all) => all.map(({ url }) => url))"""
    with pages() as page:
        page.goto(address + "?a")
        page.wait_for_function("crossOriginIsolated")
        page.goto(address + "index.html?b")
        settled(page)
        assert page.evaluate(kept) == [address]
        page.goto(address + "service.js")
        assert not page.evaluate("crossOriginIsolated")
        page.evaluate("caches.delete('regard page')")
        console = page.context.new_cdp_session(page)
        origin = address.removesuffix("/model/")
        limit = {"origin": origin, "quotaSize": 100_000}
        console.send("Storage.overrideQuotaForOrigin", limit)
        page.goto(address)
        settled(page)
        assert page.evaluate("crossOriginIsolated")
        assert page.evaluate(kept) == []


@pytest.mark.thorough
def test_it_runs_where_nothing_may_be_kept_and_no_memory_shared(pages, settled, address):
    refuse = """
    Object.defineProperty(window, "sessionStorage", { get() { throw new DOMException("no"); } });"""
    with pages() as page:
        page.add_init_script(refuse)
        page.goto(address)
        settled(page)
        assert page.locator("#problem").is_hidden()
        write(page, TEXT + " a story")
        page.locator("#tokens .token", has_text="story").wait_for()

    mark = '<script type="text/plain" id="worker">'
    no_memory = """
    Object.defineProperty(navigator, "hardwareConcurrency", { value: undefined });
    const Own = WebAssembly.Memory;
    WebAssembly.Memory = function (limits) {
      if (limits.shared) throw new RangeError("no");
      return new Own(limits);
    };
    """

    def without(route):
        answer = route.fetch()
        headers = answer.headers | {
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Embedder-Policy": "require-corp",
        }
        body = answer.text().replace(mark, mark + no_memory)
        route.fulfill(response=answer, headers=headers, body=body)

    with pages(service_workers="block") as page:
        page.route(address, without)
        page.goto(address)
        settled(page)
        assert page.evaluate("crossOriginIsolated")
        assert page.locator("#problem").is_hidden()


@pytest.mark.thorough
def test_in_firefox(firefox, address):
    firefox.goto(address)
    firefox.wait_for("document.documentElement.dataset.settled === 'true'")
    assert firefox.evaluate("document.getElementById('loading').hidden")
    assert firefox.evaluate("crossOriginIsolated")
