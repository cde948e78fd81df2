/** A head's readouts along the text, one below the other, each with its ends in numbers. */
import { paintAlong } from "./draw_bars.js";
import { write } from "./canvas.js";
import { end, signed, weight } from "./format.js";
import { READOUTS, greatestOf, readoutOf, unitOf, wordsFor } from "./quantities.js";

/** Room for their names. */
export const LEFT = 128;

/**
 * @param {Surface} surface
 * @param {{values: Float32Array, range: number[], width: number, height: number,
 *   query: number, key: number|null, inks: Inks}} data values: all four, one after the other; range:
 *   the first token that is shown and one past the last
 */
export function paintReadouts(surface, { values, range: [first, stop], width, height, query, key, inks }) {
  const tall = height / READOUTS.length;
  READOUTS.forEach((name, n) => {
    const part = readoutOf(name, values);
    const most = greatestOf(part.subarray(first, stop));
    const y = n * tall + 4;
    const mark = name === "received" ? (key ?? query) : query;
    paintAlong(surface, {
      values: part.subarray(first, stop),
      x: LEFT,
      y,
      width: width - LEFT,
      height: tall - 8,
      most,
      inks,
      at: mark >= first && mark < stop ? mark - first : null,
    });
    const none = Number.isNaN(part[mark]); // of a view whose rows do not add up to 1
    const value = none ? "of weights alone" : name === "distance" ? signed(part[mark], 1) : weight(part[mark]);
    const high = end(Number(most.toPrecision(2)));
    const low = part.some((one) => one < 0) ? `−${high}` : "0";
    const range = none ? "" : `${low} … ${high} ${unitOf(name)}`;
    write(surface, wordsFor(name), 0, y + 11, { font: `12px ${inks.sans}`, colour: inks.ink });
    write(surface, range, 0, y + 25, { font: `11px ${inks.sans}`, colour: inks.soft });
    write(surface, `${mark}: ${value}`, 0, y + 39, { font: `11px ${inks.mono}`, colour: inks.accent });
  });
}
