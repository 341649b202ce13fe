"""Dense attention and its gradients in double, and what the terms of each result add up to."""
import numpy as np


class Dense:
    """q [batch, heads, queries, dim], k [batch, kv_heads, keys, dim], v [.., value_dim], sinks [heads, n] or None."""

    def __init__(self, problem, q, k, v, sinks=None):
        self.problem = problem
        group = problem.heads // problem.kv_heads
        self.q = q.astype(np.float64)
        self.k, self.v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
        product = problem.scale * (self.q @ self.k.swapaxes(2, 3))
        self.slope = np.ones_like(product)
        if problem.softcap:
            bent = np.tanh(product / problem.softcap)
            self.slope = 1 - bent**2
            product = problem.softcap * bent
        product = np.where(problem.visible()[:, None], product, -np.inf)
        extra = np.zeros((problem.heads, 0)) if sinks is None else sinks.astype(np.float64)
        top = product.max(-1, keepdims=True)
        if extra.size:
            top = np.maximum(top, extra.max(-1)[None, :, None, None])
        self.dead = np.isneginf(top)
        top = np.where(self.dead, 0, top)
        weights = np.exp(product - top)
        total = weights.sum(-1, keepdims=True) + np.exp(extra[None, :, None, :] - top).sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = np.log(total) + top
        total[self.dead] = 1
        self.weights = weights / total
        self.output = self.weights @ self.v
        self.lse = np.where(self.dead, 0.0 if problem.dead_row == "zero" else -np.inf, lse)
        self.output_terms = self.weights @ np.abs(self.v)
        seen = np.where(np.isneginf(product), 0, np.abs(self.q) @ np.abs(self.k).swapaxes(2, 3))
        self.score_terms = abs(problem.scale) * seen.max(-1, keepdims=True)

    def largest_term(self):
        """A bound of each output's largest term, weight times value."""
        return self.weights.max(-1, keepdims=True) * np.abs(self.v).max(2, keepdims=True)
