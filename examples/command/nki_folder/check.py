"""Operands of the kernels in this folder, and the check of their results against dense attention in double.

    python check.py     compares the files that a launcher wrote into results/; exit status 1 if an error is too large

The launchers import run_kernels(), or arguments(), save() and check(). Operands are random with a fixed seed, rounded to
their types.
"""
import importlib
import os
import sys

import numpy as np

import problem

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results")
WORLD = problem.RANKS * problem.GROUPS
# Of each rank: its ring, and its place in it.
PLACES = {rank: (ring, place) for ring, ranks in enumerate(problem.REPLICA_GROUPS) for place, rank in enumerate(ranks)}
# Set before a launcher opens a device: the runtime reads it when it starts.
os.environ.setdefault("NEURON_LOGICAL_NC_CONFIG", str(problem.CORES))
HIDING_BIAS = -2.0**127  # of a pair that a query may not see; all values below -1e30 hide their pairs
# Standard deviation of one rounding to the type, relative and near 0, if errors up to the largest are equally likely.
ROUNDING = {"float32": 2.0**-24 / 3**0.5, "bfloat16": 2.0**-8 / 3**0.5, "float16": 2.0**-11 / 3**0.5}
SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-25 / 3**0.5}


def rounded(values, dtype):
    """The values rounded to a type, as float32; ties to even."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = values.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return np.where(np.isfinite(values), bits.astype(np.uint32).view(np.float32), values)
    return values


def operand_of(name):
    """What a tensor is: q, k, v, dout, output, lse, dq, dk or dv."""
    return problem.OPERANDS.get(name, name)


def positions(place, name):
    """Global positions of the rows of an operand or result on the rank at this place in its ring."""
    runs = problem.KEY_RUNS if name in ("k", "v", "dk", "dv") else problem.QUERY_RUNS
    return np.concatenate([begin + step * np.arange(rows) for _, rows, begin, step in sorted(runs[place])])


def visible(queries):
    """Visible keys of the queries at these positions, [queries, keys]."""
    mask = problem.MASK
    query = queries[:, None] + mask["query_offset"]
    key = np.arange(problem.RANKS * problem.KEYS)[None, :]
    seen = np.ones((len(queries), key.size), bool)
    if mask["causal"]:
        seen &= key <= query
    if mask["window"]:
        left, right = mask["window"]
        inside = ((left < 0) | (query - key <= left)) & ((right < 0) | (key - query <= right))
        seen &= inside | (key < mask["sink_tokens"])
    if mask["chunk"]:
        seen &= query // mask["chunk"] == key // mask["chunk"]
    if mask["documents"]:
        document = lambda at: np.searchsorted(mask["documents"], at, side="right")
        seen &= document(queries)[:, None] == document(key)
    return seen


class Ring:
    """Global operands [batch, heads, rows, dim] of one ring and, once asked for, their dense attention in double with the
    size of each element's error: a bound of its standard deviation.

    Sizes add up the roundings of the kernels. u: one rounding to the type of the operands; e: one to float32.
    - A sum of n terms has n roundings of partial sums, each at most e times the root of the sum of the squared terms, plus
      the sum: sqrt(n) of that, as they are independent.
    - A score has the error of its product of HEAD_DIM terms, and some roundings of the score and of the row's maximum;
      with TensorE adding a bfloat16 bias, which it takes divided by the scale in two parts of 8 bits, 2^-17 of the bias.
      That is the relative error of the weight. The weights are rounded to u before they multiply v, and with stationary
      keys also before they are summed.
    - Backward kernels compute the weights again from lse, whose error all weights of a row share, as they share that of
      delta, the product of dout with the rounded output. The gradients of the scores are rounded to u once more, and
      again with a soft cap, whose slope 1 - tanh^2 has roundings of size e whatever its size.
    - Results are rounded to their own type.
    Independent errors add up in squares, and so do those of different rows.
    """

    def __init__(self, group):
        random = np.random.default_rng(group)
        queries, keys = problem.RANKS * problem.QUERIES, problem.RANKS * problem.KEYS
        shapes = {"q": (problem.QUERY_HEADS, queries, problem.HEAD_DIM), "k": (problem.KV_HEADS, keys, problem.HEAD_DIM),
                  "v": (problem.KV_HEADS, keys, problem.VALUE_DIM), "dout": (problem.QUERY_HEADS, queries, problem.VALUE_DIM)}
        self.operands = {name: rounded(random.standard_normal((problem.BATCH, *shape), np.float32), problem.TYPE)
                         for name, shape in shapes.items()}
        self.sinks = random.standard_normal((problem.QUERY_HEADS, problem.SINKS), np.float32)
        self.bias = np.zeros((1, 1, 1, 1), np.float32)
        if problem.BIAS:  # one value in 16 hides its pairs
            bias = random.standard_normal(problem.BIAS, np.float32)
            self.bias = rounded(np.where(random.random(problem.BIAS) < 1 / 16, HIDING_BIAS, bias), problem.BIAS_TYPE)
        self.results = None

    def dense(self):
        """The results: output, lse, dq, dk, dv and, if a kernel returns it, dbias, and the sizes of their errors by the
        same names; computed for a block of queries at a time."""
        if self.results:
            return self.results
        q, k, v, dout = (x.astype(np.float64) for x in self.operands.values())
        batch, heads, queries, _ = q.shape
        group = problem.QUERY_HEADS // problem.KV_HEADS
        shapes = {"output": dout.shape, "lse": (batch, heads, queries), "dq": q.shape, "dk": k.shape, "dv": v.shape}
        if dtype_of("dbias"):
            shapes["dbias"] = (batch, heads, queries, k.shape[2])
        found, squares = ({name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(2))
        for begin in range(0, queries, 256):
            rows = slice(begin, min(begin + 256, queries))
            seen = visible(np.arange(rows.start, rows.stop))
            for item in range(batch):
                for head in range(heads):
                    self.attend(found, squares, seen, (item, head, rows), (item, head // group), q, k, v, dout)
        of_type = {name: ROUNDING[dtype_of(name) or "float32"] for name in found}
        sizes = {}
        for name, values in found.items():
            values, dtype = np.where(np.isfinite(values), values, 0), dtype_of(name) or "float32"
            sizes[name] = np.sqrt(squares[name] + (ROUNDING[dtype] * values)**2 + (SMALLEST[dtype] * (values != 0))**2)
        self.results = found, sizes
        return self.results

    def attend(self, found, squares, seen, at, kv, q, k, v, dout):
        """Adds the results of some rows of a head, and the squares of their errors but the rounding of a result."""
        q, k, v, dout = q[at], k[kv], v[kv], dout[at]
        products, slope = problem.SCALE * (q @ k.T), 1.0
        scores = products
        if problem.SOFTCAP:
            tanh = np.tanh(products / problem.SOFTCAP)
            scores, slope = problem.SOFTCAP * tanh, 1 - tanh**2
        bias = np.broadcast_to(self.bias, (*found["lse"].shape, len(k)))[at].astype(np.float64)
        seen = seen & (bias >= -1e30)
        bias = np.where(seen, bias, 0)
        scores = np.where(seen, scores + bias, -np.inf)
        extra = np.broadcast_to(self.sinks[at[1]].astype(np.float64), (len(scores), problem.SINKS))
        every = np.concatenate([scores, extra], axis=1)
        top = every.max(axis=1, keepdims=True)
        dead = np.isneginf(top)
        top = np.where(dead, 0, top)
        weights = np.exp(every - top)
        total = np.where(dead, 1, weights.sum(axis=1, keepdims=True))
        weights = weights[:, :len(k)] / total
        lse = top + np.log(total)
        output = weights @ v
        delta = (dout * output).sum(axis=1, keepdims=True)
        slopes = dout @ v.T - delta
        gradient = weights * slopes
        by_score = problem.SCALE * slope * gradient
        found["output"][at] = output
        found["lse"][at] = np.where(dead, problem.LSE_OF_MASKED_ROW, lse)[:, 0]
        if "dbias" in found:
            found["dbias"][at] = gradient
        found["dq"][at] = by_score @ k
        found["dk"][kv] += by_score.T @ q
        found["dv"][kv] += weights.T @ dout

        u, e, smallest = ROUNDING[problem.TYPE], ROUNDING["float32"], SMALLEST[problem.TYPE]
        summed = lambda terms, result, n: n * e**2 * (terms + result**2)
        stationary = u if dtype_of("beyond_range") else 0
        # Relative errors of the weights: independent ones, those of one factor (in_bias), and the rounding to u.
        score = e * (np.sqrt(problem.HEAD_DIM * problem.SCALE**2 * (q**2 @ (k**2).T)) + 4 * np.abs(products)
                     + 2 * np.abs(bias) + 2 * np.abs(top))
        added = problem.BIAS and problem.BIAS_TYPE == "bfloat16" and problem.TYPE != "float32" and not problem.SOFTCAP
        in_bias = 2.0**-17 * np.abs(bias) if added else 0 * bias
        error = score + in_bias
        apart = lambda squared: np.maximum(squared @ v**2 - 2 * output * (squared @ v)
                                           + output**2 * squared.sum(axis=1, keepdims=True), 0)
        squared = weights**2
        rounding = (u * weights + smallest / total)**2
        at_output = (apart(squared * error**2) + (apart(rounding) if stationary else rounding @ v**2)
                     + summed(squared @ v**2, output, len(k)))
        squares["output"][at] = at_output
        at_lse = ((squared * (score**2 + stationary**2)).sum(axis=1, keepdims=True)
                  + (weights * in_bias).sum(axis=1, keepdims=True)**2 + len(k) * e**2 + (4 * e * (np.abs(lse) + np.abs(top)))**2)
        squares["lse"][at] = np.where(dead, 0, at_lse)[:, 0]

        # Squared errors that all weights of a row share: relative ones of the weights, and those of delta.
        of_lse = at_lse + (ROUNDING[dtype_of("lse") or "float32"] * lse)**2
        of_output = ROUNDING[dtype_of("output", "inputs") or "float32"]**2
        products_of_dout = e**2 * problem.VALUE_DIM * (dout**2).sum(axis=1, keepdims=True)
        of_delta = ((squared * (error**2 + u**2) * slopes**2).sum(axis=1, keepdims=True)
                    + ((rounding if not stationary else 0 * rounding) * (dout @ v.T)**2).sum(axis=1, keepdims=True)
                    + (of_output * dout**2 * output**2).sum(axis=1, keepdims=True)
                    + products_of_dout * (output**2).sum(axis=1, keepdims=True))
        of_pairs = (gradient * (error + u))**2 + squared * products_of_dout * (v**2).sum(axis=1)
        if "dbias" in found:
            squares["dbias"][at] = of_pairs + gradient**2 * of_lse + squared * of_delta
        of_slope = 4 * e if problem.SOFTCAP else 0
        roundings = (2 if problem.SOFTCAP else 1) * u
        of_pairs = problem.SCALE**2 * (of_pairs * slope**2 + (gradient * (roundings * slope + of_slope))**2 + smallest**2)
        shared = problem.SCALE**2 * of_delta * (squared * slope**2) + by_score**2 * of_lse
        squares["dq"][at] = (of_pairs @ k**2 + of_lse * (by_score @ k)**2
                             + problem.SCALE**2 * of_delta * ((weights * slope) @ k)**2
                             + summed(by_score**2 @ k**2, by_score @ k, len(k)))
        rows = problem.RANKS * problem.QUERIES
        squares["dk"][kv] += (of_pairs + shared).T @ q**2 + summed((by_score**2).T @ q**2, by_score.T @ q, rows)
        squares["dv"][kv] += ((squared * (error**2 + of_lse) + (u * weights + smallest)**2).T @ dout**2
                              + summed(squared.T @ dout**2, weights.T @ dout, rows))


RINGS = {}


def ring_of(rank):
    group, _ = PLACES[rank]
    if group not in RINGS:
        RINGS[group] = Ring(group)
    return RINGS[group]


def lse_tile(lse, shape):
    """[batch, heads, rows] in the kernels' layout [batch, heads, 128, columns]: row c * 128 + p at (p, c)."""
    padded = np.zeros((*lse.shape[:2], shape[2] * shape[3]))
    padded[:, :, :lse.shape[2]] = lse
    return padded.reshape(*lse.shape[:2], shape[3], shape[2]).swapaxes(2, 3)


