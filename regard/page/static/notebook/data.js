/** What Python put into a notebook's frame: a description, and pictures of weights as bytes. */
import { byId } from "../dom.js";
import { inflated } from "../offline/bytes.js";

/** @type {any} */
export const content = JSON.parse(byId("content").textContent);

/**
 * The pictures, one after the other: a weight is two bytes, even steps of its logarithm below the
 * greatest of its picture, and 0 for none. The lower bytes of all come first.
 * @returns {Promise<Float32Array>}
 */
export async function weights() {
  const bytes = await inflated(byId("numbers").textContent);
  const many = bytes.length / 2;
  const { most, decades } = content;
  const each = many / most.length;
  return Float32Array.from({ length: many }, (_, k) => {
    const code = bytes[k] + 256 * bytes[many + k];
    return code && most[Math.floor(k / each)] * 10 ** (decades * ((code - 1) / 65534 - 1));
  });
}

/** The frame covers the still picture below it from now on. */
export const cover = () => document.documentElement.classList.add("drawn");
