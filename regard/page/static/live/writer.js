/** Which head writes the next token, and from where: shares of its lead over the second likeliest, which add up. */
import { row } from "../kernels/pattern.js";
import { visible } from "./labels.js";
import { largest } from "./sampling.js";
import { alongOf, readsOf, toward } from "./views.js";

const DECIDES = 0.1; // of the lead, and nats that are lost without the head, as in regard/lens/toward.py

/**
 * @param {import("./subject.js").Subject} subject @param {import("./subject.js").LiveRun} one
 * @returns {Generator<void, Writer>}
 */
export function* writerOf(subject, one) {
  const { model } = subject;
  const { layers, heads } = model.config;
  const [token, other] = largest(one.probabilities, 2);
  const along = alongOf(model, one, token, other);
  let best = { layer: 0, head: 0, source: 0, share: -Infinity };
  for (let layer = 0; layer < layers; layer++) {
    const reads = readsOf(model, layer, along);
    for (let head = 0; head < heads; head++) {
      const pattern = toward(subject.head(one, layer, head), head, reads);
      const shares = row([pattern], one.ids.length - 1);
      pattern.release();
      const share = shares.reduce((sum, each) => sum + each, 0);
      if (share <= best.share) continue;
      const source = shares.reduce((most, each, key) => (Math.abs(each) > Math.abs(shares[most]) ? key : most), 0);
      best = { layer, head, source, share };
    }
    yield;
  }
  const loss = -(yield* effectOf(subject, one, best, token));
  const [name] = subject.tokenizer.tokens([other]);
  const margin = one.logits[token] - one.logits[other];
  return { ...best, against: visible(name), margin, loss, decides: Math.min(best.share, loss) >= DECIDES };
}

/**
 * By how much the log-probability of a token changes without a head.
 * @param {import("./subject.js").Subject} subject @param {import("./subject.js").LiveRun} one
 * @param {{layer: number, head: number}} place @param {number} token
 * @returns {Generator<void, number>}
 */
function* effectOf(subject, one, { layer, head }, token) {
  const changed = yield* subject.change(one, [{ kind: "off", layer, head }]);
  return Math.log(changed.probabilities[token] / one.probabilities[token]);
}
