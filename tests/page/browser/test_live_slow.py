"""A live report where its model takes long: many heads, and a phone of a fifth of the speed."""

import re

import pytest
import torch

import regard
from regard.gpt import GPT, GPTConfig

pytestmark = pytest.mark.thorough

TEXT = "Tom had a red kite. Leila had a blue boat. Then Tom wanted the red"
RATE = 5
# A browser throttles a page, and none of its workers: there each call of a kernel waits.
SLOWER = """(() => {
  const slow = (rate) => {
    const compile = WebAssembly.instantiate;
    const slowed = (call) => (...given) => {
      const since = performance.now();
      const answer = call(...given);
      const until = since + rate * (performance.now() - since);
      while (performance.now() < until);
      return answer;
    };
    WebAssembly.instantiate = async (...given) => {
      const { module, instance } = await compile(...given);
      const exports = Object.entries(instance.exports).map(([name, one]) =>
        [name, typeof one === "function" ? slowed(one) : one]);
      return { module, instance: { exports: Object.fromEntries(exports) } };
    };
  };
  const Plain = Blob;
  window.Blob = class extends Plain {
    constructor(parts, options) {
      const isCode = options?.type === "text/javascript";
      super(isCode ? [`(${slow})(RATE);`, ...parts] : parts, options);
    }
  };
})()""".replace("RATE", str(RATE))
SAID = """() => {
  window.said = [];
  const place = document.getElementById("loading");
  const keep = () => place.hidden || window.said.push(place.textContent.trim());
  new MutationObserver(keep).observe(place, { subtree: true, childList: true, attributes: true });
}"""


@pytest.fixture
def written(shipped, tmp_path):
    """Write a live report."""
    model, tokenizer = shipped

    def write(own=model):
        path = tmp_path / "live.html"
        options = {"tokenizer": tokenizer, "text": TEXT, "title": "the model", "live": True}
        regard.report(own, path, **options, start="l=1&h=3&p=panel")
        return path.as_uri()

    return write


def test_measuring_many_heads_is_called_off_and_goes_on(pages, settled, shipped, written):
    torch.manual_seed(0)
    shape = {"vocab_size": shipped[1].vocab_size, "context": 64, "layers": 10, "heads": 9}
    file = written(GPT(GPTConfig(**shape, dim=72, initial_std=0.3)))
    with pages(viewport={"width": 1280, "height": 720}, offline=True) as page:
        page.add_init_script(SLOWER)
        page.goto(file)
        page.locator("#tokens .token").first.wait_for()
        button, finding = settled(page).locator("#matters"), page.locator("#finding")
        button.click()
        page.get_by_role("button", name=re.compile(r"Stop \(layer \d+ of 10")).wait_for()
        page.get_by_role("button", name=re.compile(r"Stop \(head \d+ of 90")).wait_for()
        button.click()
        said = re.fullmatch(
            r"(\d+) of 90 heads are measured, .* without which most is lost; press .* to go on\.",
            settled(page).locator("#finding").text_content(),
        )
        assert said
        assert 0 < int(said[1]) < 90
        needs = page.locator("#grid .cell[aria-label*='switched off:']")
        assert needs.count() == int(said[1])
        button.click()
        settled(page)
        assert button.text_content() == "Hide what matters"
        assert re.match(r"With (head|any one head) .* switched off", finding.text_content())
        assert needs.count() == 90


def test_a_phone_of_a_fifth_of_the_speed_answers_and_says_how_long(pages, settled, written):
    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with pages(**options, offline=True) as page:
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setCPUThrottlingRate", {"rate": RATE})
        page.add_init_script(SLOWER)
        page.goto(written())
        page.locator("#tokens .token").first.wait_for()
        settled(page)
        page.evaluate(SAID)
        page.locator("#edit").tap()
        page.locator("#entry-text").fill(TEXT + " kite." + f" {TEXT} kite." * 19)
        page.locator("#entry-run").tap()
        page.locator("#entry").wait_for(state="hidden")
        assert settled(page).locator("#tokens .token").count() > 100
        # What is to take more than a second is said beforehand, by the pace of the text before.
        assert re.search(r"about \d+ seconds?\.", page.evaluate("window.said.join()"))
        page.go_back()
        assert settled(page).locator("#tokens").text_content() == TEXT
        page.locator("#switch").tap()
        assert settled(page).locator("#predictions.two li").count() > 0
        page.locator("#matters").tap()
        assert settled(page).locator("#finding").text_content().startswith("With ")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
