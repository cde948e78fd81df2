"""Jobs of a worker take turns: quick ones first, and cancelled ones are skipped."""

import pytest

# A job goes on until another is done, however many slices that takes; where the other gets no turn,
# it gives up and is first.
CODE = """
const answers = [];
const { promise, done } = (() => {
  let done;
  return { promise: new Promise((go) => (done = go)), done: () => done() };
})();
const work = new Work(({ id, line, value, error }) => {
  answers.push([id, line ?? value ?? error.message]);
  if (answers.length === given.count) done();
});
const MOST = 3e7;
function* after(other) {
  const ended = ([id, what]) => id === other && what === "a value";
  for (let turns = 0; turns < MOST && !answers.some(ended); turns++) yield;
  return `after ${other}`;
}
function* twice() {
  yield "a line";
  return "a value";
}
function* failing() {
  yield;
  throw new Error("a refusal");
}
"""
LINES = [[2, "a line"], [2, "a value"]]
# Lane and steps of two jobs, what happens then, and the answers in their order.
CASES = {
    "what is quick goes first": ((3, "after(2)"), (0, "twice()"), "", [*LINES, [1, "after 2"]]),
    "of one lane they take turns": ((1, "after(2)"), (1, "twice()"), "", [*LINES, [1, "after 2"]]),
    "a refusal ends its own job": (
        (0, "failing()"),
        (1, "twice()"),
        "",
        [[1, "a refusal"], *LINES],
    ),
    "what nobody waits for is left": ((0, "after(0)"), (1, "twice()"), "work.cancel(1);", LINES),
}


@pytest.mark.parametrize("case", CASES)
def test_turns(node, case):
    *jobs, then, answers = CASES[case]
    added = [
        f"work.add({{ id: {number}, lane: {lane}, steps: {steps} }});"
        for number, (lane, steps) in enumerate(jobs, start=1)
    ]
    code = "\n".join([CODE, *added, then, "await promise;", "return answers;"])
    assert node({"live/work.js": "Work"}, code, {"count": len(answers)}) == answers
