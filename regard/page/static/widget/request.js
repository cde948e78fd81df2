/**
 * In a notebook this stands in for ../request.js: the frame that holds the page has no address and
 * may reach nothing, so requests go to the notebook's page, see host.js, and from there to the kernel.
 */

const PATIENCE = 5000; // milliseconds; of what takes long, the kernel says each second that it does

// The frame's name is the page's address: it stays when a notebook moves the frame, and so loads it anew.
const { search, hash } = new URL(window.name || "#", "http://page");
if (hash) history.replaceState(null, "", location.href.split("#")[0] + hash);

/** As ../request.js has it. */
export const update = new URLSearchParams(search).get("update");

/** @type {Map<number, (part: AnswerPart) => void>} */
const open = new Map();
let last = 0;

/** The way to the notebook's page, which alone may give it. @type {Promise<MessagePort>} */
const host = new Promise((resolve) => {
  const take = (/** @type {MessageEvent} */ event) => {
    const [port] = event.ports;
    if (event.source !== window.parent || !port) return;
    window.removeEventListener("message", take);
    port.onmessage = ({ data }) => open.get(data.id)?.(data);
    resolve(port);
  };
  window.addEventListener("message", take);
  window.parent.postMessage("regard", "*");
});

/** Sends the notebook what is chosen. */
export const sendSelection = async (/** @type {{address: string, selection: WidgetSelection}} */ chosen) =>
  (await host).postMessage(chosen);

/** As `fetch`. @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
export async function send(path, { method, headers, body = null, signal }) {
  const port = await host;
  signal?.throwIfAborted();
  const id = ++last;
  return new Promise((resolve, reject) => {
    let timer = 0;
    /** @type {ReadableStreamDefaultController<Uint8Array>} */
    let parts;
    const end = () => {
      clearTimeout(timer);
      open.delete(id);
      signal?.removeEventListener("abort", abort);
    };
    const fail = (/** @type {Error} */ error) => {
      end();
      port.postMessage({ id, cancel: true });
      parts.error(error);
      reject(error);
    };
    const abort = () => fail(new DOMException("called off", "AbortError"));
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(() => fail(new TypeError("the kernel does not answer")), PATIENCE);
    };
    const stream = new ReadableStream({
      start: (controller) => {
        parts = controller;
      },
    });
    signal?.addEventListener("abort", abort);
    open.set(id, (part) => {
      wait();
      if (part.pending) return;
      if (part.status) resolve(new Response(stream, { status: part.status, headers: part.headers }));
      if (part.body) parts.enqueue(part.body);
      if (part.more) return;
      parts.close();
      end();
    });
    port.postMessage({ id, method, path, headers, body });
    wait();
  });
}
