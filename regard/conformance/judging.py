"""Judges: what a case is graded by, each a function of a trial that returns its outcome.

Most compare a result with the definition. Where the definition leaves a choice, such as in a row
without visible keys, the outcome says which one the function has made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard._shapes import Float
from regard.conformance.trial import Trial, error_of

__all__ = ["JUDGES", "Status", "Verdict"]

Status = Literal["passed", "noted", "differs", "refused", "not offered"]
"""From a `noted` outcome on, a report says it in words; only `differs` is a failure."""


@dataclass(frozen=True)
class Verdict:
    """What a judge has found.

    Args:
        status: passed, noted (the definition leaves it open) or differs.
        words: what was found, where a number is not all.
        error: the largest difference; None if nothing was subtracted.
        allowed: the largest difference allowed.
        snippet: the lines that show a difference; empty for other outcomes.
    """

    status: Status
    words: str = ""
    error: float | None = None
    allowed: float | None = None
    snippet: str = ""


def result(trial: Trial) -> Verdict:
    """Compare the context with the definition."""
    trial.run(f"got = {trial.call.expression}")
    got, want = trial.tensor("got"), trial.tensor("want")
    if got.shape != want.shape:
        words = f"shape {tuple(got.shape)} in place of {tuple(want.shape)}"
        return Verdict("differs", words, snippet=trial.snippet("print(got.shape, want.shape)"))
    verdict = _compared(trial, got, want, trial.own, "(got - want).abs().max()")
    if verdict.status == "passed" and got.dtype != trial.dtype:
        return Verdict("noted", f"returns {got.dtype}", verdict.error, verdict.allowed)
    return verdict


def _compared(trial: Trial, got: Tensor, want: Tensor, own: Tensor, shown: str) -> Verdict:
    """Compare numbers; `shown` computes the same difference at the end of a failing case."""
    error, allowed = error_of(got, want), trial.allowed(own, want)
    if error <= allowed:
        return Verdict("passed", "", error, allowed)
    place = _worst(got, want)
    words = f"{float(got[place]):.6g} in place of {float(want[place]):.6g} at {list(place)}"
    line = f"print({shown})  # at most {allowed:.1e}; it was {error:.2e}: {words}"
    return Verdict("differs", words, error, allowed, trial.snippet(line))


def _worst(got: Float[Tensor, "..."], want: Float[Tensor, "..."]) -> tuple[int, ...]:
    difference = (got.double() - want).abs().nan_to_num(torch.inf)
    return tuple(int(i) for i in torch.unravel_index(difference.argmax(), want.shape))


def gradients(trial: Trial, loss: str = "(got * weight).sum()") -> Verdict:
    """Compare the gradients of query, key and value with those of the definition."""
    trial.run("weight = torch.randn(want.shape).to(q)", "inputs = q, k, v")
    with torch.enable_grad():
        trial.run(
            "for t in inputs: t.requires_grad_()",
            *trial.call.before,
            f"got = {trial.call.expression}",
        )
        if not trial.tensor("got").requires_grad:
            return Verdict("not offered", "the result has no gradient")
        trial.run(
            "exact = [t.detach().double().requires_grad_() for t in inputs]",
            f"def gradient(got, inputs): return torch.autograd.grad({loss}, inputs)",
            "pairs = zip(gradient(got, inputs), gradient(definition(*exact), exact))",
        )
        trial.names["own"] = trial.value("[t.detach().to(fair).requires_grad_() for t in inputs]")
        own = trial.value("gradient(definition(*own), own)")
        pairs = list(trial.names["pairs"])
    trial.names["pairs"] = pairs
    verdicts = []
    for index, name in enumerate(("query", "key", "value")):
        got, want = pairs[index]
        floor = torch.finfo(trial.dtype).eps * float(want.abs().max())
        allowed = trial.allowed(own[index], want) - trial.floor + floor
        error = error_of(got, want)
        words = "" if error <= allowed else f"gradient of the {name}"
        line = "print([float((a - b).abs().max()) for a, b in pairs])"
        line = f"{line}  # {words}: at most {allowed:.1e}; it was {error:.2e}"
        found: Status = "differs" if words else "passed"
        verdicts.append(Verdict(found, words, error, allowed, trial.snippet(line) if words else ""))
    return next((one for one in verdicts if one.status == "differs"), verdicts[0])


def gradients_of_sum(trial: Trial) -> Verdict:
    """Compare gradients where all numbers of the incoming one are the same, with stride 0."""
    return gradients(trial, loss="got.sum()")


def empty_rows(trial: Trial) -> Verdict:
    """Compare the rows that see a key, and say what the others give: the definition divides 0/0."""
    trial.run("empty = want.isnan()", f"got = {trial.call.expression}")
    got, want, empty = trial.tensor("got"), trial.tensor("want"), trial.names["empty"]
    shown = "(got - want)[~empty].abs().max()"
    others = _compared(trial, got[~empty], want[~empty], trial.own[~empty], shown)
    if others.status == "differs":
        return others
    if not bool(empty.any()):
        return Verdict("not offered", "causal is aligned at the top left: every query sees key 0")
    return _filled(trial, got[empty], "print(got[empty])")


def _filled(trial: Trial, rows: Tensor, shown: str) -> Verdict:
    if not bool(rows.any()):
        return Verdict("noted", "0")
    if bool(rows.isnan().all()):
        return Verdict("noted", "NaN")
    first = f"something else: {float(rows.flatten()[0]):.6g}, …"
    return Verdict(
        "differs", first, snippet=trial.snippet(f"{shown}  # neither 0 nor NaN: {first}")
    )


def empty_rows_gradients(trial: Trial) -> Verdict:
    """Say what a row without keys sends back: to its query, and to keys and values of others."""
    with torch.enable_grad():
        trial.run(
            "for t in (q, k, v): t.requires_grad_()",
            *trial.call.before,
            f"got = {trial.call.expression}",
        )
        if not trial.tensor("got").requires_grad:
            return Verdict("not offered", "the result has no gradient")
        trial.run("got.nan_to_num().sum().backward()")
    of_query, of_keys = trial.tensor("q").grad, trial.tensor("v").grad
    assert of_query is not None, "backward has been called"
    assert of_keys is not None, "likewise"
    spread = "; NaN reaches every key" if bool(of_keys.isnan().any()) else ""
    row = _filled(trial, of_query[..., 3, :], "print(q.grad[..., 3, :])")
    return Verdict(row.status, row.words + spread, snippet=row.snippet)


def hidden_numbers(trial: Trial) -> Verdict:
    """Say whether NaN or ∞ behind a mask is kept out of the rows that may not see it.

    0 · NaN is NaN by IEEE 754, and a kernel that multiplies hidden values by a weight of 0 lets
    them through; finite numbers, though, must be right.
    """
    trial.run("see_it = (see[:, 13:]).any(-1)", f"got = {trial.call.expression}")
    hidden = ~trial.names["see_it"]
    got, want, own = (
        t[..., hidden, :] for t in (trial.tensor("got"), trial.tensor("want"), trial.own)
    )
    through = ~got.isfinite()
    got = got.masked_fill(through, 0)
    want, own = want.masked_fill(through, 0), own.masked_fill(through, 0)
    shown = "(got - want)[..., ~see_it, :].abs().max()"
    verdict = _compared(trial, got, want, own, shown)
    if verdict.status == "differs" or not bool(through.any()):
        return verdict
    share = float(through.double().mean())
    return Verdict("noted", "comes through" if share == 1 else f"comes through in {share:.0%}")


def visible_numbers(trial: Trial) -> Verdict:
    """Ask for a NaN that every query sees: a result without it looks right and is not."""
    trial.run(f"got = {trial.call.expression}")
    lost = ~trial.tensor("got").isnan()
    if not bool(lost.any()):
        return Verdict("passed", "comes out")
    words = f"{float(lost.double().mean()):.0%} of the result is a number"
    return Verdict("differs", words, snippet=trial.snippet(f"print(got)  # not NaN: {words}"))


def dropout(trial: Trial) -> Verdict:
    """Look at the weights that are kept: each is divided by 1 − p, so that the mean stays.

    The value is the identity, so that the result is the weights. The mean of n ratios to those
    without dropout has the standard deviation √(p/(1 − p)/n); five of them are allowed.
    """
    p = trial.dropout
    trial.run(f"got = {trial.call.expression}", "ratio = got / want")
    got, ratio = trial.tensor("got"), trial.tensor("ratio")
    kept = got != 0
    if bool(kept.all()):
        line = "print((got == 0).sum())  # no weight was dropped"
        return Verdict("differs", "no weight was dropped", snippet=trial.snippet(line))
    mean, allowed = float(ratio.mean()), 5 * (p / (1 - p) / ratio.numel()) ** 0.5
    if abs(mean - 1) > allowed:
        words = f"the mean is {mean:.3f} times the weights, 1 ± {allowed:.3f} expected"
        line = f"print(ratio.mean())  # {words}"
        return Verdict("differs", words, abs(mean - 1), allowed, trial.snippet(line))
    size = float((ratio[kept] * (1 - p) - 1).abs().max())
    exact = 64 * torch.finfo(trial.dtype).eps
    if size > exact:
        words = f"a weight kept is not divided by 1 − p: off by {size:.1%}"
        line = f"print(ratio[got != 0].aminmax())  # {words}"
        return Verdict("differs", words, size, exact, trial.snippet(line))
    return Verdict("passed", f"mean {mean:.3f}", abs(mean - 1), allowed)


def dropout_seed(trial: Trial) -> Verdict:
    """Say whether the weights that are dropped follow torch's generator."""
    call = trial.call.expression
    trial.run("torch.manual_seed(1)", f"one = {call}", f"two = {call}")
    trial.run("torch.manual_seed(1)", f"again = {call}")
    if bool(trial.value("torch.equal(one, two)")):
        line = "print(torch.equal(one, two))  # every call drops the same weights"
        words = "every call drops the same weights"
        return Verdict("differs", words, snippet=trial.snippet(line))
    if bool(trial.value("torch.equal(one, again)")):
        return Verdict("passed")
    return Verdict("noted", "does not follow torch.manual_seed")


