"""The widget in a sandboxed frame, as notebooks show it, with a stand-in for anywidget's model."""

import base64
import contextlib
import json
from types import SimpleNamespace

import pytest
from support.explorer import TRAINED

from regard.gpt import load
from regard.page import ExplorerWidget, ModelSubject
from regard.page.training import training_of

# A notebook's page puts outputs into a frame without an address, as Colab and VS Code do. There the
# widget's module is run on a stand-in for anywidget's model, which exchanges messages with Python.
NOTEBOOK = """<!doctype html><body style="margin:0"><iframe sandbox="allow-scripts" id="output"
  style="width:100%;height:880px;border:0"></iframe><script>
const output = document.getElementById("output"), sent = [];
window.addEventListener("message", ({ source, data }) => {
  if (source === output.contentWindow) sent.push(data);
});
const exchange = async () => {
  for (const answer of await window.kernel(sent.splice(0)))
    output.contentWindow.postMessage(answer, "*");
  setTimeout(exchange, 20);
};
</script>"""
OUTPUT = """<!doctype html><body style="background:{paper}"><div id="cell"></div>
<script type="application/json" id="module">{module}</script><script type="module">
const listeners = new Set(), state = {{}};
const post = (message) => window.parent.postMessage(message, "*");
const model = {{
  send: (content) => post({{ method: "custom", content }}),
  set: (name, value) => {{ state[name] = value; }},
  save_changes: () => post({{ method: "update", state }}),
  on: (event, listener) => listeners.add(listener),
  off: (event, listener) => listeners.delete(listener),
}};
window.addEventListener("message", ({{ source, data }}) => {{
  if (source !== window.parent) return;
  const [content, buffers] = data;
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const views = buffers.map((text) => new DataView(bytes(text).buffer));
  for (const listener of [...listeners]) listener(content, views);
}});
const text = JSON.parse(document.getElementById("module").textContent);
const blob = new Blob([text], {{ type: "text/javascript" }});
const {{ default: widget }} = await import(URL.createObjectURL(blob));
window.render = () => widget.render({{ model, el: document.getElementById("cell") }});
window.takeAway = window.render();
</script>"""


# What of the map's sidebar is cut off: buttons past its edges, and pixels below it.
CUT_OFF = """(bar) => {
  const edges = bar.getBoundingClientRect();
  const outside = [...bar.querySelectorAll("button")].filter((one) => {
    const { left, right, bottom } = one.getBoundingClientRect();
    return left < edges.left || right > edges.right || bottom > edges.bottom;
  });
  return [outside.map((one) => one.textContent), bar.scrollHeight - bar.clientHeight];
}"""

# Another frame of the notebook's page greets the widget too; how many ports it gets.
STRANGER = """(cell) => new Promise((count) => {
  const frame = document.createElement("iframe");
  window.addEventListener("message", ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    if (data === "regard") source.postMessage("after the widget", "*");
    else count(data);
  });
  frame.sandbox = "allow-scripts";
  frame.hidden = true;
  frame.srcdoc = `<script>
    addEventListener("message", ({ ports }) => parent.postMessage(ports.length, "*"));
    parent.postMessage("regard", "*");
  <${"/"}script>`;
  cell.append(frame);
})"""


class Kernel:
    """Python's side of the exchange; nothing is delivered while it is busy."""

    def __init__(self, comm):
        self.comm, self.busy, self.waiting = comm, False, []

    def exchange(self, _source, messages):
        self.waiting += messages
        if self.busy:
            return []
        for message in self.waiting:
            self.comm.receive(message)
        self.waiting = []
        answers = []
        while not self.comm.sent.empty():
            data, buffers = self.comm.sent.get()
            if data["method"] == "custom":
                answers.append([data["content"], [base64.b64encode(b).decode() for b in buffers]])
        return answers


