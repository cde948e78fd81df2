/** Waiting for the server: its own sentence is shown where it refuses; a replaced question stays silent. */
import { Replaced, ServerError } from "./errors.js";
import { during } from "./pending.js";
import { set } from "./store.js";

/**
 * Waits for an answer.
 * @template T
 * @param {Promise<T>} answer
 * @returns {Promise<T|null>} null where it was replaced or failed
 */
export async function awaitAnswer(answer) {
  try {
    return await during(answer);
  } catch (error) {
    if (error instanceof Replaced) return null;
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 404 && /open/.test(error.message)) document.dispatchEvent(new CustomEvent("gone"));
    else if (!error.offline) set({ problem: error.message }); // the banner of its own says when it is
    return null;
  }
}
