"""Executes the kernels in print/golden/ on the numpy model of NKI, except those of ring attention.

Exit status 0: all are inside the Python subset of NKI, run, and give the expected results.
"""
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import nki_model  # noqa: E402  (found through the line above)

nki_model.install()

GOLDEN = HERE / "print" / "golden"


def kernel(name):
    """The kernel of print/golden/<name>.py, after the lint of its text."""
    path = GOLDEN / f"{name}.py"
    text = path.read_text()
    problems = nki_model.subset.check(text)
    require(not problems, f"{path.name} leaves the Python subset: {problems}")
    longest = max(len(line) for line in text.splitlines())
    require(longest <= 120, f"{path.name} has a line of {longest} characters")
    module = {}
    exec(compile(text, str(path), "exec"), module)
    return module[name]


def require(condition, text):
    if not condition:
        raise AssertionError(text)


def attention_tiles():
    """Softmax attention; the weights that multiply v are rounded to bfloat16, those in the sum of weights are not."""
    random = np.random.default_rng(1)
    shapes = ((2, 64, 128), (2, 64, 256), (2, 256, 64))
    q, k, v = (nki_model.bfloat16(random.standard_normal(shape)) for shape in shapes)
    counts = {}
    (output,) = nki_model.launch(kernel("attention_tiles"), 1, [(q, k, v)], counts=counts)
    q, k, v = (operand.numpy().astype(np.float64) for operand in (q, k, v))
    weights = np.exp(0.125 * np.einsum("idr,idk->irk", q, k))
    sums = weights.sum(axis=2, keepdims=True)
    # One rounding to 8 significant bits for each weight, and float32 everywhere else.
    bound = (2.0**-8 + 1e-4) * (weights @ np.abs(v)) / sums
    error = np.abs(output - weights @ v / sums)
    require((error <= bound).all(), f"error {error.max()} above its bound, by {np.max(error - bound)}")
    require(counts[(0, 0)]["nc_matmul"] == 8, f"2 items x 2 key tiles x 2 products are 8 matmuls, not {counts}")


def newest_tiles():
    x = np.arange(6 * 32 * 16, dtype=np.float32).reshape(6, 32, 16)
    (results,) = nki_model.launch(kernel("newest_tiles"), 1, [(x,)])
    require(len(results) == 3, f"{len(results)} results")
    for result, wanted in zip(results, (5, 4, 3)):
        require(np.array_equal(result, x[wanted]), f"tile {wanted} was asked for, {result[0, 0] // 512} came")


def ring_weighted_sum():
    """Small integers, so that sums are exact in any order; tested for several ring orders."""
    random = np.random.default_rng(2)
    parts = [random.integers(-50, 50, (2, 128, 64)).astype(np.float32) for _ in range(4)]
    wanted = sum(rank * part for rank, part in enumerate(parts))
    function = kernel("ring_weighted_sum")
    for ring_order in (None, (0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)):
        order = ring_order and list(ring_order)
        totals = nki_model.launch(function, 2, [(part, ((0, 1, 2, 3),)) for part in parts], ring_order=order)
        for rank, total in enumerate(totals):
            require(np.array_equal(total, wanted), f"rank {rank}, ring order {ring_order}: wrong total")


def refused_arguments():
    """Operands of other shapes and groups of other ranks are refused, with what was given and what is accepted."""
    def refuses(function, operands, groups, constants, *words):
        ranks = [(*operands, groups, *constants)] * sum(map(len, groups))
        try:
            nki_model.launch(function, 2, ranks)
        except nki_model.KernelFailed as error:
            require(all(word in str(error) for word in words), f"no {words} in: {error}")
        else:
            raise AssertionError(f"no refusal that says {words}")

    zeros = lambda *shape: np.zeros(shape, np.float32)
    function = kernel("ring_weighted_sum")
    for shape in ((2, 64, 128), (2, 256, 64), (1, 2, 128, 64), (2, 128)):
        refuses(function, [zeros(*shape)], ((0, 1, 2, 3),), (), f"shape of x: {shape}; accepted: (2, 128, 64)")
    for groups, accepted in ((((0, 1), (2, 3)), "number of replica_groups: 2; accepted: 1"),
                             (((0, 1, 2, 3), (4, 5, 6, 7)), "number of replica_groups: 2; accepted: 1"),
                             (((0, 1, 2),), "accepted: groups of 4 ranks"),
                             (((1, 0, 2, 3),), "accepted: ids from 0 on in order"),
                             (((0, 2, 1, 3),), "accepted: ids from 0 on in order")):
        refuses(function, [zeros(2, 128, 64)], groups, (), f"{groups}" if "number" not in accepted else "2", accepted)
    shapes = {"q": (1, 1, 16, 256), "k": (1, 1, 16, 256), "v": (1, 1, 256, 16), "mask_offsets": (2, 2)}
    function, mask = kernel("ring_attention_fwd"), ("a10aff037cd50b9d",)
    for name, given in (("q", (1, 2, 16, 256)), ("k", (1, 1, 256, 16)), ("v", (1, 1, 512, 16)), ("mask_offsets", (4, 2))):
        operands = [zeros(*shape) for shape in {**shapes, name: given}.values()]
        refuses(function, operands, ((0, 1),), mask, f"shape of {name}: {given}; accepted: {shapes[name]}")
    operands = [zeros(*shape) for shape in shapes.values()]
    refuses(function, operands, ((1, 0),), mask, "replica_groups: ((1, 0),); accepted: ids from 0 on in order")
    refuses(function, operands, ((0, 1),), ("another",), "another mask")


def ring_attention_fwd():
    """Checks the text only: executed_kernels_test.py executes newly printed kernels of this kind."""
    kernel("ring_attention_fwd")


def ring_attention_bwd():
    kernel("ring_attention_bwd")


def main():
    failed = []
    checks = (attention_tiles, newest_tiles, ring_weighted_sum, refused_arguments, ring_attention_fwd, ring_attention_bwd)
    untested = {path.stem for path in GOLDEN.glob("*.py")} - {check.__name__ for check in checks}
    require(not untested, f"no check executes {sorted(untested)}")
    for check in checks:
        try:
            check()
        except (AssertionError, nki_model.KernelFailed) as error:
            failed.append(check.__name__)
            print(f"FAILED {check.__name__}: {error}")
        else:
            print(f"ok     {check.__name__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
