#!/usr/bin/env python3
"""Instructions of the inner loops of the products of packed operands at the level neon_bf16, per 512 multiply-adds.

Compiles the products by a cross compiler and counts in its disassembly: speed is not measured. Usage:
benchmarks/arm_instructions.py [folder of Eigen's headers]"""

import pathlib
import re
import subprocess
import sys
import tempfile

ELEMENTS = {"float": "float, `FMLA`", "BfloatPair": "bfloat16, `BFDOT`", "BfloatQuad": "bfloat16, `BFMMLA`"}
PRODUCTS = {"multiply_rows": "logits, and gradients of weights", "add_product_of_columns": "output, dq",
            "add_product_to_strip": "dk, dv"}
MULTIPLY_ADDS = {"fmla": 4, "bfdot": 8, "bfmmla": 16}  # of one instruction

SOURCE = """#include <annulus/backend/cpu/panel/products.hpp>
using namespace annulus::cpu::detail;
using annulus::Index;
#define INSTANTIATE(E) \\
  template void annulus::cpu::detail::multiply_rows<false, E>(E const*, Index, E const*, Index, float*, Vector<float>*, PrefetchQueue&); \\
  template void annulus::cpu::detail::add_product_of_columns<E>(E const*, Index, E const*, Index, float*, Index, PrefetchQueue&); \\
  template void annulus::cpu::detail::add_product_to_strip<3, E>(E const*, E const*, float*, Index);
"""


def disassembly(eigen):
    root = pathlib.Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = pathlib.Path(folder, "products.cpp"), pathlib.Path(folder, "products.o")
        source.write_text(SOURCE + "".join(f"INSTANTIATE({element})\n" for element in ELEMENTS))
        subprocess.run(["aarch64-linux-gnu-g++", "-std=c++20", "-O3", "-march=armv8.2-a+bf16", "-Wno-psabi", f"-I{root}/include",
                        f"-isystem{eigen}", "-c", source, "-o", compiled], check=True)
        return subprocess.run(["aarch64-linux-gnu-objdump", "-dC", "--no-show-raw-insn", compiled], check=True,
                              capture_output=True, text=True).stdout


def inner_loop(code):
    """Instructions of the smallest loop that has multiply-adds; a loop ends with a branch to an earlier address."""
    loops = []
    for end, (address, name, operands) in enumerate(code):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        branches = name.startswith("b.") or name in ("b", "cbz", "cbnz", "tbz", "tbnz")
        if branches and target and int(target[1], 16) <= address:
            loop = [other for place, other, _ in code[:end + 1] if place >= int(target[1], 16)]
            if MULTIPLY_ADDS.keys() & set(loop):
                loops.append(loop)
    return min(loops, key=len)


def count(body):
    """Multiply-adds, loads, stores and others of the inner loop, per 512 multiply-adds."""
    loop = inner_loop([(int(place, 16), name, operands) for place, name, operands in
                       re.findall(r"^ +([0-9a-f]+):\t(\S+)[ \t]*(.*)$", body, re.M)])
    scale = 512 / sum(MULTIPLY_ADDS.get(name, 0) for name in loop)
    kinds = [sum(name in MULTIPLY_ADDS for name in loop), sum(name.startswith("ld") for name in loop),
             sum(name.startswith("st") for name in loop)]
    return ", ".join(f"{scale * kind:.0f}" for kind in [*kinds, len(loop) - sum(kinds)])


def main():
    text = disassembly(sys.argv[1] if len(sys.argv) > 1 else "/usr/include/eigen3")
    functions = dict(re.findall(r"^[0-9a-f]+ <(.*)>:\n((?:.+\n)+)", text, re.M))
    print("| multiply-adds, loads, stores, others |", " | ".join(ELEMENTS.values()), "|\n" + "|---" * 4 + "|")
    for product, purpose in PRODUCTS.items():
        cells = [next(count(body) for name, body in functions.items()
                      if re.search(rf"{product}<(\w+, )?(\S+::)?{element}, ", name)) for element in ELEMENTS]
        print(f"| {purpose} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
