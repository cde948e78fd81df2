/**
 * Jobs that take turns on one thread: what takes milliseconds goes first, what is looked at next, what stands beside
 * it after that, and what was measured unseen last.
 */

const SLICE = 12; // milliseconds that a job has before others and new messages have their turn

/** @typedef {{id: number, lane: number, steps: Iterator<unknown, unknown>}} Job */

export class Work {
  /** @param {(message: {id: number, line?: unknown, value?: unknown, error?: unknown}) => void} answer */
  constructor(answer) {
    this.answer = answer;
    /** @type {Job[]} */
    this.jobs = [];
    this.running = false;
    const { port1, port2 } = new MessageChannel(); // without the wait that timers have
    this.next = () => port2.postMessage(null);
    port1.onmessage = () => this.slice();
  }

  add(/** @type {Job} */ job) {
    this.jobs.push(job);
    if (!this.running) this.next();
    this.running = true;
  }

  cancel(/** @type {number} */ id) {
    for (const { steps } of this.jobs.filter((job) => job.id === id)) steps.return?.();
    this.jobs = this.jobs.filter((job) => job.id !== id);
  }

  /** Goes on with the job that comes first; of one lane they take turns. */
  slice() {
    const lane = Math.min(...this.jobs.map((job) => job.lane));
    const job = this.jobs.find((one) => one.lane === lane);
    if (job) {
      this.jobs.splice(this.jobs.indexOf(job), 1);
      if (!this.goOn(job)) this.jobs.push(job);
    }
    this.running = this.jobs.length > 0;
    if (this.running) this.next();
  }

  /** Whether a job is done after its slice. */
  goOn(/** @type {Job} */ { id, steps }) {
    try {
      for (const since = performance.now(); performance.now() - since < SLICE;) {
        const { done, value } = steps.next();
        if (done) {
          this.answer({ id, value });
          return true;
        }
        if (value !== undefined) this.answer({ id, line: value });
      }
      return false;
    } catch (error) {
      this.answer({ id, error });
      return true;
    }
  }
}
