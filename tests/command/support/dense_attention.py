"""Oracle of the command's results: attention over whole sequences in float64, from the definitions alone."""

import numpy as np


def philox4x32(counter, key):
    """Philox4x32-10 on Python's integers; four words of 32 bits."""
    c, k = list(counter), list(key)
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(product1 >> 32) ^ c[1] ^ k[0], product1 & 0xFFFFFFFF, (product0 >> 32) ^ c[3] ^ k[1],
             product0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def kept_weights(shape, query_offset, probability, seed):
    """Dropout factors [batch, heads, queries, keys]: 0 where dropped, else 1 / (1 - probability)."""
    batch, heads, queries, keys = shape
    kept = np.empty(shape)
    limit = int(probability * 2**32)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for four in range(0, keys, 4):
                    position = (i + query_offset) & 0xFFFFFFFF
                    words = philox4x32((b, h, position, four // 4), (seed & 0xFFFFFFFF, seed >> 32))
                    for j in range(four, min(four + 4, keys)):
                        kept[b, h, i, j] = words[j % 4] >= limit
    return kept / (1 - probability)


def visible_pairs(queries, keys, causal=False, window=None, sink_tokens=0, chunk=0, query_offset=0):
    """Visible pairs [queries, keys], by position alone."""
    q = np.arange(queries)[:, None] + query_offset
    k = np.arange(keys)[None, :]
    visible = np.ones((queries, keys), bool)
    if causal:
        visible &= k <= q
    if window is not None:
        left, right = window
        inside = np.ones((queries, keys), bool)
        if left >= 0:
            inside &= q - k <= left
        if right >= 0:
            inside &= k - q <= right
        visible &= inside | (k < sink_tokens)
    if chunk > 0:
        visible &= q // chunk == k // chunk
    return visible


def attend(q, k, v, dout=None, *, scale=None, softcap=0.0, bias=None, mask=None, segments=None, sinks=None,
           dropout=None, query_offset=0, rounded=lambda x: x, **positions):
    """q, k, v, dout in the order bshd. Returns a dictionary of out, lse and, with dout, the gradients.

    rounded: applied to each result, and to the output before the backward pass reads it.
    """
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    repeated_k, repeated_v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scale = dim**-0.5 if scale is None else scale

    capped = scale * (q @ repeated_k.swapaxes(2, 3))
    slope = np.ones_like(capped)
    if softcap > 0:
        capped = softcap * np.tanh(capped / softcap)
        slope = 1 - (capped / softcap) ** 2
    logits = capped if bias is None else capped + bias.astype(np.float64)
    visible = np.broadcast_to(visible_pairs(queries, keys, query_offset=query_offset, **positions), logits.shape).copy()
    if mask is not None:
        visible &= mask.astype(bool)
    if segments is not None:
        q_ids, k_ids = segments[0][:, None, :, None], segments[1][:, None, None, :]
        visible &= (q_ids == k_ids) & (q_ids > 0)
    logits = np.where(visible, logits, -np.inf)
    sink_logits = np.empty((heads, 0)) if sinks is None else sinks.astype(np.float64).reshape(heads, -1)
    sink_logits = np.broadcast_to(sink_logits[None, :, None, :], (batch, heads, queries, sink_logits.shape[1]))

    with np.errstate(divide="ignore", invalid="ignore"):
        every = np.concatenate([logits, sink_logits], axis=3)
        largest = every.max(axis=3, keepdims=True)
        largest = np.where(np.isfinite(largest), largest, 0)
        lse = largest + np.log(np.exp(every - largest).sum(axis=3, keepdims=True))
        finite = np.isfinite(lse)
        weights = np.where(finite, np.exp(logits - np.where(finite, lse, 0)), 0)
        sink_weights = np.where(finite, np.exp(sink_logits - np.where(finite, lse, 0)), 0)
    kept = 1.0 if dropout is None else kept_weights(logits.shape, query_offset, *dropout)
    out = rounded((weights * kept) @ repeated_v)
    results = {"out": out.transpose(0, 2, 1, 3), "lse": lse[..., 0]}
    if dout is None:
        return results

    dout = dout.astype(np.float64).transpose(0, 2, 1, 3)
    delta = (dout * out).sum(axis=3, keepdims=True)
    dlogits = weights * (kept * (dout @ repeated_v.swapaxes(2, 3)) - delta)
    dproducts = scale * dlogits * slope
    def of_kv_heads(x):
        return rounded(x.reshape(batch, kv_heads, group, keys, -1).sum(axis=2)).transpose(0, 2, 1, 3)
    results["dq"] = rounded(dproducts @ repeated_k).transpose(0, 2, 1, 3)
    results["dk"] = of_kv_heads(dproducts.swapaxes(2, 3) @ q)
    results["dv"] = of_kv_heads((weights * kept).swapaxes(2, 3) @ dout)
    if bias is not None:
        summed = tuple(axis for axis in (0, 1) if bias.shape[axis] == 1 and dlogits.shape[axis] != 1)
        results["dbias"] = rounded(dlogits.sum(axis=summed, keepdims=True) if summed else dlogits)
    if sinks is not None:
        results["dsinks"] = -(sink_weights * delta).sum(axis=(0, 2)).reshape(sinks.shape)
    return results


def relative_error(found, expected):
    """In the Frobenius norm; equal infinities count as equal."""
    finite = np.isfinite(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert np.array_equal(found[~finite], expected[~finite])
    scale = np.linalg.norm(expected[finite])
    return np.linalg.norm(found[finite].astype(np.float64) - expected[finite]) / (scale if scale > 0 else 1)
