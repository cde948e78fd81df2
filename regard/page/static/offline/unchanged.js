/**
 * In a report this stands in for ../changes.js, ../cut.js, ../matters.js, ../passages.js, ../swap.js, ../swapped.js and
 * ../patched.js: no model runs there, so nothing can be changed, and the page says so.
 */
import { byId } from "../dom.js";
import { runOf, subscribe } from "../store.js";

export function startChanges() {
  for (const name of ["acts", "chips", "changes-tools"]) byId(name).hidden = true;
  byId("changes-none").hidden = false;
  byId("changes-none").textContent =
    "A report holds no model: heads can be switched off and tokens cut in regard explore.";
  subscribe("run", () => {
    byId("changes").hidden = !runOf("first");
  });
}

const nothing = () => {};
export const startCut = nothing;
export const startMatters = nothing;
export const startPassages = nothing;
export const startSwap = nothing;
export const startPatch = nothing;
export const markSwap = nothing;
/** @type {typeof import("../swapped.js").swapOf} */
export const swapOf = () => null;
/** @type {typeof import("../swapped.js").isBeside} */
export const isBeside = () => false;
/** @type {typeof import("../swapped.js").formerKey} */
export const formerKey = async () => null;
/** @type {typeof import("../swapped.js").movedKeys} */
export const movedKeys = async () => [];
/** @type {typeof import("../swapped.js").besideFormer} */
export const besideFormer = (run) => run;
/** @type {typeof import("../swapped.js").writeSwap} */
export const writeSwap = () => "";
/** @type {typeof import("../swap.js").openSwap} */
export const openSwap = async () => {};
export const openCutForm = nothing;
/** @type {typeof import("../changes.js").switchHead} */
export const switchHead = nothing;
/** @type {typeof import("../matters.js").paintNeeds} */
export const paintNeeds = nothing;
/** @type {typeof import("../matters.js").measureHeads} */
export const measureHeads = async () => {};
/** @type {typeof import("../changes.js").isOff} */
export const isOff = () => false;
/** @type {typeof import("../changes.js").changedNow} */
export const changedNow = () => null;
/** @type {typeof import("../cut.js").drawSpan} */
export const drawSpan = () => false;
/** @type {typeof import("../cut.js").cutsOn} */
export const cutsOn = () => [];
/** @type {typeof import("../cut.js").cutKeys} */
export const cutKeys = () => new Set();
/** @type {typeof import("../matters.js").needOfHead} */
export const needOfHead = () => null;
/** @type {typeof import("../matters.js").worstHead} */
export const worstHead = () => null;
