#!/usr/bin/env python3
"""Speed of annulus_attention_bench and annulus_decode_bench relative to PyTorch; the two alternate in each case.

benchmarks/compare_torch.py [--build build/native] [--repetitions 3] [--threads 1] [--only plain|options|decode]

Requires PyTorch 2.5 or later, which gets its own axis order, contiguous. With one thread CPU time is measured, which excludes
other load on the core; with several, wall time.

plain    batch 1, 4 heads, 4096 tokens, PyTorch's flash attention for CPUs; causal work counts half
options  the same with 2048 tokens and head_dim 64, with the implementation that PyTorch chooses: its flash attention for CPUs has
         no dropout
decode   one query row of 8 heads of 128; bytes of keys and values per second
"""

import argparse
import itertools
import os
import pathlib
import re
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
    raise SystemExit("compare_torch.py requires torch 2.5 or later, which this python3 does not have")

from results import attention_name, load

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADS, TOKENS = 4, 4096
OPTION_TOKENS, OPTION_DIM = 2048, 64
DECODE_HEADS, DECODE_DIM, DECODE_KEYS = 8, 128, (16384, 131072)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
attention = torch.nn.functional.scaled_dot_product_attention


def seconds_of(call, threads):
    """Median over at least one second of calls."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = []
    call()
    while sum(seconds) < 1 or len(seconds) < 3:
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return statistics.median(seconds)


def operations(step, mask, tokens, dim):
    return 4 * HEADS * tokens**2 * dim * (0.5 if mask == "causal" else 1) * (2.5 if step == "backward" else 1)


def torch_speed(step, mask, option, tokens, dim, element, threads):
    """Operations per second."""
    q, k, v, dout = (torch.randn(1, HEADS, tokens, dim, dtype=TYPES[element], requires_grad=step == "backward") for _ in range(4))
    more = {}
    if option == "bias":
        more = {"attn_mask": torch.randn(1, HEADS, tokens, tokens, dtype=TYPES[element])}
    elif option == "mask_random":
        more = {"attn_mask": torch.rand(1, 1, tokens, tokens) < 7 / 8}
    elif option == "dropout":
        more = {"dropout_p": 0.25}

    def forward():
        return attention(q, k, v, is_causal=mask == "causal", **more)

    def measure():
        if step == "forward":
            return seconds_of(forward, threads)
        output = forward()
        return seconds_of(lambda: torch.autograd.grad(output, (q, k, v), dout, retain_graph=True), threads)

    if option:
        return operations(step, mask, tokens, dim) / measure()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return operations(step, mask, tokens, dim) / measure()


def torch_decode_rate(kv_heads, keys, element, threads):
    """Bytes of keys and values per second. Several copies are used in turns, so that none is in a cache."""
    q = torch.randn(1, DECODE_HEADS, 1, DECODE_DIM, dtype=TYPES[element])
    size = 2 * kv_heads * keys * DECODE_DIM * q.element_size()
    copies = [torch.randn(2, 1, kv_heads, keys, DECODE_DIM, dtype=TYPES[element]) for _ in range(2 + 256_000_000 // size)]
    turns = itertools.cycle(copies)

    def call():
        k, v = next(turns)
        attention(q, k, v, enable_gqa=kv_heads != DECODE_HEADS)

    return size / seconds_of(call, threads)


def annulus_counter(build, program, cases, name, counter):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [build / "benchmarks" / program, f"--cases={cases}", f"--benchmark_filter=^{re.escape(name)}/", f"--benchmark_out={out.name}"]
        result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stderr}")
        return load([out.name])[name][counter] * 1e9


def cases(only, build, element, threads):
    """Yields (what, function for the figure of annulus, function for that of torch)."""
    def attention_case(what, step, mask, option, tokens, dim):
        cases_with = "options" if option else "all"
        name = attention_name("cpu", step, f"{mask}+{option}" if option else mask, tokens, dim, threads, element)
        return (what, lambda: annulus_counter(build, "annulus_attention_bench", cases_with, name, "GFLOP/s"),
                lambda: torch_speed(step, mask, option, tokens, dim, element, threads))

    for step in ("forward", "backward"):
        if "plain" in only:
            for mask in ("full", "causal"):
                for dim in (64, 128):
                    yield attention_case(f"{step}, {mask}, head_dim {dim}, {element}, GFLOP/s", step, mask, None, TOKENS, dim)
        if "options" in only and threads == 1:
            for option in ("bias", "mask_random", "dropout"):
                what = f"{step}, {option.replace('_', ' ')}, {element}, GFLOP/s"
                yield attention_case(what, step, "full", option, OPTION_TOKENS, OPTION_DIM)
    if "decode" in only and threads in (1, os.cpu_count()):
        for kv_heads in (8, 1):
            for keys in DECODE_KEYS:
                name = f"decode/{element}/heads:{DECODE_HEADS}:{kv_heads}/queries:1/keys:{keys}/threads:{threads}"
                yield (f"decode, {kv_heads} kv heads, {keys} keys, {element}, GB/s",
                       lambda name=name: annulus_counter(build, "annulus_decode_bench", "table", name, "GB/s"),
                       lambda kv_heads=kv_heads, keys=keys: torch_decode_rate(kv_heads, keys, element, threads))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "native", type=pathlib.Path, help="folder of a build with the preset native")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1,
                        help="1, 2 and powers of two up to all cores; options are compared with one thread, decoding with one or all")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["float32"])
    parser.add_argument("--only", nargs="+", choices=("plain", "options", "decode"), default=["plain", "options", "decode"])
    arguments = parser.parse_args()
    for program in ("annulus_attention_bench", "annulus_decode_bench"):
        if not (arguments.build / "benchmarks" / program).exists():
            raise SystemExit(f"{arguments.build / 'benchmarks' / program} does not exist; build it with: "
                             f"cmake --build {arguments.build} --target {program}")

    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s)")
    print(f"{'':<54} {'annulus':>8} {'torch':>8} {'times':>7}")
    for element in arguments.types:
        for what, ours, theirs in cases(arguments.only, arguments.build, element, arguments.threads):
            pairs = [(theirs(), ours()) for _ in range(arguments.repetitions)]
            torch_figure, figure = (statistics.median(column) for column in zip(*pairs))
            print(f"{what:<54} {figure * 1e-9:>8.1f} {torch_figure * 1e-9:>8.1f} {figure / torch_figure:>6.2f}x", flush=True)


if __name__ == "__main__":
    sys.exit(main())