def _same(trial: Trial, one: Tensor, two: Tensor, shown: str) -> Verdict:
    """Compare bits, and where they differ, say by how much; more than rounding is a failure."""
    if torch.equal(one, two):
        return Verdict("passed", "bit-equal", 0.0, 0.0)
    error = error_of(one, two.double())
    allowed = trial.allowed(trial.own, trial.tensor("want"))
    if error <= allowed:
        return Verdict("noted", f"other bits: {error:.1e} apart", error, allowed)
    line = f"print({shown})  # at most {allowed:.1e}; it was {error:.2e}"
    return Verdict("differs", f"{error:.2g} apart", error, allowed, trial.snippet(line))


def twice(trial: Trial) -> Verdict:
    """Compare two calls with the same tensors."""
    trial.run(f"got = {trial.call.expression}", f"again = {trial.call.expression}")
    return _same(trial, *_two(trial), "(got - again).abs().max()")


def _two(trial: Trial) -> tuple[Tensor, Tensor]:
    return trial.tensor("got"), trial.tensor("again")


def twice_backward(trial: Trial) -> Verdict:
    """Compare the gradients of two calls with the same tensors."""
    with torch.enable_grad():
        trial.run("for t in (q, k, v): t.requires_grad_()", *trial.call.before)
        loss = f"{trial.call.expression}.sum()"
        trial.run(f"def gradient(): return torch.autograd.grad({loss}, k)[0]")
        if not trial.value(trial.call.expression).requires_grad:
            return Verdict("not offered", "the result has no gradient")
        trial.run("got = gradient()", "again = gradient()")
    return _same(trial, *_two(trial), "(got - again).abs().max()")


