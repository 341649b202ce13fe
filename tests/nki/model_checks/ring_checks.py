"""Checks of the ring fixtures against dense attention in double, with bounds derived from their bfloat16 roundings."""
import numpy as np

import nki_model
import ring_backward
import ring_forward

from .checking import CHECKS, expect_close

HALF_ULP = 2.0**-8  # largest relative error of one rounding to bfloat16
FLOAT32 = 2.0**-18  # sums of some hundred float32 terms and a float32 exp


def dense(q, k, v, dout, causal):
    """Attention and its gradients in double, of q, k, v and dout [items, length, head_dim].

    Also returns sums of absolute terms, which scale the bounds of bfloat16 (out_terms, grad_terms) and of float32
    (grad_float32_terms).
    """
    length = q.shape[1]
    scores = q @ k.transpose(0, 2, 1)
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    out = weights @ v
    delta = (dout * out).sum(-1)
    dweights = dout @ v.transpose(0, 2, 1)
    dscores = weights * (dweights - delta[..., None])
    dscores_terms = weights * (np.abs(dout) @ np.abs(v).transpose(0, 2, 1) + np.abs(delta)[..., None])
    dscores_t = dscores.transpose(0, 2, 1)
    return dict(out=out, lse=(top + np.log(total))[..., 0], delta=delta,
                grads=(dscores @ k, dscores_t @ q, weights.transpose(0, 2, 1) @ dout),
                out_terms=weights @ np.abs(v),
                grad_terms=(np.abs(dscores) @ np.abs(k), np.abs(dscores_t) @ np.abs(q),
                            weights.transpose(0, 2, 1) @ np.abs(dout)),
                grad_float32_terms=(dscores_terms @ np.abs(k), dscores_terms.transpose(0, 2, 1) @ np.abs(q),
                                    weights.transpose(0, 2, 1) @ np.abs(dout)))


def positions(rank, n, tokens, striped):
    return np.arange(rank, n * tokens, n) if striped else np.arange(rank * tokens, (rank + 1) * tokens)


def run(n, lnc, items, tokens, head_dim, mask, ring_order=None, groups=1, group_ids="position"):
    causal, striped = mask != "full", mask == "causal striped"
    replica_groups = tuple(tuple(range(g * n, (g + 1) * n)) for g in range(groups))
    ranks = (np.arange(groups * n, dtype=np.int32) % n).reshape(1, -1)
    options = dict(ring_order=ring_order, group_ids=group_ids)
    rest = (ranks, replica_groups, n, causal, striped)
    problems, forward, backward = [], [], []
    for group in range(groups):
        generator = np.random.default_rng(100 * n + group)
        shape = (items, n * tokens, head_dim)
        q, k, v, dout = (nki_model.bfloat16(generator.standard_normal(shape) * size).numpy().astype(np.float64)
                         for size in (head_dim**-0.5, 1, 1, 1))
        wanted = dense(q, k, v, dout, causal)
        problems.append(wanted)
        for rank in range(n):
            own = positions(rank, n, tokens, striped)
            qt, kt, vt, dt = (nki_model.bfloat16(x[:, own].transpose(0, 2, 1)) for x in (q, k, v, dout))
            forward.append((qt, kt, nki_model.bfloat16(v[:, own])) + rest)
            backward.append((qt, kt, vt, dt, wanted["lse"][:, own].astype(np.float32),
                             wanted["delta"][:, own].astype(np.float32)) + rest)
    outputs = nki_model.launch(ring_forward.ring_forward, lnc, forward, **options)
    grads = nki_model.launch(ring_backward.ring_backward, lnc, backward, **options)
    for rank in range(groups * n):
        wanted, own = problems[rank // n], positions(rank % n, n, tokens, striped)
        out, lse = outputs[rank]
        expect_close(out, wanted["out"][:, own], (HALF_ULP + FLOAT32) * wanted["out_terms"][:, own],
                     f"out of rank {rank}")
        expect_close(lse[..., 0], wanted["lse"][:, own], 1e-5, f"lse of rank {rank}")
        for name, got, want, terms, float32_terms, roundings in zip(("dq", "dk", "dv"), grads[rank], wanted["grads"],
                                                           wanted["grad_terms"],
                                                           wanted["grad_float32_terms"], (2, 2, 1)):
            bound = 1.01 * roundings * HALF_ULP * terms[:, own] + FLOAT32 * float32_terms[:, own]
            expect_close(got.transpose(0, 2, 1), want[:, own], bound, f"{name} of rank {rank}")


def _add(name, *arguments, **options):
    CHECKS.append((f"ring: {name}", lambda: run(*arguments, **options)))


for _mask in ("full", "causal contiguous", "causal striped"):
    _add(f"{_mask}, ranks=1, LNC=1", 1, 1, 2, 256, 64, _mask)
    _add(f"{_mask}, ranks=1, LNC=2, one item", 1, 2, 1, 384, 128, _mask)
    _add(f"{_mask}, ranks=2, LNC=1, one item", 2, 1, 1, 256, 128, _mask)
    _add(f"{_mask}, ranks=2, LNC=2, three items", 2, 2, 3, 128, 64, _mask)
    _add(f"{_mask}, ranks=4, LNC=1, shuffled ring", 4, 1, 2, 128, 32, _mask, (2, 0, 3, 1))
    _add(f"{_mask}, ranks=4, LNC=2, one item, shuffled ring", 4, 2, 1, 256, 64, _mask, (3, 1, 0, 2))
    _add(f"{_mask}, ranks=2, LNC=2, two groups, shuffled ring", 2, 2, 1, 128, 64, _mask, (1, 0), groups=2)
    _add(f"{_mask}, ranks=2, two groups, global ids", 2, 1, 1, 128, 64, _mask, groups=2, group_ids="global")
