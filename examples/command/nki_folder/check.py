"""Operands of the kernels in this folder, and the check of their results against dense attention in double.

    python check.py     compares the files that a launcher wrote into results/; exit status 1 if an error is too large

The launchers import arguments(), save() and check(). Operands are random with a fixed seed, rounded to their types.
"""
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
# Largest relative error of one rounding to the type.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


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
    """Global operands [batch, heads, rows, dim] of one ring and, once asked for, their dense attention."""

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
        """The results in double, a block of queries at a time: output, lse, dq, dk, dv and, if a kernel returns it, dbias."""
        if self.results:
            return self.results
        q, k, v, dout = (x.astype(np.float64) for x in self.operands.values())
        batch, heads, queries, _ = q.shape
        group = problem.QUERY_HEADS // problem.KV_HEADS
        found = {"output": np.zeros(dout.shape), "lse": np.zeros((batch, heads, queries)),
                 "dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape)}
        if dtype_of("dbias"):
            found["dbias"] = np.zeros((batch, heads, queries, k.shape[2]))
        for begin in range(0, queries, 256):
            rows = slice(begin, min(begin + 256, queries))
            seen = visible(np.arange(rows.start, rows.stop))
            for item in range(batch):
                for head in range(heads):
                    self.attend(found, seen, (item, head, rows), (item, head // group), q, k, v, dout)
        self.results = found
        return found

    def attend(self, found, seen, at, kv, q, k, v, dout):
        scores, slope = problem.SCALE * (q[at] @ k[kv].T), 1.0
        if problem.SOFTCAP:
            tanh = np.tanh(scores / problem.SOFTCAP)
            scores, slope = problem.SOFTCAP * tanh, 1 - tanh**2
        bias = np.broadcast_to(self.bias, (*q.shape[:3], len(k[kv])))[at]
        scores = np.where(seen & (bias >= -1e30), scores + bias, -np.inf)
        extra = np.broadcast_to(self.sinks[at[1]].astype(np.float64), (len(scores), problem.SINKS))
        every = np.concatenate([scores, extra], axis=1)
        top = every.max(axis=1, keepdims=True)
        dead = np.isneginf(top)
        weights = np.exp(every - np.where(dead, 0, top))
        total = np.where(dead, 1, weights.sum(axis=1, keepdims=True))
        weights = weights[:, :scores.shape[1]] / total
        found["output"][at] = weights @ v[kv]
        found["lse"][at] = np.where(dead, problem.LSE_OF_MASKED_ROW, top + np.log(total))[:, 0]
        delta = (dout[at] * found["output"][at]).sum(axis=1, keepdims=True)
        gradient = weights * (dout[at] @ v[kv].T - delta)
        if "dbias" in found:
            found["dbias"][at] = gradient
        gradient *= problem.SCALE * slope
        found["dq"][at] = gradient @ k[kv]
        found["dk"][kv] += gradient.T @ q[at]
        found["dv"][kv] += weights.T @ dout[at]


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
            values = ring.dense()[operand][:, :, positions(place, operand)]
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


def error_of(name, found, exact):
    """lse: largest difference, relative where it exceeds 1; others: relative, in the Frobenius norm."""
    if not np.array_equal(np.isneginf(found), np.isneginf(exact)) or np.isnan(found).any():
        return np.inf
    finite = np.isfinite(exact)
    difference = np.abs(found[finite] - exact[finite])
    if name == "lse":
        return float((difference / np.maximum(1, np.abs(exact[finite]))).max(initial=0))
    size = np.linalg.norm(exact[finite])
    return float(np.linalg.norm(difference) / (size if size > 0 else 1))


def accepted(name, dtype, largest_lse):
    """Weights are rounded once to the type of the operands, gradients of scores once more, results to their own. Such
    errors are independent: in the norm they are less than half of the sum of the largest ones, which is accepted.
    Backward kernels take weights from lse, which a forward kernel may have rounded. 1e-5: sums in float32."""
    if name == "lse":
        # With stationary keys the sum is that of rounded weights.
        return 1e-5 + ROUNDING[dtype] + (ROUNDING[problem.TYPE] if dtype_of("beyond_range") else 0)
    roundings = (1 if name == "output" else 2) * ROUNDING[problem.TYPE] + ROUNDING[dtype]
    if name.startswith("d") and dtype_of("lse"):
        roundings += ROUNDING[dtype_of("lse")] * largest_lse
        # With stationary keys lse changes all weights of a row by one factor.
        roundings += ROUNDING[problem.TYPE] if dtype_of("beyond_range") else 0
    return roundings + 1e-5


def dtype_of(result):
    """Type of a result of these kernels, or None."""
    outputs = [output for kernel in problem.KERNELS.values() for output in kernel["outputs"]]
    return {operand_of(name): dtype for name, dtype, _ in outputs}.get(result)


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
                exact = ring_of(rank).dense()[name]
                if name == "dbias":
                    found = of_one_ring(found.reshape(-1, problem.RANKS, *shape[1:]))
                    exact = pair_table(exact, kernel, rank, problem.RANKS)
                else:
                    exact = exact[:, :, positions(PLACES[rank][1], name)]
                exact = lse_tile(exact, shape) if name == "lse" else exact
                exact = exact.swapaxes(2, 3) if called in problem.DIM_FIRST else exact
                lse = ring_of(rank).dense()["lse"]
                bound = accepted(name, dtype, np.abs(lse[np.isfinite(lse)]).max(initial=0))
                error = error_of(name, found, exact)
                good = good and error <= bound
                print(f"{name:8} {rank:4d} {error:10.2e} {bound:10.2e}{'' if error <= bound else '  TOO LARGE'}")
    return good


def launched(kernel):
    """The kernel for the cores of a rank. From NKI 0.7 on, NEURON_LOGICAL_NC_CONFIG alone says how many these are."""
    if os.environ["NEURON_LOGICAL_NC_CONFIG"] != str(problem.CORES):
        sys.exit(f"NEURON_LOGICAL_NC_CONFIG={os.environ['NEURON_LOGICAL_NC_CONFIG']}; "
                 f"these kernels are for {problem.CORES}")
    return kernel[problem.CORES] if problem.LAUNCH_GRID else kernel


if __name__ == "__main__":
    sys.exit(0 if check() else 1)
