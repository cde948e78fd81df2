/** What the opening shows of a text at first: the head that matters most for its next token. */
import * as api from "./api.js";
import { parseAddress } from "./address.js";
import { awaitAnswer } from "./answers.js";
import { measureHeads } from "./matters.js";
import { during } from "./pending.js";
import { strongestOf } from "./sentence.js";
import { SHORT, chooseHead, get, subscribe } from "./store.js";

/** Most heads that are looked at, and switched off, one by one. */
const MANY = 64;
/** From so much loss on, in nats, a head that looks at a copy of the next token is preferred. */
const NOTABLE = 0.3;

export function startOpening() {
  /** The text whose head was chosen. @type {Run|null} */
  let seen = null;
  subscribe("plain view", ({ plain, view, grown }) => {
    if (view !== "opening" || !plain || plain === seen) return;
    seen = plain;
    if (!grown) during(choose(plain));
  });
}

/** Chooses the head that the next token depends on most among those that look far, where that is cheap to compute. */
async function choose(/** @type {Run} */ run) {
  const heads = run.layers.flatMap((layer, at) => layer.heads.map((_, head) => ({ layer: at, head })));
  if (heads.length > MANY || run.length > SHORT) return;
  const address = parseAddress(location.hash);
  const chosen = address.fields.has("l") && (address.run === run.id || address.text === run.text);
  const before = get().sides.first;
  if (get().about?.writes && run.next) await measureHeads(run);
  if (chosen || get().plain !== run) return;
  const rows = await Promise.all(
    heads.map(({ layer, head }) =>
      awaitAnswer(api.row(run.id, [layer, head], run.length - 1, `look-${layer}-${head}`)),
    ),
  );
  const { layer, head, query } = get().sides.first;
  if (get().plain !== run || query != null || layer !== before.layer || head !== before.head) return; // it is looked at
  let best = { worth: 0, layer: 0, head: 0 };
  heads.forEach((one, k) => {
    const row = rows[k];
    const worth = row ? worthOf(run, row.values, one) : 0;
    if (worth > best.worth) best = { worth, ...one };
  });
  if (best.worth) chooseHead(best.layer, best.head, "first");
}

/** How much there is to say about a head at the last token: what is lost without it, for the weight that looks far. */
function worthOf(
  /** @type {Run} */ run,
  /** @type {Float32Array} */ weights,
  /** @type {{layer: number, head: number}} */ at,
) {
  const key = strongestOf(weights);
  if (key <= 0 || key > run.length - 3) return 0; // the first token is where heads rest
  const effect = get().effects?.heads?.effects[at.layer]?.[at.head];
  const loss = effect == null ? 1 : Math.min(5, Math.max(1e-6, -effect));
  const isCopied = loss > NOTABLE && run.labels[key] === run.next?.[0].label;
  return weights[key] * loss * (isCopied ? 4 : 1);
}