@pytest.fixture
def show(pages, settled, comms):
    """Show a widget; give the notebook's page, the output in it, the widget's frame, the kernel."""
    with contextlib.ExitStack() as stack:
        complaints = []

        def go(subject, *, paper="white"):
            widget = ExplorerWidget(subject)
            stack.callback(widget.close)
            kernel = Kernel(comms[-1])
            page = stack.enter_context(pages(viewport={"width": 1200, "height": 900}, offline=True))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
            page.on("request", lambda request: complaints.append(f"asks {request.url}"))
            page.expose_binding("kernel", kernel.exchange)
            page.set_content(NOTEBOOK)
            page.evaluate("void exchange()")
            module = json.dumps(comms[-1].state["_esm"]).replace("<", "\\u003c")
            html = OUTPUT.format(paper=paper, module=module)
            page.locator("#output").evaluate("(frame, html) => { frame.srcdoc = html; }", html)
            output = page.frame_locator("#output")
            frame = output.frame_locator("iframe[title='regard explore']")
            frame.locator("#tokens .token").first.wait_for()
            frame.locator("#view", has_text="Panel").click()
            settled(frame)
            return SimpleNamespace(
                page=page, output=output, frame=frame, kernel=kernel, widget=widget
            )

        yield go
    assert [one for one in complaints if not one.startswith("asks blob:")] == []


def chosen(shown, **expected):
    """Wait until Python reads that this is chosen."""
    for _ in range(1000):
        if expected.items() <= shown.widget.selection.items():
            return
        shown.page.evaluate("() => new Promise(requestAnimationFrame)")
    raise AssertionError(shown.widget.selection)


def test_the_kernel_answers_and_python_reads_what_is_chosen(show, settled, model, written):
    shown = show(model)
    frame = shown.frame
    frame.locator("#tokens .token").nth(5).click()
    frame.locator("#tokens .query[data-at='5']").wait_for()
    settled(frame)
    (name,) = model.about()["runs"]
    run = model.run(name)
    chosen(shown, query=5, key=None)
    layer, head = (shown.widget.selection[part] for part in ("layer", "head"))
    strongest = float(run.row(layer, head, 5).max())
    assert written(strongest) in frame.locator("#cross").inner_text()
    assert shown.output.locator("#cell").evaluate(STRANGER) == 0


@pytest.mark.thorough
def test_a_frame_that_is_moved_shows_what_it_showed_and_draws_tokens(show, settled, model):
    shown = show(model)
    frame = shown.frame
    frame.locator("#tokens .token").nth(5).click()
    chosen(shown, query=5, key=None)
    # Moved within its page, a frame loads anew.
    shown.output.locator("#cell").evaluate(
        "(cell) => cell.firstChild.append(cell.querySelector('iframe[title]'))"
    )
    frame.locator("#tokens .query[data-at='5']").wait_for()
    settled(frame)
    # Drawing tokens comes line by line.
    before = frame.locator("#tokens .token").count()
    frame.locator("#generate-tokens").fill("3")
    frame.locator("#generate").click()
    frame.locator("#tokens .token").nth(before + 2).wait_for()
    settled(frame)
    assert frame.locator("#problem").is_hidden()


@pytest.mark.thorough
def test_buttons_and_overview_are_seen_whole_in_a_low_frame(show, settled, model):
    frame = show(model).frame
    frame.locator("#zoom-in").click()
    frame.locator("#overview").wait_for()
    settled(frame)
    assert frame.locator("#sidebar").evaluate(CUT_OFF) == [[], 0]


@pytest.mark.thorough
def test_a_kernel_that_runs_a_cell_is_waited_for(show, settled, model):
    shown = show(model, paper="#111")
    assert shown.frame.locator("html").get_attribute("data-theme") == "dark"
    shown.kernel.busy = True
    shown.frame.locator("#tokens .token").nth(7).click()
    banner = shown.frame.locator("#offline")
    banner.wait_for()
    assert "kernel does not answer" in banner.inner_text()
    shown.kernel.busy = False
    banner.wait_for(state="hidden")
    shown.frame.locator("#tokens .query[data-at='7']").wait_for()
    settled(shown.frame)


@pytest.mark.thorough
def test_the_model_of_an_earlier_update_is_opened(show, settled, train_folder):
    folder = train_folder(evaluate_every=2, record_every=2, keep_every=4)
    training = training_of(folder)
    subject = ModelSubject(*load(folder), title="mine", text=TRAINED[:23], training=training)
    frame = show(subject).frame
    frame.locator("#tab-training").click()
    frame.locator("#update").press("ArrowLeft")
    frame.locator(".forming a", has_text="Open this update’s model").click()
    frame.locator("#about-title", has_text="mine, update 4").wait_for()
    settled(frame)
    frame.locator(".forming a", has_text="Back to the newest model").click()
    frame.locator("#about-title:not(:has-text('update'))", has_text="mine").wait_for()
    settled(frame)
