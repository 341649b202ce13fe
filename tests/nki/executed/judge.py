"""How near three results must be to each other: executed text, simulator, dense attention in double."""
import numpy as np

from .dense import Dense

# The largest relative error of one rounding to the type of the operands.
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Of the terms of a sum: sums of some hundred float32 terms, a float32 exponential and what a few others add.
FLOAT32 = 2.0**-18
# Of the terms of a score: 8 float32 roundings of 2^-24, what a sum of 64 products comes to (its square root).
# By so much they change the logarithm of its weight.
SCORE = 2.0**-21
# On the same ring, simulator and text round the same values at the same places, but their float32 sums differ in the
# last bits, a score by some 2^-19. Where a weight stands so near the middle of two values of the type that this decides,
# it differs by one step of the type, 2 roundings: of bfloat16 weights about one in 2^11, of float16 weights one in 2^8.
# Few rows have more than a few such among the some hundred weights of these cases.
FEW = 4
# All elements together, relative to their norm: that share of the weights by a step each is less than this part of one
# rounding.
RARE = 1 / 16


def within(error, bound, text):
    """The largest error / bound, which must not be above 1."""
    error, bound = np.broadcast_arrays(error, bound)
    if not np.isfinite(error).all():
        raise AssertionError(f"{text}: not finite at {np.argwhere(~np.isfinite(error))[0]}")
    share = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    if (share > 1).any():
        place = np.unravel_index(share.argmax(), share.shape)
        raise AssertionError(f"{text}: error {error[place]} at {place}, {share[place]} times its bound")
    return float(share.max(initial=0))


def distance(left, right):
    """|left - right|, where both may be the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(left == right, 0, np.abs(left.astype(np.float64) - right))


def apart_in_norm(left, right, rounding):
    """The distance of all elements together in units of what rare steps of the type explain; must not be above 1."""
    gap = np.linalg.norm(distance(left, right))
    share = gap / (RARE * rounding * np.linalg.norm(left.astype(np.float64)))
    if not share <= 1:
        raise AssertionError(f"executed and simulated results are {share} times as far apart as rare roundings explain")
    return float(share)


def largest(values):
    finite = np.abs(values[np.isfinite(values)])
    return finite.max(initial=0)


def compare(emitted, executed, alike):
    """Raises AssertionError where a bound is exceeded; returns how much of the bounds was used.

    executed: on any ring order. alike: on an order on which values are rounded as they were on the simulator's.
    """
    problem = emitted.problem
    size = problem.ranks
    used = {}
    for begin in range(0, emitted.workers, size):
        group = slice(begin, begin + size)
        compare_one = _compare_backward if problem.backward else _compare_forward
        results = dict(simulated=emitted.simulated[group], executed=executed[group], alike=alike[group])
        compare_one(problem, emitted.inputs[group], emitted.sinks, results, used)
    return ", ".join(f"{name} {share:.2f}" for name, share in used.items())


def _use(used, name, share):
    used[name] = max(used.get(name, 0), share)


def _dense(problem, inputs, sinks):
    operand = lambda name, rows, rows_last: problem.gathered([given[name] for given in inputs], rows, rows_last)
    return Dense(problem, operand("q", problem.rows, not problem.queries_by_token),
                 operand("k", problem.keys, not problem.keys_by_token), operand("v", problem.keys, False), sinks)


def _compare_forward(problem, inputs, sinks, results, used):
    dense = _dense(problem, inputs, sinks)
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    outputs = {name: problem.gathered([of["output"] for of in each], problem.rows) for name, each in results.items()}
    float32 = FLOAT32 + SCORE * dense.score_terms
    bound = (rounding + float32) * dense.output_terms + narrow * (1 + rounding) * np.abs(dense.output)
    for name, output in outputs.items():
        if (output[dense.dead[..., 0]] != 0).any():
            raise AssertionError(f"{name}: a row that sees nothing has an output other than 0")
        _use(used, name, within(distance(output, dense.output), bound, f"{name} output"))
    # Scores of usual size leave no mark beyond 1e-6; one of some hundreds has float32 neighbours farther apart.
    score = SCORE * dense.score_terms
    if rounding == narrow == 0:
        apart = np.maximum(1e-6 * largest(dense.output), np.where(score > 1e-5, score, 0) * dense.output_terms)
    else:
        apart = FEW * 2 * rounding * dense.largest_term() + float32 * dense.output_terms
        apart = apart + 2 * narrow * np.abs(dense.output)
        _use(used, "norm apart", apart_in_norm(outputs["alike"], outputs["simulated"], max(rounding, narrow)))
    gap = distance(outputs["alike"], outputs["simulated"])
    _use(used, "apart", within(gap, apart, "executed output against simulated"))
    if not problem.training:
        return
    statistics = {name: problem.gathered_lse([of["lse"] for of in each]) for name, each in results.items()}
    bound = np.maximum(1e-5, score)
    for name, lse in statistics.items():
        _use(used, "lse", within(distance(lse, dense.lse), bound, f"{name} lse"))
    gap = distance(statistics["executed"], statistics["simulated"])
    _use(used, "lse apart", within(gap, 1e-6 * largest(dense.lse), "executed lse against simulated"))


def _compare_backward(problem, inputs, sinks, results, used):
    dense = _dense(problem, inputs, sinks)
    dense.differentiate(problem.gathered([given["dout"] for given in inputs], problem.rows))
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    float32 = FLOAT32 + SCORE * dense.score_terms.max()
    for name, exact in dense.gradients.items():
        rows = problem.rows if name == "dq" else problem.keys
        seen = {which: problem.gathered([of[name] for of in each], rows) for which, each in results.items()}
        # dv: weights are rounded once. dq, dk: weights, and their gradients once more; delta comes from an output whose
        # weights were rounded, and itself.
        roundings = rounding if name == "dv" else 2.02 * rounding
        bound = roundings * dense.rounded[name] + 1.01 * (rounding + narrow) * dense.from_delta[name]
        bound = bound + float32 * dense.gradient_terms[name]
        for which, gradient in seen.items():
            _use(used, name, within(distance(gradient, exact), bound, f"{which} {name}"))
        # Both start from the same output and lse.
        apart = 1e-6 * largest(exact)
        if rounding > 0:
            apart = FEW * 2 * roundings * dense.largest_terms[name] + float32 * dense.gradient_terms[name]
            _use(used, f"{name} norm apart", apart_in_norm(seen["alike"], seen["simulated"], rounding))
        gap = distance(seen["alike"], seen["simulated"])
        _use(used, f"{name} apart", within(gap, apart, f"executed {name} against simulated"))
