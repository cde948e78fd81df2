/**
 * Beside a live report in a folder: hands the page out again where there is no network, and gives it the headers with
 * which its workers may share memory.
 */
const scope = /** @type {any} */ (self);
const NAME = "regard page";

scope.addEventListener("install", () => scope.skipWaiting());
scope.addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (/** @type {any} */ event) => {
  if (event.request.mode === "navigate") event.respondWith(answered(event.request));
});

/** The newest page, or the one before without a network. */
async function answered(/** @type {Request} */ request) {
  const kept = await caches.open(NAME);
  try {
    const answer = await fetch(request);
    if (answer.ok) await kept.put(request, answer.clone());
    return isolated(answer);
  } catch (error) {
    const before = await kept.match(request, { ignoreSearch: true });
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
