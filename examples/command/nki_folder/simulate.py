"""Runs the kernels of this folder without a device, and checks their results:

    python simulate.py            in the vendor's simulator
    python simulate.py --model    on nki_model/, a model of NKI's instructions that needs NumPy alone

The vendor's nki.simulate has no collectives, so it takes kernels of one rank only. The model takes all ranks, one
thread for each core; it refuses what the documentation excludes, and has values, roundings and order, but no time.
"""
import inspect
import sys

import problem


def in_simulator():
    """Runs and checks the kernels of one rank in the vendor's simulator."""
    if problem.RANKS > 1:
        sys.exit("nki.simulate has no collectives; `simulate.py --model` runs these kernels on a model of the\n"
                 "instructions, and a folder for one rank, with the same rows for each rank, is made and run by\n"
                 + problem.COMMAND_OF_ONE_RANK + " --emit one_rank && python one_rank/simulate.py")
    # Imported here, as the message above needs none of them.
    import check
    import ml_dtypes
    import nki
    import numpy as np
    types = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}

    def run(kernel, name, given):
        # The documented way to give nki.simulate the number of cores.
        function = nki.simulate(check.launched(kernel, grid=True))
        (tensors,) = given
        return [check.call(function, name, {tensor: values.astype(types[dtype])
                                            for tensor, (values, dtype) in tensors.items()})]

    return check.run_kernels(range(1), run)


def on_model():
    """Runs and checks the kernels of all ranks on the model."""
    import check
    import nki_model
    nki_model.install()

    def run(kernel, name, given):
        bound = lambda *tensors, **named: inspect.signature(kernel.function).bind(*tensors, **named).arguments
        calls = [check.call(bound, name, {tensor: nki_model.HbmArray(*value) for tensor, value in tensors.items()})[0]
                 for tensors in given]
        results = nki_model.launch(kernel, problem.CORES, calls, target=problem.TARGET)
        return [result if isinstance(result, tuple) else (result,) for result in results]

    return check.run_kernels(range(check.WORLD), run)


def main(arguments=()):
    if list(arguments) not in ([], ["--model"]):
        sys.exit(f"arguments: {' '.join(arguments)}; accepted: --model, or none")
    return on_model() if arguments else in_simulator()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