def alone(trial: Trial) -> Verdict:
    """Compare a sequence in a batch of two with the same sequence alone."""
    one = "q, k, v = q[:1], k[:1], v[:1]"
    trial.run(f"got = ({trial.call.expression})[:1]", one, *trial.call.before)
    trial.run(f"again = {trial.call.expression}")
    return _same(trial, *_two(trial), "(got - again).abs().max()")


def other_sequence(trial: Trial) -> Verdict:
    """Put NaN into one sequence: nothing of it may reach the other."""
    trial.run(
        f"got = ({trial.call.expression})[:1]",
        "for t in (q, k, v): t[1] = torch.nan",
        *trial.call.before,
        f"again = ({trial.call.expression})[:1]",
    )
    return _same(trial, *_two(trial), "(got - again).abs().max()")


def unchanged(trial: Trial) -> Verdict:
    """Compare the arguments after a call with copies made before it."""
    names = ", ".join([*trial.call.inputs, *(n for n in ("see", "bias") if n in trial.names)])
    trial.run(f"copies = [t.detach().clone() for t in ({names})]", f"got = {trial.call.expression}")
    return _kept(trial, names)


def unchanged_backward(trial: Trial) -> Verdict:
    """Do the same around a call and its backward pass."""
    names = ", ".join(trial.call.inputs)
    with torch.enable_grad():
        trial.run("for t in (q, k, v): t.requires_grad_()", *trial.call.before)
        trial.run(f"copies = [t.detach().clone() for t in ({names})]")
        trial.run(f"got = {trial.call.expression}")
        if not trial.tensor("got").requires_grad:
            return Verdict("not offered", "the result has no gradient")
        trial.run("got.sum().backward()")
    return _kept(trial, names)


