#!/usr/bin/env python3
"""Compares the Hopper kernels with torch's cuDNN and flash attention, in one process, on the same tensors.

  hopper_bench.py LIBRARY forward    causal and full, one call and a ring of four folds, variants side by side
  hopper_bench.py LIBRARY backward   deterministic gradients in bf16 (delta included); --tune: heads and keys at once
  hopper_bench.py LIBRARY both       forward + backward, causal
  hopper_bench.py LIBRARY sparse     a window and packed documents: time for each visible pair, relative to causal
  hopper_bench.py LIBRARY calls      whole calls of the library: by the Hopper kernels, and with a soft cap, which the
                                     complete path computes; --flex: also torch's compiled flex attention
  hopper_bench.py LIBRARY table      all of them; a line of goals below each section

TFLOP/s counts 4 S S D heads per forward, half of that when causal, times 2.5 for a backward. Contenders run back to
back for a fixed time, in turns (a b c a b c), so that clock and power are those of sustained work; the figure is the
median call. Requires PyTorch. LIBRARY is libannulus_hopper_bench.so of a build with -DANNULUS_WITH_CUDA=ON.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit("hopper_bench.py requires PyTorch, whose cuDNN attention is the peer")

FULL, BAND, RANGES = 0, 1, 2
FAR = 1 << 30
POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float


class Rows(ctypes.Structure):
    _fields_ = [("data", POINTER), ("batch", LONG), ("row", LONG), ("head", LONG)]


TENSORS = ("q", "k", "v", "dout", "accumulator", "output", "dq", "dk", "dv", "dq_result", "dk_result", "dv_result")
STATISTICS = ("maximum", "sum", "lse", "lse_remainder", "delta")


class Step(ctypes.Structure):
    _fields_ = ([(n, INT) for n in ("batch", "queries", "keys", "query_heads", "kv_heads", "head_dim", "value_dim",
                                    "coverage", "low", "high")]
                + [("ranges", POINTER), ("softmax_scale", FLOAT)]
                + [(n, INT) for n in ("opens", "closes", "opens_keys", "closes_keys")]
                + [(n, Rows) for n in TENSORS] + [(n, POINTER) for n in STATISTICS] + [("statistic_head", LONG)]
                + [(n, INT) for n in ("heads_together", "keys_at_once")] + [("counters", POINTER), ("bounds", POINTER)])


class Call(ctypes.Structure):
    _fields_ = ([(n, INT) for n in ("rows", "query_heads", "kv_heads", "dim", "causal")] + [("logit_softcap", FLOAT)]
                + [(n, POINTER) for n in ("q", "k", "v", "dout", "output", "dq", "dk", "dv", "lse", "stream")])


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.bench_fold_name.restype = ctypes.c_char_p
        self.lib.bench_calls.restype = POINTER
        self.variants = [(i, self.lib.bench_fold_name(i).decode(), self.lib.bench_fold_head_dim(i))
                         for i in range(self.lib.bench_fold_variants())]
        self.counters = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        self.bounds = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")

    def step(self, tensors, **values):
        """A step on tensors [1, heads, rows, dim] and statistics [heads, rows]."""
        step = Step()
        q, k, v = (tensors[n] for n in ("q", "k", "v"))
        step.batch, step.queries, step.keys, step.query_heads = 1, q.shape[2], k.shape[2], q.shape[1]
        step.kv_heads, step.head_dim, step.value_dim = k.shape[1], q.shape[3], v.shape[3]
        step.low, step.high, step.softmax_scale = -FAR, FAR, q.shape[3] ** -0.5
        step.counters, step.bounds = self.counters.data_ptr(), self.bounds.data_ptr()
        for name, t in tensors.items():
            if name in TENSORS:
                setattr(step, name, Rows(t.data_ptr(), t.stride(0), t.stride(2), t.stride(1)))
            else:
                setattr(step, name, t.data_ptr())
                step.statistic_head = t.stride(0)
        for name, value in values.items():
            setattr(step, name, value)
        return step

    def call(self, function, *arguments):
        stream = POINTER(torch.cuda.current_stream().cuda_stream)
        arguments = [ctypes.byref(a) if isinstance(a, Step) else a for a in arguments]
        if getattr(self.lib, function)(*arguments, stream):
            raise RuntimeError(function)


class Calls:
    """Whole calls of the library on the tensors of a shape. Results: output, dq, dk, dv."""

    def __init__(self, library, shape, softcap):
        self.lib, tensors = library.lib, shape.t
        names = {"dq": "dq_result", "dk": "dk_result", "dv": "dv_result"}
        call = Call(shape.length, tensors["q"].shape[1], tensors["k"].shape[1], shape.dim, shape.causal, softcap)
        for name in ("q", "k", "v", "dout", "output", "dq", "dk", "dv", "lse"):
            setattr(call, name, tensors[names.get(name, name)].data_ptr())
        call.stream = torch.cuda.current_stream().cuda_stream
        self.calls = POINTER(self.lib.bench_calls(ctypes.byref(call)))
        if not self.calls:
            raise RuntimeError("bench_calls")

    def __del__(self):
        self.lib.bench_calls_end(self.calls)

    def forward(self):
        if self.lib.bench_calls_forward(self.calls):
            raise RuntimeError("forward")

    def backward(self):
        if self.lib.bench_calls_backward(self.calls):
            raise RuntimeError("backward")


class Shape:
    """One problem, and what can be run on it."""

    def __init__(self, library, length, dim, heads, kv_heads, causal, backward=False):
        self.library, self.length, self.dim, self.causal = library, length, dim, causal
        self.grouped = heads != kv_heads
        torch.manual_seed(0)
        new = {"device": "cuda", "dtype": torch.bfloat16}
        self.t = {n: torch.randn(1, h, length, dim, **new) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
        self.t["output"] = torch.empty_like(self.t["q"])
        for name in ("lse", "lse_remainder", "delta"):
            self.t[name] = torch.empty(heads, length, device="cuda")
        if backward:
            self.t["dout"] = torch.randn_like(self.t["q"])
            for name in ("q", "k", "v"):
                self.t["d" + name] = torch.empty(self.t[name].shape, device="cuda")
                self.t["d" + name + "_result"] = torch.empty_like(self.t[name])
        self.flops = 4.0 * length * length * dim * heads * (0.5 if causal else 1)
        self.band = {"coverage": BAND, "high": 0} if causal else {"coverage": FULL}

    def torch(self, backend):
        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(self.t["q"], self.t["k"], self.t["v"], is_causal=self.causal,
                                                      enable_gqa=self.grouped)
        return call

    def torch_backward(self, backend):
        leaves = [self.t[n].detach().requires_grad_() for n in ("q", "k", "v")]
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(*leaves, is_causal=self.causal, enable_gqa=self.grouped)
        return lambda: torch.autograd.grad(out, leaves, self.t["dout"], retain_graph=True)

    def torch_both(self, backend):
        leaves = [self.t[n].detach().requires_grad_() for n in ("q", "k", "v")]

        def call():
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(*leaves, is_causal=self.causal, enable_gqa=self.grouped)
            return torch.autograd.grad(out, leaves, self.t["dout"])
        return call

    def whole(self, variant=0, **values):
        step = self.library.step(self.t, opens=1, closes=1, **{**self.band, **values})

        def call():
            self.library.call("bench_fold", variant, step)
            return self.t["output"]
        return call

    def folds(self, variant=0, count=4):
        """The same result by folds on equal parts of the keys, as the rank of a ring does."""
        part = self.length // count
        state = {"accumulator": torch.empty(self.t["q"].shape, device="cuda"),
                 "maximum": torch.empty_like(self.t["lse"]), "sum": torch.empty_like(self.t["lse"])}
        steps = []
        for i in range(count):
            keys = {n: self.t[n][:, :, i * part:(i + 1) * part] for n in ("k", "v")}
            band = {"coverage": BAND, "high": -i * part} if self.causal else self.band
            steps.append(self.library.step({**self.t, **state, **keys}, opens=i == 0, closes=i == count - 1, **band))

        def call():
            for step in steps:
                self.library.call("bench_fold", variant, step)
            return self.t["output"]
        return call

    def backward(self, **values):
        step = self.library.step(self.t, opens=1, closes=1, opens_keys=1, closes_keys=1, **{**self.band, **values})

        def call():
            self.library.call("bench_delta", step)
            self.library.call("bench_gradients", step)
            return [self.t[n] for n in ("dq_result", "dk_result", "dv_result")]
        return call

    def both(self):
        forward, backward = self.whole(), self.backward()

        def call():
            forward()
            return backward()
        return call


def run_for(call, seconds):
    """Milliseconds of each of the calls made in about `seconds`."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    call()
    events[1].record()
    torch.cuda.synchronize()
    count = max(2, min(400, int(seconds * 1e3 / events[0].elapsed_time(events[1]))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for i in range(count):
        call()
        events[i + 1].record()
    torch.cuda.synchronize()
    return [events[i].elapsed_time(events[i + 1]) for i in range(count)]


def compare(contenders, a):
    """Median milliseconds of each contender that runs."""
    times = {}
    for name, call in contenders.items():
        try:
            call()
            torch.cuda.synchronize()
            times[name] = []
        except Exception as error:  # noqa: BLE001
            print(f"    {name}: {type(error).__name__} {str(error)[:150]}", flush=True)
    for _ in range(a.rounds):
        for name in times:
            times[name] += run_for(contenders[name], a.seconds)
    return {name: statistics.median(ms) for name, ms in times.items()}


def error_of(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())


def report(title, ms, flops, error):
    """A line: the peer's TFLOP/s, and of each other contender those and its ratio to the peer."""
    peer = ms.get("cudnn")
    parts = [f"{name} {flops / t / 1e9:.0f}" + (f" ({peer / t:.3f})" if peer and name != "cudnn" else "")
             for name, t in ms.items()]
    print(f"{title}: " + "  ".join(parts) + f"  error {error}", flush=True)


def shapes(a):
    for dim in a.dims:
        for heads, kv_heads in a.heads:
            for causal in (True, False):
                for length in a.lengths:
                    if time.time() - a.started > a.limit:
                        print("out of time")
                        return
                    yield dim, heads, kv_heads, causal, length


def title_of(dim, heads, kv_heads, causal, length):
    return f"D {dim} {heads}:{kv_heads} {'causal' if causal else 'full  '} {length // 1024}k"


def forward(library, a):
    print("forward; goals of cuDNN: D 128 causal 1.12 at 8k, then 1.20; full 1.05, then 1.12; "
          "D 64 causal 1.12, then 1.25; full 1.10, then 1.20; 4 folds 1.06 from 16k")
    for dim, heads, kv_heads, causal, length in shapes(a):
        p = Shape(library, length, dim, heads, kv_heads, causal)
        contenders = {"cudnn": p.torch(SDPBackend.CUDNN_ATTENTION)}
        if a.flash:
            contenders["flash"] = p.torch(SDPBackend.FLASH_ATTENTION)
        errors = []
        want = contenders["cudnn"]()
        for i, name, of_dim in library.variants:
            if of_dim not in (0, dim):
                continue
            contenders[name] = p.whole(i)
            errors.append(f"{error_of(contenders[name](), want):.0e}")
            contenders[name + ", 4 folds"] = p.folds(i)
            errors.append(f"{error_of(contenders[name + ', 4 folds'](), want):.0e}")
        report(title_of(dim, heads, kv_heads, causal, length), compare(contenders, a), p.flops, " ".join(errors))


def backward(library, a):
    print("backward; goals of cuDNN: D 128 causal 1.02, full 0.98; D 64 causal 1.00, full 0.96")
    for dim, heads, kv_heads, causal, length in shapes(a):
        p = Shape(library, length, dim, heads, kv_heads, causal, backward=True)
        p.whole()()
        contenders = {"cudnn": p.torch_backward(SDPBackend.CUDNN_ATTENTION)}
        if a.flash:
            contenders["flash"] = p.torch_backward(SDPBackend.FLASH_ATTENTION)
        want = contenders["cudnn"]()
        contenders["library"] = p.backward()
        errors = " ".join(f"{error_of(x, y):.0e}" for x, y in zip(contenders["library"](), want))
        if a.tune:
            for together in (4, 16):
                contenders[f"{together} heads"] = p.backward(heads_together=together)
            for keys in (8192, 16384, 32768, 1 << 30):
                if keys < length or keys == 1 << 30:
                    name = "all keys" if keys == 1 << 30 else f"{keys // 1024}k keys"
                    contenders[name] = p.backward(keys_at_once=keys)
        report(title_of(dim, heads, kv_heads, causal, length), compare(contenders, a), 2.5 * p.flops, errors)


def both(library, a):
    print("forward + backward with bf16 gradients, causal; goal 1.03 of cuDNN from 16k")
    for dim, heads, kv_heads, causal, length in shapes(a):
        if not causal:
            continue
        p = Shape(library, length, dim, heads, kv_heads, causal, backward=True)
        contenders = {"cudnn": p.torch_both(SDPBackend.CUDNN_ATTENTION), "library": p.both()}
        want = contenders["cudnn"]()
        errors = " ".join(f"{error_of(x, y):.0e}" for x, y in zip(contenders["library"](), want))
        report(title_of(dim, heads, kv_heads, causal, length), compare(contenders, a), 3.5 * p.flops, errors)


def flex(shape, rule, softcap=None):
    """Both passes of torch's flex attention, compiled. rule(b, h, q, k): whether a query row sees a key row."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    mask = create_block_mask(rule, None, None, shape.length, shape.length) if rule else None
    compiled = torch.compile(flex_attention, dynamic=False)
    leaves = [shape.t[n].detach().requires_grad_() for n in ("q", "k", "v")]

    def capped(score, *_):
        return softcap * torch.tanh(score / softcap)

    def forward():
        return compiled(*leaves, score_mod=capped if softcap else None, block_mask=mask, enable_gqa=shape.grouped)
    out = forward()
    return {"forward": forward,
            "backward": lambda: torch.autograd.grad(out, leaves, shape.t["dout"], retain_graph=True)}


def sparse(library, a):
    print("time for each visible pair, relative to causal, 64k tokens; goal 1.2")
    length, window, documents = 65536, 4096, 16
    for dim in a.dims:
        p = Shape(library, length, dim, 16, 16, True, backward=True)
        rows = torch.arange(length, device="cuda", dtype=torch.int32)
        size = length // documents
        ranges = torch.stack([rows // size * size, rows + 1], dim=1).contiguous()
        masks = {"causal": (p.band, length * (length + 1) / 2),
                 "window": ({"coverage": BAND, "low": 1 - window, "high": 0},
                            window * (window + 1) / 2 + (length - window) * window),
                 "documents": ({"coverage": RANGES, "ranges": ranges.data_ptr()}, documents * size * (size + 1) / 2)}
        for name, make in (("forward", p.whole), ("backward", p.backward)):
            contenders = {mask: make(**values) for mask, (values, _) in masks.items()}
            if a.flex:
                rules = {"window": lambda b, h, q, k: (q >= k) & (q - k < window),
                         "documents": lambda b, h, q, k: (q >= k) & (q // size == k // size)}
                contenders |= {"flex " + mask: flex(p, rule)[name] for mask, rule in rules.items()}
            ms = compare(contenders, a)
            per_pair = {mask: t / masks[mask.removeprefix("flex ")][1] for mask, t in ms.items()}
            parts = [f"{mask} {ms[mask]:.3f} ms ({per_pair[mask] / per_pair['causal']:.2f})" for mask in ms]
            print(f"D {dim} {name}: " + "  ".join(parts), flush=True)


def calls(library, a):
    print("whole calls of the library, each until the host has its end; goals of the complete path: 0.5 of cuDNN, "
          "backward 0.4")
    softcap = 30.
    for dim, heads, kv_heads, causal, length in shapes(a):
        p = Shape(library, length, dim, heads, kv_heads, causal, backward=True)
        plain, capped = Calls(library, p, 0.), Calls(library, p, softcap)
        passes = {"forward": {"cudnn": p.torch(SDPBackend.CUDNN_ATTENTION)},
                  "backward": {"cudnn": p.torch_backward(SDPBackend.CUDNN_ATTENTION)}}
        want = [passes["forward"]["cudnn"](), *passes["backward"]["cudnn"]()]
        plain.forward()
        plain.backward()
        got = [p.t[n] for n in ("output", "dq_result", "dk_result", "dv_result")]
        errors = " ".join(f"{error_of(x, y):.0e}" for x, y in zip(got, want))
        for name, ours in (("library", plain), ("soft cap", capped)):
            passes["forward"][name] = ours.forward
            passes["backward"][name] = ours.backward
        if a.flex:
            for name, call in flex(p, (lambda b, h, q, k: q >= k) if causal else None, softcap).items():
                passes[name]["flex, soft cap"] = call
            capped.forward()
            capped.backward()
            want = [passes["forward"]["flex, soft cap"](), *passes["backward"]["flex, soft cap"]()]
            errors += ", of soft cap " + " ".join(f"{error_of(x, y):.0e}" for x, y in zip(got, want))
        for name, contenders in passes.items():
            title = title_of(dim, heads, kv_heads, causal, length) + " " + name
            report(title, compare(contenders, a), p.flops * (1 if name == "forward" else 2.5), errors)


def matmul_rate(a):
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = statistics.median(run_for(lambda: torch.mm(x, y), 4 * a.seconds))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}: "
          f"matmul 8192^3 bf16 {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s", flush=True)


# What the options that not all modes have are for.
OPTIONS = {"flash": ("forward", "backward"), "flex": ("sparse", "calls"), "tune": ("backward",)}
MODES = {"forward": forward, "backward": backward, "both": both, "sparse": sparse, "calls": calls}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("mode", choices=(*MODES, "table"))
    parser.add_argument("--dims", type=lambda s: [int(x) for x in s.split(",")], default=[128, 64])
    parser.add_argument("--heads", type=lambda s: [tuple(int(y) for y in x.split(":")) for x in s.split(",")],
                        default=[(16, 16), (64, 8)], help="query heads : kv heads, ...")
    parser.add_argument("--lengths", type=lambda s: [int(x) * 1024 for x in s.split(",")], default="8,16,32,64",
                        help="in units of 1024")
    parser.add_argument("--seconds", type=float, default=0.12, help="of a contender, in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=500, help="seconds after which no shape is begun")
    parser.add_argument("--flash", action="store_true", help="forward, backward: also torch's flash attention")
    parser.add_argument("--flex", action="store_true",
                        help="calls, sparse: also torch's flex attention, compiled")
    parser.add_argument("--tune", action="store_true", help="backward: other numbers of heads and keys at once")
    a = parser.parse_args()
    for option, modes in OPTIONS.items():
        if getattr(a, option) and a.mode not in (*modes, "table"):
            parser.error(f"--{option} is given to {a.mode}; accepted: {', '.join(modes)}, table")
    a.started = time.time()
    library = Library(a.library)
    matmul_rate(a)
    for name in MODES if a.mode == "table" else [a.mode]:
        MODES[name](library, a)


if __name__ == "__main__":
    main()
