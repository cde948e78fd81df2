/** Changes of a model's attention as the page states them, checked. */
import { ServerError } from "../errors.js";

const MOST = 64; // changes of a run

/**
 * What the page's changes ask of the model.
 * @param {Change[]} changes @param {GPTConfig} config @param {number} length tokens of the text
 * @returns {Intervention[]}
 */
export function interventionsOf(changes, config, length) {
  if (changes.length < 1 || changes.length > MOST)
    throw new ServerError(`${changes.length} changes are none of 1 … ${MOST}.`);
  return changes.map((change) => {
    requirePlace(change, config);
    if (change.kind === "off") return { kind: "ablate", layer: change.layer, head: change.head };
    if (change.kind !== "cut") throw new ServerError("A live report switches heads off and cuts keys, and no more.");
    const { layer, head, keys, queries } = change;
    requireRange("keys", keys, length);
    if (queries) requireRange("queries", queries, length);
    else if (keys[1] === length) throw new ServerError("The last token has no later one to be cut from; give queries.");
    return { kind: "knock_out", layer, head, keys, queries: queries ?? [keys[1], length] };
  });
}

function requirePlace(
  /** @type {{layer: number|null, head: number|null}} */ { layer, head },
  /** @type {GPTConfig} */ config,
) {
  if (layer == null && head != null) throw new ServerError(`head=${head} of all layers is none; name its layer.`);
  if (layer != null && layer >= config.layers)
    throw new ServerError(`layer=${layer} is none of 0 … ${config.layers - 1}.`);
  if (head != null && head >= config.heads) throw new ServerError(`head=${head} is none of 0 … ${config.heads - 1}.`);
}

function requireRange(/** @type {string} */ name, /** @type {Span} */ [first, stop], /** @type {number} */ length) {
  if (first >= 0 && first < stop && stop <= length) return;
  throw new ServerError(`${name}=${first},${stop} is not a range within 0,${length}.`);
}
