/** Why a question has no answer. */

/** The server refused, and why; or it did not answer at all (`offline`). */
export class ServerError extends Error {
  constructor(/** @type {string} */ message, { status = 0, offline = false } = {}) {
    super(message);
    this.status = status;
    this.offline = offline;
  }
}

/** Nobody waits for the answer any more. */
export class Replaced extends Error {}
