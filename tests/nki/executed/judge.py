"""Error bounds between three results: executed kernel text, simulator, dense attention in double."""
import numpy as np

from .dense import Dense

# Largest relative error of one rounding to the type of the operands.
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Relative to the terms of a sum: sums of some hundred float32 terms, a float32 exponential and a few other roundings.
FLOAT32 = 2.0**-18
# Relative to the terms of a score: 8 float32 roundings of 2^-24, expected for a sum of 64 products (its square root).
# The logarithm of the score's weight changes by the same amount.
SCORE = 2.0**-21
# In the same ring order, simulator and text round the same values at the same places, but their float32 sums differ in
# the last bits, a score by some 2^-19. A weight so close to the midpoint of two values of the type that this decides
# its rounding differs by one step, 2 roundings: about one in 2^11 bfloat16 weights, one in 2^8 float16 weights.
# Few rows have more than a few such weights among the some hundred of these cases.
FEW = 4
# For all elements together, relative to their norm: one step each in that fraction of the weights is less than this
# fraction of one rounding.
RARE = 1 / 16


def within(error, bound, text):
    """Returns the largest error / bound. Raises AssertionError if it exceeds 1 or an error is not finite."""
    error, bound = np.broadcast_arrays(error, bound)
    if not np.isfinite(error).all():
        raise AssertionError(f"{text}: not finite at {np.argwhere(~np.isfinite(error))[0]}")
    share = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    if (share > 1).any():
        place = np.unravel_index(share.argmax(), share.shape)
        raise AssertionError(f"{text}: error {error[place]} at {place}, {share[place]} times its bound")
    return float(share.max(initial=0))


def distance(left, right):
    """|left - right|, and 0 where both are the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(left == right, 0, np.abs(left.astype(np.float64) - right))


def apart_in_norm(left, right, rounding):
    """Returns the distance in norm, relative to its bound for rare steps. Raises AssertionError if it exceeds 1."""
    gap = np.linalg.norm(distance(left, right))
    share = gap / (RARE * rounding * np.linalg.norm(left.astype(np.float64)))
    if not share <= 1:
        raise AssertionError(f"executed and simulated results are {share} times as far apart as rare steps allow")
    return float(share)


def largest(values):
    finite = np.abs(values[np.isfinite(values)])
    return finite.max(initial=0)


def compare(emitted, executed):
    """Raises AssertionError if a bound is exceeded; returns the used fraction of each bound as text.

    executed: results in an order of the ring that rounds values like the simulator's.
    """
    problem = emitted.problem
    size = problem.ranks
    used = {}
    for begin in range(0, emitted.workers, size):
        group = slice(begin, begin + size)
        compare_one = _compare_backward if problem.backward else _compare_forward
        results = dict(simulated=emitted.simulated[group], executed=executed[group])
        compare_one(problem, emitted.inputs[group], emitted.sinks, results, used)
    return ", ".join(f"{name} {share:.2f}" for name, share in used.items())


def _use(used, name, share):
    used[name] = max(used.get(name, 0), share)


def _dense(problem, inputs, sinks):
    operand = lambda name, rows, rows_last: problem.gathered([given[name] for given in inputs], rows, rows_last)
    bias = None if problem.bias == "none" else problem.gathered_pairs([given["bias"] for given in inputs])
    kept = problem.gathered_pairs([given["kept"] for given in inputs]) if problem.dropout else None
    return Dense(problem, operand("q", problem.rows, not problem.queries_by_token),
                 operand("k", problem.keys, not problem.keys_by_token), operand("v", problem.keys, False), sinks,
                 bias, kept)


def _compare_forward(problem, inputs, sinks, results, used):
    dense = _dense(problem, inputs, sinks)
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    outputs = {name: problem.gathered([of["output"] for of in each], problem.rows) for name, each in results.items()}
    float32 = FLOAT32 + SCORE * dense.score_terms
    bound = (rounding + float32) * dense.output_terms + narrow * (1 + rounding) * np.abs(dense.output)
    for name, output in outputs.items():
        if (output[dense.masked[..., 0]] != 0).any():
            raise AssertionError(f"{name}: a masked row has an output other than 0")
        _use(used, name, within(distance(output, dense.output), bound, f"{name} output"))
    # Scores of usual size change the output by less than 1e-6; the spacing of float32 at some hundreds is larger.
    score = SCORE * dense.score_terms
    if rounding == narrow == 0:
        apart = np.maximum(1e-6 * largest(dense.output), np.where(score > 1e-5, score, 0) * dense.output_terms)
    else:
        apart = FEW * 2 * rounding * dense.largest_term() + float32 * dense.output_terms
        apart = apart + 2 * narrow * np.abs(dense.output)
        _use(used, "norm apart", apart_in_norm(outputs["executed"], outputs["simulated"], max(rounding, narrow)))
    gap = distance(outputs["executed"], outputs["simulated"])
    _use(used, "apart", within(gap, apart, "executed output against simulated"))
    if not problem.training:
        return
    statistics = {name: problem.gathered_lse([of["lse"] for of in each]) for name, each in results.items()}
    # With stationary keys the sums are those of rounded weights.
    rounded = 1.01 * rounding if problem.keys_stationary else 0
    bound = np.maximum(1e-5, score) + rounded
    for name, lse in statistics.items():
        _use(used, "lse", within(distance(lse, dense.lse), bound, f"{name} lse"))
    gap = distance(statistics["executed"], statistics["simulated"])
    _use(used, "lse apart", within(gap, 1e-6 * largest(dense.lse) + rounded, "executed lse against simulated"))


def _compare_backward(problem, inputs, sinks, results, used):
    dense = _dense(problem, inputs, sinks)
    dense.differentiate(problem.gathered([given["dout"] for given in inputs], problem.rows))
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    float32 = FLOAT32 + SCORE * dense.score_terms.max()
    for name, exact in dense.gradients.items():
        rows = problem.rows if name == "dq" else problem.keys
        gather = problem.gathered_pairs if name == "dbias" else lambda shards: problem.gathered(shards, rows)
        seen = {which: gather([of[name] for of in each]) for which, each in results.items()}
        # dv, dbias: weights are rounded once. dq, dk: weights, and logit gradients once more; delta is computed from an
        # output that is rounded, of weights that were rounded.
        roundings = rounding if name in ("dv", "dbias") else 2.02 * rounding
        bound = roundings * dense.rounded[name] + 1.01 * (rounding + narrow) * dense.from_delta[name]
        bound = bound + float32 * dense.gradient_terms[name]
        for which, gradient in seen.items():
            _use(used, name, within(distance(gradient, exact), bound, f"{which} {name}"))
        # Both use the same output and lse of the forward pass.
        apart = 1e-6 * largest(exact)
        if rounding > 0:
            apart = FEW * 2 * roundings * dense.largest_terms[name] + float32 * dense.gradient_terms[name]
            _use(used, f"{name} norm apart", apart_in_norm(seen["executed"], seen["simulated"], rounding))
        gap = distance(seen["executed"], seen["simulated"])
        _use(used, f"{name} apart", within(gap, apart, f"executed {name} against simulated"))
