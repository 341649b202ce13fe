"""Dense attention and its gradients in double, with the sums of absolute terms that error bounds need."""
import numpy as np


class Dense:
    """q [batch, heads, queries, dim], k [batch, kv_heads, keys, dim], v [.., value_dim], sinks [heads, n] or None,
    bias and kept (1 or 0) [batch, heads, queries, keys] or None."""

    def __init__(self, problem, q, k, v, sinks=None, bias=None, kept=None):
        self.problem = problem
        group = problem.heads // problem.kv_heads
        self.q = q.astype(np.float64)
        self.k, self.v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
        product = problem.scale * (self.q @ self.k.swapaxes(2, 3))
        self.slope = np.ones_like(product)
        if problem.softcap:
            capped = np.tanh(product / problem.softcap)
            self.slope = 1 - capped**2
            product = problem.softcap * capped
        product = np.where(problem.visible()[:, None], product, -np.inf)
        if bias is not None:
            product = np.where(bias < -1e30, -np.inf, product + bias)
        extra = np.zeros((problem.heads, 0)) if sinks is None else sinks.astype(np.float64)
        top = product.max(-1, keepdims=True)
        if extra.size:
            top = np.maximum(top, extra.max(-1)[None, :, None, None])
        self.masked = np.isneginf(top)
        top = np.where(self.masked, 0, top)
        weights = np.exp(product - top)
        total = weights.sum(-1, keepdims=True) + np.exp(extra[None, :, None, :] - top).sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = np.log(total) + top
        total[self.masked] = 1
        self.weights = weights / total
        self.kept = np.ones(()) if kept is None else kept / (1 - problem.dropout)
        self.output = (self.kept * self.weights) @ self.v
        self.lse = np.where(self.masked, 0.0 if problem.masked_row == "zero" else -np.inf, lse)
        self.output_terms = (self.kept * self.weights) @ np.abs(self.v)
        seen = np.where(np.isneginf(product), 0, np.abs(self.q) @ np.abs(self.k).swapaxes(2, 3))
        self.score_terms = abs(problem.scale) * seen.max(-1, keepdims=True)

    def largest_term(self):
        """Upper bound of the largest term (weight times value) of each output."""
        return (self.kept * self.weights).max(-1, keepdims=True) * np.abs(self.v).max(2, keepdims=True)

    def by_kv_head(self, of_query_heads):
        """Sums over the query heads that share a kv head."""
        batch, heads, keys, dim = of_query_heads.shape
        kv_heads = self.problem.kv_heads
        return of_query_heads.reshape(batch, kv_heads, heads // kv_heads, keys, dim).sum(2)

    def differentiate(self, dout):
        """Sets gradients {name: [batch, heads, rows, dim]}, and the terms of their error bounds."""
        scale = self.problem.scale
        dout = dout.astype(np.float64)
        delta = (dout * self.output).sum(-1, keepdims=True)
        dweights = self.kept * (dout @ self.v.swapaxes(2, 3))
        dlogits = self.weights * (dweights - delta)
        dproduct = scale * self.slope * dlogits
        dproduct_t, weights_t = dproduct.swapaxes(2, 3), (self.kept * self.weights).swapaxes(2, 3)
        self.gradients = dict(dq=dproduct @ self.k, dk=self.by_kv_head(dproduct_t @ self.q),
                              dv=self.by_kv_head(weights_t @ dout))
        biased = dict(dbias=dlogits) if self.problem.bias != "none" else {}
        self.gradients.update(biased)

        sizes = {name: np.abs(x) for name, x in dict(q=self.q, k=self.k, dout=dout).items()}
        absolute = np.abs(dproduct)
        # Change of dproduct per relative change of delta alone, and per relative change of all its terms.
        delta_terms = self.weights * (sizes["dout"] * self.output_terms).sum(-1, keepdims=True)
        terms = delta_terms + self.kept * self.weights * (sizes["dout"] @ np.abs(self.v).swapaxes(2, 3))

        def sums(of_logits):
            of_pairs = abs(scale) * of_logits
            return dict(dq=of_pairs @ sizes["k"], dk=self.by_kv_head(of_pairs.swapaxes(2, 3) @ sizes["q"]),
                        **{name: of_logits for name in biased})

        self.rounded = dict(sums(np.abs(self.slope * dlogits)), dv=self.by_kv_head(weights_t @ sizes["dout"]))
        if biased:
            self.rounded["dbias"] = np.abs(dlogits)
        self.from_delta = dict(sums(delta_terms), dv=np.zeros(1))
        self.gradient_terms = dict(sums(terms), dv=self.rounded["dv"])
        self.largest_terms = dict(
            dq=absolute.max(-1, keepdims=True) * sizes["k"].max(2, keepdims=True),
            dk=self.by_kv_head(absolute.max(2)[..., None] * sizes["q"].max(2, keepdims=True)),
            dv=self.by_kv_head((self.kept * self.weights).max(2)[..., None] * sizes["dout"].max(2, keepdims=True)),
            **{name: np.abs(dlogits) for name in biased})