def _kept(trial: Trial, names: str) -> Verdict:
    same = f"[torch.equal(*pair) for pair in zip(({names}), copies)]"
    kept = trial.value(same)
    if all(kept):
        return Verdict("passed")
    changed = [name for name, is_kept in zip(names.split(", "), kept, strict=True) if not is_kept]
    words = f"writes to {', '.join(changed)}"
    return Verdict("differs", words, snippet=trial.snippet(f"print({same})  # {words}"))


_COMPILE = 'attend = torch.compile(attend, backend="aot_eager")'


def compiled(trial: Trial) -> Verdict:
    """Compare the compiled function with the definition.

    The backend is aot_eager: it traces forward and removes mutation, as every backend of
    torch.compile needs, and compiles no C++, which would take a minute.
    """
    torch.compiler.reset()
    trial.run(_COMPILE)
    return result(trial)


def compiled_lengths(trial: Trial) -> Verdict:
    """Compile for one length, and call with another."""
    torch.compiler.reset()
    short = "q, k, v = q[..., :7, :], k[..., :13, :], v[..., :13, :]"
    trial.run(_COMPILE, f"first = {trial.call.expression}", short, *trial.call.before)
    trial.own = trial.value("definition(*(t.to(fair) for t in (q, k, v)))")
    trial.run("want = definition(q.double(), k.double(), v.double())")
    return result(trial)


JUDGES: dict[str, Callable[[Trial], Verdict]] = {
    judge.__name__: judge
    for judge in (
        *(result, gradients, gradients_of_sum, empty_rows, empty_rows_gradients),
        *(hidden_numbers, visible_numbers),
        *(dropout, dropout_seed, twice, twice_backward, alone, other_sequence),
        *(unchanged, unchanged_backward, compiled, compiled_lengths),
    )
}
"""By the names that cases have."""
