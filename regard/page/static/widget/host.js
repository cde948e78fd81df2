/**
 * The widget in a notebook's own page, for anywidget: a frame that holds the page of the explorer, and
 * the way from there to the kernel, where Python answers.
 */

const HEIGHT = 800; // pixels
const PATIENCE = 5000; // milliseconds
const LOADING = "The kernel sends the page …";
const SILENT =
  "The kernel does not answer. Where it runs a cell, the page comes after it; where it has ended, run this cell again.";
const PAGE = 0; // the number of the request for the page itself; those of the page are greater

const randomName = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join("");

/** Whether the first background behind an element that can be seen is dark. */
function isDark(/** @type {HTMLElement} */ element) {
  for (let at = /** @type {HTMLElement|null} */ (element); at; at = at.parentElement) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * @param {{model: WidgetModel, el: HTMLElement}} place
 * @returns {() => void} takes the widget away again
 */
function render({ model, el }) {
  // A document in the frame; it is another after the frame was moved, which loads it anew.
  let name = randomName();
  /** @type {MessagePort|null} */
  let port = null;
  /** Requests that are not answered. @type {Set<number>} */
  const open = new Set();

  const box = document.createElement("div");
  box.style.cssText = `height:${HEIGHT}px;min-height:240px;resize:vertical;overflow:hidden`;
  box.textContent = LOADING;
  el.append(box);
  const frame = document.createElement("iframe");
  frame.title = "regard explore";
  frame.sandbox.add("allow-scripts", "allow-downloads");
  frame.allow = "clipboard-write";
  frame.style.cssText = "display:block;width:100%;height:100%;border:0";
  const paint = () => frame.contentWindow?.postMessage({ dark: isDark(box) }, "*");

  const ask = (/** @type {number} */ id, /** @type {object} */ request) => {
    open.add(id);
    model.send({ ...request, page: name, id });
  };
  const cancel = (/** @type {number} */ id) => {
    if (open.delete(id)) model.send({ page: name, id, cancel: true });
  };

  /** An answer of the kernel, or a part of one; it goes to all pages that look at the widget. */
  const receive = (/** @type {KernelMessage} */ content, /** @type {DataView[]} */ [part]) => {
    const { page, id, ...answer } = content;
    if (page !== name || !open.has(id)) return;
    if (!answer.pending && !answer.more) open.delete(id);
    const body = part && new Uint8Array(part.buffer, part.byteOffset, part.byteLength).slice();
    if (id !== PAGE) port?.postMessage({ id, ...answer, body }, body ? [body.buffer] : []);
    else if (body) {
      clearTimeout(silence);
      frame.srcdoc = new TextDecoder().decode(body);
      box.replaceChildren(frame);
    }
  };

  /** A document in the frame says that it is there: it gets a way to here, which no other page has. */
  const connect = (/** @type {MessageEvent} */ event) => {
    if (event.source !== frame.contentWindow || event.data !== "regard") return;
    open.forEach(cancel);
    name = randomName();
    const channel = new MessageChannel();
    port?.close();
    port = channel.port1;
    port.onmessage = ({ data }) => {
      if (data.selection) choose(data);
      else if (data.cancel) cancel(data.id);
      else ask(data.id, data);
    };
    frame.contentWindow?.postMessage("regard", "*", [channel.port2]);
    paint();
  };

  const choose = (/** @type {{address: string, selection: WidgetSelection}} */ { address, selection }) => {
    frame.name = address; // what the page shows when it is loaded anew
    model.set("selection", selection);
    model.save_changes();
  };

  const silence = setTimeout(() => {
    box.textContent = SILENT;
  }, PATIENCE);
  // Notebooks change their colours by attributes of the page.
  const colours = new MutationObserver(paint);
  for (const element of [document.documentElement, document.body])
    colours.observe(element, {
      attributes: true,
      attributeFilter: ["class", "style", "theme", "data-theme", "data-jp-theme-light"],
    });
  model.on("msg:custom", receive);
  window.addEventListener("message", connect);
  ask(PAGE, { method: "GET", path: "/" });

  return () => {
    clearTimeout(silence);
    colours.disconnect();
    model.off("msg:custom", receive);
    window.removeEventListener("message", connect);
    open.forEach(cancel);
    port?.close();
  };
}

export default { render };
