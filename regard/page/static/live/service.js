/**
 * Beside a live report in a folder: answers with the kept page without a network, and gives it the headers with
 * which its workers may share memory.
 */
const scope = /** @type {any} */ (self);
const NAME = "regard page";

scope.addEventListener("install", () => scope.skipWaiting());
scope.addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (/** @type {any} */ event) => {
  if (event.request.mode === "navigate" && isPage(event.request.url)) event.respondWith(answered(event.request));
});

/** Whether an address is that of the page: what else lies in its folder or below it is left alone. */
function isPage(/** @type {string} */ url) {
  const here = scope.registration.scope;
  return [here, `${here}index.html`].includes(url.split(/[?#]/)[0]);
}

/** The newest page, or the one before without a network; it is kept once, whatever its address asks for. */
async function answered(/** @type {Request} */ request) {
  const kept = await caches.open(NAME).catch(() => null);
  const { scope: here } = scope.registration;
  try {
    const answer = await fetch(request);
    const copy = answer.ok ? answer.clone() : null;
    if (copy) await kept?.put(here, copy).catch(() => {}); // no room left: then it needs a network
    return isolated(answer);
  } catch (error) {
    const before = await kept?.match(here);
    if (before) return isolated(before);
    throw error;
  }
}

/** An answer whose page shares its process with no other. */
function isolated(/** @type {Response} */ answer) {
  const headers = new Headers(answer.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers });
}