def places_of(kernel, rank, other):
    """Places in the ring of the owner of the queries and of the owner of the keys, in the entry of a rank's table for
    another rank."""
    _, place = PLACES[rank]
    rotating = other % problem.RANKS
    return (rotating, place) if problem.KERNELS[kernel]["queries_rotate"] else (place, rotating)


def pair_table(values, kernel, rank, others):
    """[other ranks, batch * heads, queries, keys] of one rank, from the values of all pairs of a query and a key of a
    ring, [batch, heads, queries, keys]; an extent of 1 remains."""
    table = []
    for other in range(others):
        querying, owner = places_of(kernel, rank, other)
        part = values if values.shape[2] == 1 else values[:, :, positions(querying, "q")]
        part = part if values.shape[3] == 1 else part[..., positions(owner, "k")]
        table.append(part.reshape(-1, *part.shape[2:]))
    return np.stack(table)


def mask_ranges(kernel, rank, shape):
    """Table of one rank for the documents in problem.MASK: of each other rank, for each piece of keys, the first row
    that a query row sees and the row after the last; as mask_key_ranges for each piece of queries, those that see a key
    row."""
    of_keys = any(name == "mask_key_ranges" for name, _, _ in problem.KERNELS[kernel]["inputs"])
    table = np.zeros(shape, np.float32)
    for other in range(shape[0]):
        querying, owner = places_of(kernel, rank, other)
        seen = visible(positions(querying, "q"))[:, positions(owner, "k")]
        seen = seen.T if of_keys else seen
        for piece, (begin, end) in enumerate(problem.TILE_PIECES if of_keys else problem.KEY_PIECES):
            part = seen[:, begin:end]
            some = part.any(axis=1)
            table[other, :, piece, 0] = begin + np.where(some, part.argmax(axis=1), 0)
            table[other, :, piece, 1] = begin + np.where(some, end - begin - part[:, ::-1].argmax(axis=1), 0)
    return table


