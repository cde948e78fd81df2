/** How requests reach the server; in a notebook's widget, widget/request.js stands in for this. */

/** The model of an earlier update is a page of its own, `/?update=200`; the newest has none. */
export const update = new URLSearchParams(location.search).get("update");

/** @param {string} path @param {RequestInit} options */
export const send = (path, options) => fetch(path, options);
