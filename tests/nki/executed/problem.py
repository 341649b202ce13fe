"""The problem of a case, in numpy: positions of each rank's rows, visible pairs, and gathered global tensors."""
import numpy as np

DEFAULTS = dict(ranks=1, groups=1, lnc=1, batch=1, heads=1, dim=64, rows=128, type="float32", output_type="float32",
                softcap=0.0, sinks=0, bias="none", bias_type="float32", dropout=0.0, queries_by_token=0, keys_by_token=0, keys_stationary=0, least_half=400, training=1,
                masked_row="minus_infinity", travels="queries", causal=0, window=None, sink_tokens=0, chunk=0,
                sharding="contiguous", query_offset=0, documents=None, ids="position", seed=1, query_size=1.0, target="trn2")
DEFAULTS["pass"] = "forward"
FOLLOWING = dict(kv_heads="heads", value_dim="dim", keys="rows")


class Problem:
    """A case with its defaults filled in; attributes are named like the keys."""

    def __init__(self, case):
        values = {**DEFAULTS, **case}
        for key, source in FOLLOWING.items():
            values.setdefault(key, values[source])
        values.setdefault("scale", values["dim"] ** -0.5)
        self.backward = values.pop("pass") == "backward"
        self.__dict__.update(values)

    def positions(self, rank, rows):
        """Global positions of a rank's `rows` rows."""
        total = self.ranks * rows
        if self.sharding == "striped":
            return np.arange(rank, total, self.ranks)
        if self.sharding == "zigzag":
            half = rows // 2
            late = 2 * self.ranks - 1 - rank
            return np.concatenate([np.arange(chunk * half, (chunk + 1) * half) for chunk in (rank, late)])
        return np.arange(rank * rows, (rank + 1) * rows)

    def visible(self):
        """Visible pairs: bool [batch, queries, keys], by global position."""
        query = np.arange(self.ranks * self.rows)[:, None] + self.query_offset
        key = np.arange(self.ranks * self.keys)[None, :]
        seen = np.ones((query.size, key.size), bool)
        if self.window is not None:
            left, right = self.window
            inside = ((left < 0) | (query - key <= left)) & ((right < 0) | (key - query <= right))
            seen &= inside | (key < self.sink_tokens)
        if self.causal:
            seen &= key <= query
        if self.chunk:
            seen &= query // self.chunk == key // self.chunk
        items = np.repeat(seen[None], self.batch, axis=0)
        if self.documents is not None:
            for item, runs in enumerate(self.documents):
                ids = np.concatenate([np.full(length, number) for number, length in runs])
                items[item] &= (ids[:, None] == ids[None, :]) & (ids[:, None] > 0)
        return items

    def gathered_pairs(self, blocks):
        """Gathers [other ranks, heads or 1, queries or 1, keys or 1] of each rank to [batch, heads, queries, keys]."""
        whole = np.full((self.batch * self.heads, self.ranks * self.rows, self.ranks * self.keys), np.nan)
        for rank, block in enumerate(blocks):
            for other in range(self.ranks):
                queries, keys = (other, rank) if self.backward and self.travels == "queries" else (rank, other)
                place = np.ix_(range(len(whole)), self.positions(queries, self.rows), self.positions(keys, self.keys))
                whole[place] = block[other]
        return whole.reshape((self.batch, self.heads) + whole.shape[1:])

    def gathered(self, shards, rows, rows_last=False):
        """Gathers [batch, heads, rows, x], or [.., x, rows], of each rank to [batch, heads, ranks * rows, x]."""
        shards = [shard.swapaxes(2, 3) if rows_last else shard for shard in shards]
        whole = np.full(shards[0].shape[:2] + (self.ranks * rows,) + shards[0].shape[3:], np.nan, shards[0].dtype)
        for rank, shard in enumerate(shards):
            whole[:, :, self.positions(rank, rows)] = shard
        return whole

    def gathered_lse(self, shards):
        """Gathers [batch, heads, 128, columns] of each rank, row c * 128 + p at (p, c), to [.., ranks * rows, 1]."""
        flat = [shard.swapaxes(2, 3).reshape(shard.shape[:2] + (-1, 1)) for shard in shards]
        for rank, rows in enumerate(flat):
            if (rows[:, :, self.rows:] != 0).any():
                raise AssertionError(f"lse of rank {rank} is not 0 beyond its last row")
        return self.gathered([rows[:, :, :self.rows] for rows in flat], self.rows)

    def words(self):
        """The case as arguments key=value."""
        words = []
        for key in DEFAULTS.keys() | FOLLOWING.keys() | {"scale"}:
            if key == "pass":
                value = "backward" if self.backward else "forward"
            else:
                value = getattr(self, key)
            if key == "documents" and value is not None:
                value = "/".join(",".join(f"{number}:{length}" for number, length in runs) for runs in value)
            elif isinstance(value, tuple):
                value = ",".join(map(str, value))
            if value is not None:
                words.append(f"{key}={value}")
        return sorted(words)