def document_bounds(name, shape):
    """bound_min or bound_max of nkilib: where the document of each row begins and ends in the rows of every rank."""
    edges = np.array([*problem.MASK["documents"], problem.RANKS * problem.KEYS]) // problem.RANKS
    document = np.searchsorted(edges, np.arange(problem.QUERIES), side="right")
    bounds = edges[document - 1] if name == "bound_min" else edges[document]
    return np.broadcast_to(bounds.reshape(1, -1, *[1] * (len(shape) - 2)), shape)


def mask_table(kernel, rank, shape):
    _, place = PLACES[rank]
    name = problem.KERNELS[kernel]["mask"]
    if problem.RUN_TIME_DOCUMENTS:
        return mask_ranges(kernel, rank, shape)
    if not name:
        sys.exit(f"the mask table of {kernel} was too large to be written; README.md says how to make it")
    table = np.load(os.path.join(HERE, name.format(place)))
    return table[place] if table.ndim > len(shape) else table


def arguments(kernel, rank, forward=None):
    """Tensors of one rank, in the order of the call: {name: (float32 values, type)}.

    forward: results of the forward kernel on this rank; without them its output and lse come from the reference.
    """
    (_, place), ring, given = PLACES[rank], ring_of(rank), {}
    for name, dtype, shape in problem.KERNELS[kernel]["inputs"] + problem.KERNELS[kernel]["keyword_inputs"]:
        operand = operand_of(name)
        if name.startswith("mask_"):
            values = mask_table(kernel, rank, shape)
        elif name.startswith("bound_"):
            values = document_bounds(name, shape)
        elif name == "bias":
            values = pair_table(ring.bias, kernel, rank, shape[0])
        elif name == "sinks":
            values = np.broadcast_to(ring.sinks, shape)
        elif operand in ring.operands:
            values = ring.operands[operand][:, :, positions(place, operand)]
        elif forward:
            values = forward[operand]
        else:
            values = ring.dense()[0][operand][:, :, positions(place, operand)]
            values = values if operand == "output" else lse_tile(values, shape)
        values = values.swapaxes(2, 3) if name in problem.DIM_FIRST else values
        if values.shape != shape:
            sys.exit(f"{kernel}: {name} has shape {values.shape}; the kernel takes {shape}")
        given[name] = (rounded(values, dtype), dtype)
    return given


