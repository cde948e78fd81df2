/**
 * Whether the page has settled: nothing is asked for, scheduled or still to be drawn. The root
 * element declares it as data-settled, for whoever must not look at a page that is half done.
 */
const root = document.documentElement;
let pending = 0;
let turn = 0;

/** Something begins; the function that is returned is to be called when it ends. */
export function pend() {
  pending += 1;
  root.dataset.settled = "false";
  return () => {
    pending -= 1;
    if (!pending) declare();
  };
}

/** Waits for a promise, as a part of what is pending. @template T @param {Promise<T>} promise */
export async function during(promise) {
  const end = pend();
  try {
    return await promise;
  } finally {
    end();
  }
}

/** A frame later, which was painted and whose observers have run: unless something began meanwhile. */
function declare() {
  turn += 1;
  const mine = turn;
  requestAnimationFrame(() =>
    setTimeout(() => {
      if (!pending && mine === turn) root.dataset.settled = "true";
    }),
  );
}
