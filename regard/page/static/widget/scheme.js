/** In a notebook this stands in for ../scheme.js: the page is dark where the notebook is, see host.js. */
export const darkness = Object.assign(new EventTarget(), { matches: false });

window.addEventListener("message", ({ source, data }) => {
  if (source !== window.parent || data.dark === undefined) return;
  darkness.matches = data.dark;
  darkness.dispatchEvent(new Event("change"));
});
