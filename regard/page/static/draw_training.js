/** How scores and the loss went over the updates of a training run: a line a head, and one below. */
import { fill, write } from "./canvas.js";
import { end } from "./format.js";
import { unitOf, wordsFor } from "./quantities.js";

export const LEFT = 92; // room for names
const RIGHT = 12;
const LOSS = 0.3; // of the height
const FOOT = 16; // room for the updates' numbers

/** Where an update stands: 0 … 1. */
const along = (/** @type {number[]} */ steps, /** @type {number} */ step) =>
  steps.length < 2 ? 0.5 : (step - steps[0]) / (steps[steps.length - 1] - steps[0]);
const acrossOf = (/** @type {number[]} */ steps, /** @type {number} */ step, /** @type {number} */ width) =>
  LEFT + along(steps, step) * (width - LEFT - RIGHT);

/** The recorded update nearest to a place on the drawing. */
export function stepAt(/** @type {number[]} */ steps, /** @type {number} */ x, /** @type {number} */ width) {
  const far = (/** @type {number} */ step) => Math.abs(acrossOf(steps, step, width) - x);
  return steps.reduce((best, step) => (far(step) < far(best) ? step : best), steps[0]);
}

/**
 * @param {CanvasRenderingContext2D} surface
 * @param {{steps: number[], lines: {values: (number|null)[], chosen: boolean}[], name: string,
 *   losses: (number|null)[], step: number, width: number, height: number, inks: Inks}} data
 */
export function paintTraining(surface, { steps, lines, name, losses, step, width, height, inks }) {
  const known = losses.some((loss) => loss != null);
  const split = known ? Math.round((height - FOOT) * (1 - LOSS)) : height - FOOT;
  const x = (/** @type {number} */ at) => acrossOf(steps, at, width);
  const note = { font: `11px ${inks.sans}`, colour: inks.soft };
  surface.clearRect(0, 0, width, height);
  fill(surface, inks.line, x(step) - 0.5, 0, 1, height - FOOT);

  /** @param {number} top @param {number} bottom @param {Curve[]} all @param {string} title @param {string} unit */
  const part = (top, bottom, all, title, unit) => {
    const most = Math.max(1e-9, ...all.flatMap(({ values }) => values.filter((value) => value != null)));
    const y = (/** @type {number} */ value) => bottom - 3 - (value / most) * (bottom - top - 9);
    for (const { values, chosen } of [...all].sort((a, b) => Number(a.chosen) - Number(b.chosen))) {
      surface.strokeStyle = chosen ? inks.accent : inks.soft;
      surface.globalAlpha = chosen ? 1 : 0.45;
      surface.lineWidth = chosen ? 2 : 1;
      surface.beginPath();
      let on = false; // a line is broken where a score does not apply
      values.forEach((value, k) => {
        if (value != null && on) surface.lineTo(x(steps[k]), y(value));
        else if (value != null) surface.moveTo(x(steps[k]), y(value));
        on = value != null;
      });
      surface.stroke();
      surface.globalAlpha = 1;
      const now = values[steps.indexOf(step)];
      if (!chosen || now == null) continue;
      fill(surface, inks.accent, x(step) - 2.5, y(now) - 2.5, 5, 5);
    }
    fill(surface, inks.line, LEFT, bottom - 1, width - LEFT - RIGHT, 1);
    write(surface, title, 0, top + 12, { font: `12px ${inks.sans}`, colour: inks.ink });
    write(surface, `0 … ${end(Number(most.toPrecision(2)))} ${unit}`, 0, top + 26, note);
  };
  part(0, split, lines, wordsFor(name), unitOf(name));
  if (known) part(split + 4, height - FOOT, [{ values: losses, chosen: true }], "loss", "nats");
  for (const [at, align] of /** @type {[number, CanvasTextAlign][]} */ ([
    [steps[0], "left"],
    [steps.at(-1), "right"],
  ])) {
    write(surface, String(at), x(at), height - 3, { ...note, align });
  }
}
