/** Small figures as marks: vectors as signed bars, readouts as lines along the text. */
import { fill } from "./canvas.js";

/**
 * A vector: a bar for each number, up for positive and down for negative.
 * @param {Surface} surface
 * @param {{values: number[], width: number, height: number, most: number, inks: Inks, chosen?: number|null}} data
 *   most: the greatest size that the bars have room for, so that vectors can share a scale
 */
export function paintVector(surface, { values, width, height, most, inks, chosen = null }) {
  const step = width / values.length;
  const zero = height / 2;
  fill(surface, inks.line, 0, zero - 0.5, width, 1);
  values.forEach((value, k) => {
    const size = Math.min(1, Math.abs(value) / (most || 1)) * (height / 2 - 1);
    fill(
      surface,
      k === chosen ? inks.accent : value < 0 ? inks.soft : inks.ink,
      k * step,
      value < 0 ? zero : zero - size,
      Math.max(step - (step > 3 ? 1 : 0), 0.5),
      Math.max(size, 0.5),
    );
  });
}

/**
 * One readout along the text, with its ends in numbers; the mean of a pixel as a line, its least and
 * greatest as an area.
 * @param {Surface} surface
 * @param {{values: Float32Array, x: number, y: number, width: number, height: number, most: number,
 *   inks: Inks, at: number|null}} data
 */
export function paintAlong(surface, { values, x, y, width, height, most, inks, at }) {
  const length = values.length;
  const signed = values.some((value) => value < 0); // then 0 is in the middle
  const [zero, room] = signed ? [y + height / 2, height / 2 - 1] : [y + height, height - 2];
  fill(surface, inks.line, x, zero - 0.5, width, 1);
  const level = (/** @type {number} */ value) => zero - (value / (most || 1)) * room;
  const cell = width / length;
  if (cell >= 2) {
    for (let k = 0; k < length; k++) {
      if (!Number.isFinite(values[k])) continue;
      fill(
        surface,
        k === at ? inks.accent : values[k] < 0 ? inks.changed : inks.soft,
        x + k * cell,
        Math.min(zero, level(values[k])),
        Math.max(cell - (cell > 4 ? 1 : 0), 0.5),
        Math.abs(zero - level(values[k])),
      );
    }
    return;
  }
  const points = [];
  for (let column = 0; column < width; column++) {
    const first = Math.floor((column / width) * length);
    const stop = Math.max(first + 1, Math.floor(((column + 1) / width) * length));
    let [least, sum, greatest] = [Infinity, 0, -Infinity];
    for (let k = first; k < stop; k++) {
      least = Math.min(least, values[k]);
      greatest = Math.max(greatest, values[k]);
      sum += values[k];
    }
    fill(surface, inks.line, x + column, level(greatest), 1, Math.max(1, level(least) - level(greatest)));
    points.push([x + column + 0.5, level(sum / (stop - first))]);
  }
  surface.strokeStyle = inks.ink;
  surface.lineWidth = 1;
  surface.beginPath();
  points.forEach(([px, py], k) => (k ? surface.lineTo(px, py) : surface.moveTo(px, py)));
  surface.stroke();
  if (at == null) return;
  fill(surface, inks.accent, x + (at + 0.5) * cell - 0.75, y, 1.5, height);
}
