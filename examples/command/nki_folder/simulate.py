"""Runs the kernels of this folder in the vendor's simulator, without a device, and checks their results:

    python simulate.py

nki.simulate has no collectives, so it takes kernels of one rank only: `--ranks 1` of the command in README.md.
"""
import importlib
import sys

import problem


def main():
    if problem.RANKS > 1:
        sys.exit("nki.simulate has no collectives; a folder for one rank, with the same rows for each rank:\n"
                 + problem.COMMAND_OF_ONE_RANK + " --emit one_rank && python one_rank/simulate.py")
    # Imported here, as the message above needs none of them.
    import check
    import ml_dtypes
    import nki
    import numpy as np
    types = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
    forward = None
    for name in problem.KERNELS:
        if forward and name == "ring_attention_fwd":
            continue
        # The documented way to give nki.simulate the number of cores.
        kernel = check.launched(getattr(importlib.import_module(name), name), grid=True)
        given = {tensor: values.astype(types[dtype])
                 for tensor, (values, dtype) in check.arguments(name, 0, forward).items()}
        forward = check.save(name, 0, check.call(nki.simulate(kernel), name, given))
        if "beyond_range" in forward and forward["beyond_range"].any():
            forward = None  # ring_attention_fwd is needed
    return 0 if check.check(range(1)) else 1


if __name__ == "__main__":
    sys.exit(main())
