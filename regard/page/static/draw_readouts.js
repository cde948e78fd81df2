/** A head's readouts along the text, one below the other, each with its ends in numbers. */
import { paintAlong } from "./draw_bars.js";
import { end, signed, weight } from "./format.js";
import { READOUTS, readoutOf, unitOf, wordsFor } from "./quantities.js";

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
    let most = 0;
    for (const value of part.subarray(first, stop)) if (value > most) most = value;
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
    const write = (
      /** @type {string} */ text,
      /** @type {number} */ down,
      /** @type {string} */ font,
      /** @type {string} */ colour,
    ) => {
      surface.font = font;
      surface.fillStyle = colour;
      surface.fillText(text, 0, y + down);
    };
    surface.textAlign = "left";
    surface.textBaseline = "alphabetic";
    write(wordsFor(name), 11, `12px ${inks.sans}`, inks.ink);
    write(`0 … ${end(Number(most.toPrecision(2)))} ${unitOf(name)}`, 25, `11px ${inks.sans}`, inks.soft);
    write(
      `${mark}: ${name === "distance" ? signed(part[mark], 1) : weight(part[mark])}`,
      39,
      `11px ${inks.mono}`,
      inks.accent,
    );
  });
}