def call(function, kernel, tensors):
    """Calls a kernel with its tensors, by name, in the order of arguments(), and its other arguments."""
    constants = dict(problem.KERNELS[kernel]["constants"])
    if "lse_dtype" in constants:
        import nki.language
        constants["lse_dtype"] = getattr(nki.language, constants["lse_dtype"])
    by_keyword = {name: tensors[name] for name, _, _ in problem.KERNELS[kernel]["keyword_inputs"]}
    results = function(*[tensor for name, tensor in tensors.items() if name not in by_keyword], **by_keyword, **constants)
    return results if isinstance(results, (tuple, list)) else (results,)


def save(kernel, rank, results):
    """Writes the results of one rank, in the order of the kernel, into results/; returns them by operand as float32."""
    os.makedirs(RESULTS, exist_ok=True)
    names = [operand_of(name) for name, _, _ in problem.KERNELS[kernel]["outputs"]]
    found = {name: np.asarray(values, np.float32) for name, values in zip(names, results, strict=True)}
    for name, values in found.items():
        np.save(os.path.join(RESULTS, f"{name}.rank{rank}.npy"), values)
    return found


def of_one_ring(rings):
    """The entries of the ranks of one ring, from those of all rings, of which the others must be 0: NaN if they are not.
    Which ring that is depends on whether the ids of ranks count within a ring or across all."""
    written = [entries for entries in rings if entries.any()]
    return written[0] if len(written) == 1 else np.zeros_like(rings[0]) if not written else np.full_like(rings[0], np.nan)


