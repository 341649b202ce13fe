#!/usr/bin/env python3
"""Speed of annulus_attention_bench relative to PyTorch's flash attention for CPUs; the two alternate in each case.

benchmarks/compare_torch.py [--build build/native] [--repetitions 3] [--threads 1]

Requires PyTorch 2.3 or later. Batch 1, 4 heads, 4096 tokens; PyTorch gets its own axis order, contiguous. With one thread
CPU time is measured, which excludes other load on the core; with several, wall time. Causal work counts half.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# With more, each of PyTorch's own threads would start BLAS threads for its blocks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    raise SystemExit("compare_torch.py requires torch 2.3 or later, which this python3 does not have")

from results import attention_name, load

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADS, TOKENS = 4, 4096
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def operations(step, mask, dim):
    return 4 * HEADS * TOKENS**2 * dim * (0.5 if mask == "causal" else 1) * (2.5 if step == "backward" else 1)


def torch_speed(step, mask, dim, element, threads):
    """Operations per second: median over at least one second of calls."""
    q, k, v, dout = (torch.randn(1, HEADS, TOKENS, dim, dtype=TYPES[element], requires_grad=step == "backward") for _ in range(4))

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")

    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        output = forward()
        while sum(seconds) < 1 or len(seconds) < 3:
            begin = clock()
            if step == "forward":
                forward()
            else:
                torch.autograd.grad(output, (q, k, v), dout, retain_graph=True)
            seconds.append(clock() - begin)
    return operations(step, mask, dim) / statistics.median(seconds)


def annulus_speed(program, step, mask, dim, element, threads):
    name = attention_name("cpu", step, mask, TOKENS, dim, threads, element)
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run(
            [program, "--cases=all", f"--benchmark_filter=^{name}/", f"--benchmark_out={out.name}"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return load([out.name])[name]["GFLOP/s"] * 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "native", help="folder of a build with the preset native")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="1, 2 and powers of two up to all cores")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["float32"])
    arguments = parser.parse_args()
    program = pathlib.Path(arguments.build) / "benchmarks" / "annulus_attention_bench"
    if not program.exists():
        raise SystemExit(f"{program} does not exist; build it with: cmake --build {arguments.build} --target annulus_attention_bench")

    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {TOKENS} tokens, {HEADS} heads, {arguments.threads} thread(s), GFLOP/s")
    print(f"{'':<40} {'annulus':>8} {'torch':>8} {'times':>7}")
    for element in arguments.types:
        for step in ("forward", "backward"):
            for mask in ("full", "causal"):
                for dim in (64, 128):
                    case = (step, mask, dim, element, arguments.threads)
                    ours, theirs = [], []
                    for _ in range(arguments.repetitions):
                        theirs.append(torch_speed(*case))
                        ours.append(annulus_speed(program, *case))
                    ours, theirs = statistics.median(ours), statistics.median(theirs)
                    print(f"{step + ', ' + mask + ', head_dim ' + str(dim) + ', ' + element:<40} {ours * 1e-9:>8.1f} "
                          f"{theirs * 1e-9:>8.1f} {ours / theirs:>6.2f}x", flush=True)


if __name__ == "__main__":
    sys.exit(main())
