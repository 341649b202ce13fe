"""How near three results must be to each other: executed text, simulator, dense attention in double."""
import numpy as np

from .dense import Dense

# The largest relative error of one rounding to the type of the operands.
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Of the terms of a sum: sums of some hundred float32 terms, a float32 exponential and what a few others add.
FLOAT32 = 2.0**-18
# Of the terms of a score, by how much a few float32 roundings change its weight and, through the others, their sum.
SCORE = 2.0**-22
# Simulator and text round the same values at the same places, but their float32 sums differ in the last bits. Where a
# weight stands so near the middle of two values of the type that this decides, it differs by one step of the type, 2
# roundings: in about one weight of 2^12. Few rows have more than a few of the some hundred weights of these cases.
FEW = 4


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


def largest(values):
    finite = np.abs(values[np.isfinite(values)])
    return finite.max(initial=0)


def compare(emitted, executed):
    """Raises AssertionError where a bound is exceeded; returns how much of the bounds was used."""
    problem = emitted.problem
    size = problem.ranks
    used = {}
    for begin in range(0, emitted.workers, size):
        group = slice(begin, begin + size)
        compare_one = _compare_backward if problem.backward else _compare_forward
        compare_one(problem, emitted.inputs[group], emitted.sinks, emitted.simulated[group], executed[group], used)
    return ", ".join(f"{name} {share:.2f}" for name, share in used.items())


def _use(used, name, share):
    used[name] = max(used.get(name, 0), share)


def _dense(problem, inputs, sinks):
    operand = lambda name, rows, rows_last: problem.gathered([given[name] for given in inputs], rows, rows_last)
    return Dense(problem, operand("q", problem.rows, not problem.queries_by_token),
                 operand("k", problem.keys, not problem.keys_by_token), operand("v", problem.keys, False), sinks)


def _compare_forward(problem, inputs, sinks, simulated, executed, used):
    dense = _dense(problem, inputs, sinks)
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    outputs = [problem.gathered([of["output"] for of in results], problem.rows) for results in (simulated, executed)]
    float32 = FLOAT32 + SCORE * dense.score_terms
    bound = (rounding + float32) * dense.output_terms + narrow * (1 + rounding) * np.abs(dense.output)
    for name, output in zip(("simulated", "executed"), outputs):
        if (output[dense.dead[..., 0]] != 0).any():
            raise AssertionError(f"{name}: a row that sees nothing has an output other than 0")
        _use(used, name, within(distance(output, dense.output), bound, f"{name} output"))
    if rounding == narrow == 0:
        apart = 1e-6 * largest(dense.output)
    else:
        apart = FEW * 2 * rounding * dense.largest_term() + float32 * dense.output_terms
        apart = apart + 2 * narrow * np.abs(dense.output)
    _use(used, "apart", within(distance(*outputs), apart, "executed output against simulated"))
    if not problem.training:
        return
    statistics = [problem.gathered_lse([of["lse"] for of in results]) for results in (simulated, executed)]
    # 1e-5 for scores of usual size; a score of some hundreds has float32 neighbours farther apart.
    bound = np.maximum(1e-5, SCORE * dense.score_terms)
    for name, lse in zip(("simulated", "executed"), statistics):
        _use(used, "lse", within(distance(lse, dense.lse), bound, f"{name} lse"))
    _use(used, "lse apart", within(distance(*statistics), 1e-6 * largest(dense.lse), "executed lse against simulated"))


def _compare_backward(problem, inputs, sinks, simulated, executed, used):
    dense = _dense(problem, inputs, sinks)
    dense.differentiate(problem.gathered([given["dout"] for given in inputs], problem.rows))
    rounding, narrow = ROUNDING[problem.type], ROUNDING[problem.output_type]
    float32 = FLOAT32 + SCORE * dense.score_terms.max()
    for name, exact in dense.gradients.items():
        rows = problem.rows if name == "dq" else problem.keys
        both = [problem.gathered([of[name] for of in results], rows) for results in (simulated, executed)]
        # dv: weights are rounded once. dq, dk: weights, and their gradients once more; delta comes from an output whose
        # weights were rounded, and itself.
        roundings = rounding if name == "dv" else 2.02 * rounding
        bound = roundings * dense.rounded[name] + 1.01 * (rounding + narrow) * dense.from_delta[name]
        bound = bound + float32 * dense.gradient_terms[name]
        for which, gradient in zip(("simulated", "executed"), both):
            _use(used, name, within(distance(gradient, exact), bound, f"{which} {name}"))
        # Both start from the same output and lse.
        apart = 1e-6 * largest(exact)
        if rounding > 0:
            apart = FEW * 2 * roundings * dense.largest_terms[name] + float32 * dense.gradient_terms[name]
        _use(used, f"{name} apart", within(distance(*both), apart, f"executed {name} against simulated"))