def error_of(name, found, exact, size):
    """The error and the largest accepted one, from the sizes of the elements' errors. lse: of the element whose error is
    largest relative to its size, of which 5 are accepted; relative where lse exceeds 1. Others: in the Frobenius norm,
    relative where the result exceeds the size of its error (it does not where all terms cancel, as in dq of a row that
    sees one key). The norm of the errors of n independent rows varies by less than 4 / sqrt(n) of itself."""
    if (not np.array_equal(np.isneginf(found), np.isneginf(exact)) or np.isnan(found).any()
            or (found[size == 0] != exact[size == 0]).any()):
        return np.inf, 0.0
    if not size.any():
        return 0.0, 0.0
    difference = np.zeros(found.shape)
    np.subtract(found, exact, out=difference, where=size > 0)
    if name == "lse":
        worst = np.unravel_index(np.argmax(np.abs(difference) / np.where(size > 0, size, 1)), size.shape)
        whole = max(1, np.abs(exact[worst]))
        return float(np.abs(difference[worst]) / whole), float(5 * size[worst] / whole)
    rows = (size**2).reshape(-1, size.shape[-1]).sum(axis=1)
    rows /= rows.max()
    n = min(rows.sum()**2 / (rows**2).sum(), problem.BATCH * problem.QUERY_HEADS * problem.RANKS * problem.QUERIES)
    whole, typical = np.linalg.norm(exact), np.linalg.norm(size)
    whole = whole if whole > typical else 1
    return float(np.linalg.norm(difference) / whole), float(typical * (1 + 4 / np.sqrt(n)) / whole)


def dtype_of(name, of="outputs"):
    """Type of a result or, of="inputs", of an input of these kernels, or None."""
    tensors = [tensor for kernel in problem.KERNELS.values() for tensor in kernel[of]]
    return {operand_of(called): dtype for called, dtype, _ in tensors}.get(name)


def check(ranks=range(WORLD)):
    """Compares results/ with the reference and prints the errors; returns True if all are accepted."""
    good = True
    print(f"{'result':8} {'rank':>4} {'error':>10} {'accepted':>10}")
    for kernel, about in problem.KERNELS.items():
        for called, dtype, shape in about["outputs"]:
            name = operand_of(called)
            if name == "beyond_range" or (kernel == "ring_attention_fwd" and dtype_of("beyond_range")):
                continue  # the first forward kernel has the same results
            for rank in ranks:
                path = os.path.join(RESULTS, f"{name}.rank{rank}.npy")
                if not os.path.exists(path):
                    sys.exit(f"{path} does not exist; run run_torch.py, run_jax.py or simulate.py first")
                found = np.load(path).astype(np.float64)
                if name == "dbias":
                    found = of_one_ring(found.reshape(-1, problem.RANKS, *shape[1:]))

                def of_rank(values):
                    if name == "dbias":
                        return pair_table(values, kernel, rank, problem.RANKS)
                    values = values[:, :, positions(PLACES[rank][1], name)]
                    values = lse_tile(values, shape) if name == "lse" else values
                    return values.swapaxes(2, 3) if called in problem.DIM_FIRST else values

                error, bound = error_of(name, found, *(of_rank(of[name]) for of in ring_of(rank).dense()))
                good = good and error <= bound
                print(f"{name:8} {rank:4d} {error:10.2e} {bound:10.2e}{'' if error <= bound else '  TOO LARGE'}")
    return good


def run_kernels(ranks, run):
    """Runs the kernels on these ranks, saves and checks their results; returns the exit status.

    run(kernel, name, given): results of each rank, from arguments() of each.
    """
    forward = [None] * len(ranks)
    for name in problem.KERNELS:
        if forward[0] and name == "ring_attention_fwd":
            continue
        kernel = getattr(importlib.import_module(name), name)
        results = run(kernel, name, [arguments(name, rank, forward[rank]) for rank in ranks])
        forward = [save(name, rank, results[rank]) for rank in ranks]
        if any(found.get("beyond_range", np.zeros(1)).any() for found in forward):
            forward = [None] * len(ranks)  # ring_attention_fwd is needed
    return 0 if check(ranks) else 1


def launched(kernel, grid=problem.LAUNCH_GRID):
    """The kernel for the cores of a rank, which the grid says or, from NKI 0.7 on, NEURON_LOGICAL_NC_CONFIG alone."""
    if os.environ["NEURON_LOGICAL_NC_CONFIG"] != str(problem.CORES):
        sys.exit(f"NEURON_LOGICAL_NC_CONFIG={os.environ['NEURON_LOGICAL_NC_CONFIG']}; "
                 f"these kernels are for {problem.CORES}")
    return kernel[problem.CORES] if grid else kernel


if __name__ == "__main__":
    sys.exit(0 if check() else 1)
