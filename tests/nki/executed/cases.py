"""Test cases: name of each case -> keys that differ from their defaults (problem.py)."""

PACKED = (((3, 100), (1, 7), (9, 149)),)


def _forward():
    cases = {}

    def add(name, **keys):
        cases["forward " + name] = keys

    for sharding in ("contiguous", "striped", "zigzag"):
        for lnc in (1, 2):
            add(f"{sharding} causal, 2 ranks, lnc {lnc}", ranks=2, rows=256, heads=2, sharding=sharding, causal=1,
                lnc=lnc)
            add(f"{sharding} causal, 4 ranks, lnc {lnc}, bfloat16, 3 heads", ranks=4, rows=128, heads=3, dim=32,
                sharding=sharding, causal=1, lnc=lnc, type="bfloat16")
    add("one rank", rows=256)
    add("one rank, lnc 2, one head split by sequence", rows=384, dim=128, lnc=2, causal=1)
    add("one rank, ragged, lnc 2, 3 items", rows=300, heads=3, dim=32, lnc=2, causal=1)
    add("one row", rows=1, dim=1)
    add("one row on each of 2 ranks", ranks=2, rows=1, dim=3, value_dim=2, causal=1, lnc=2)
    add("8 ranks, striped, lnc 2", ranks=8, rows=128, heads=1, dim=32, sharding="striped", causal=1, lnc=2)
    add("8 ranks, full, lnc 1, bfloat16", ranks=8, rows=128, heads=2, dim=16, type="bfloat16")
    add("3 ranks, ragged, by token, GQA, values of their own width", ranks=3, rows=200, heads=4, kv_heads=2, dim=32,
        value_dim=48, sharding="zigzag", causal=1, queries_by_token=1, keys_by_token=1)
    add("by token, bfloat16, head_dim above a tile", ranks=2, rows=160, dim=160, value_dim=72, type="bfloat16",
        queries_by_token=1, keys_by_token=1, lnc=2)
    add("queries by token alone", ranks=2, rows=128, dim=32, type="bfloat16", queries_by_token=1)
    add("head_dim 160, values 200, window", ranks=4, rows=130, heads=3, kv_heads=1, dim=160, value_dim=200,
        sharding="striped", window=(50, 0), queries_by_token=1, lnc=2)
    add("head_dim 16, bfloat16, soft cap, sinks", ranks=2, rows=256, batch=2, heads=2, dim=16, type="bfloat16",
        sharding="striped", causal=1, softcap=5.0, sinks=2, lnc=2)
    add("packed", ranks=2, rows=128, dim=16, documents=PACKED, causal=1)
    add("packed, striped, 2 batch items, a sink, lnc 2", ranks=2, rows=128, batch=2, dim=16, sharding="striped",
        documents=PACKED + (((5, 256),),), causal=1, sinks=1, lnc=2)
    add("packed, not causal, bfloat16", ranks=4, rows=64, heads=2, dim=16, sharding="striped", documents=PACKED,
        type="bfloat16", lnc=2)
    add("padding, lse -inf", ranks=2, rows=128, dim=16, documents=(((0, 40), (2, 150), (-1, 66)),), causal=1)
    add("padding, lse 0, bfloat16", ranks=4, rows=64, heads=2, dim=16, documents=(((2, 190), (0, 66)),), causal=1,
        masked_row="zero", type="bfloat16", lnc=2)
    add("causal with queries before the first key", ranks=2, rows=128, dim=16, query_offset=-50, causal=1,
        masked_row="zero", lnc=2)
    add("queries behind the keys", ranks=2, rows=64, keys=160, dim=16, query_offset=256, causal=1)
    add("window and sink tokens", ranks=4, rows=64, dim=16, causal=1, window=(20, -1), sink_tokens=5, lnc=2)
    add("window to both sides", ranks=4, rows=96, heads=2, dim=16, sharding="zigzag", window=(30, 40), lnc=2)
    add("chunks, negative scale", ranks=4, rows=100, heads=2, kv_heads=1, dim=16, chunk=33, scale=-0.3)
    add("scale 0", ranks=2, rows=128, dim=16, causal=1, scale=0.0)
    add("large scores", ranks=4, rows=128, dim=64, sharding="striped", causal=1, query_size=8.0, lnc=2)
    add("float16", ranks=2, rows=256, heads=3, dim=64, sharding="striped", causal=1, type="float16", lnc=2)
    add("bfloat16 output, no lse", ranks=2, rows=128, heads=2, dim=64, causal=1, type="bfloat16",
        output_type="bfloat16", training=0)
    add("bfloat16 output", ranks=2, rows=300, heads=1, dim=64, sharding="zigzag", causal=1, type="bfloat16",
        output_type="bfloat16", lnc=2)
    for ids in ("position", "global"):
        add(f"two groups, ids by {ids}", ranks=2, groups=2, rows=128, dim=32, sharding="striped", causal=1, ids=ids,
            lnc=2)
    add("trn3", ranks=2, rows=256, dim=64, causal=1, target="trn3", type="bfloat16", lnc=2)
    add("stationary keys, striped, lnc 2, 3 heads", ranks=4, rows=200, heads=3, dim=32, sharding="striped", causal=1,
        keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, zigzag, GQA, by token", ranks=2, rows=512, heads=4, kv_heads=2, dim=32, value_dim=48,
        sharding="zigzag", causal=1, queries_by_token=1, keys_by_token=1, keys_stationary=1, type="bfloat16", lnc=2)
    # Halves are chosen at run time.
    add("zigzag, chosen halves, lnc 2", ranks=4, rows=1024, heads=2, dim=16, sharding="zigzag", causal=1, least_half=256,
        lnc=2)
    add("zigzag, chosen halves of 768 rows, by token, GQA, one item of both cores, negative scale, bfloat16", ranks=2,
        rows=1536, heads=2, kv_heads=1, dim=160, value_dim=24, sharding="zigzag", causal=1, least_half=256,
        queries_by_token=1, keys_by_token=1, scale=-0.08, type="bfloat16", lnc=2)
    add("zigzag, chosen halves of 256 rows, 3 ranks, soft cap, sinks, large scores", ranks=3, rows=512, heads=2, dim=32,
        sharding="zigzag", causal=1, least_half=256, softcap=5.0, sinks=2, query_size=8.0)
    add("zigzag, chosen halves of 1792 rows", ranks=2, rows=3584, dim=16, sharding="zigzag", causal=1, type="bfloat16")
    add("zigzag, chosen halves of 384 rows, 3 heads, lnc 2", ranks=2, rows=768, heads=3, dim=16, sharding="zigzag", causal=1,
        least_half=256, lnc=2, type="bfloat16")
    add("zigzag, chosen halves of 577 rows, 3 ranks, 3 heads, lnc 2", ranks=3, rows=1154, heads=3, dim=16, sharding="zigzag",
        causal=1, least_half=256, lnc=2, target="trn3")
    add("zigzag, chosen halves of 600 rows, by token, a sink", ranks=2, rows=1200, dim=16, sharding="zigzag", causal=1,
        least_half=256, queries_by_token=1, keys_by_token=1, sinks=1, type="bfloat16")
    add("zigzag, chosen halves of 450 rows, lnc 2", ranks=3, rows=900, heads=2, dim=16, sharding="zigzag", causal=1,
        lnc=2, type="bfloat16")
    add("stationary keys, zigzag, chosen halves of 450 rows, lnc 2", ranks=3, rows=900, heads=2, dim=16,
        sharding="zigzag", causal=1, keys_stationary=1, type="bfloat16", lnc=2)
    add("zigzag, halves of 251 rows", ranks=2, rows=502, dim=16, sharding="zigzag", causal=1, least_half=1,
        lnc=2)
    add("stationary keys, zigzag, chosen halves, lnc 2", ranks=4, rows=1024, heads=2, dim=16, sharding="zigzag",
        causal=1, keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, zigzag, chosen halves, head_dim 160, by token, GQA, one item of both cores, negative scale",
        ranks=2, rows=1024, heads=2, kv_heads=1, dim=160, value_dim=24, sharding="zigzag", causal=1,
        queries_by_token=1, keys_by_token=1, scale=-0.08, keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, zigzag, chosen halves of 768 rows, one item of both cores", ranks=3, rows=1536, dim=16,
        sharding="zigzag", causal=1, keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, zigzag, chosen halves of 580 rows, 3 heads, lnc 2", ranks=3, rows=1160, heads=3, dim=16,
        sharding="zigzag", causal=1, keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, zigzag, chosen halves of 641 rows, soft cap", ranks=2, rows=1282, dim=16, sharding="zigzag", causal=1,
        softcap=5.0, keys_stationary=1, type="bfloat16")
    add("stationary keys, window, head_dim 160", ranks=2, rows=260, dim=160, window=(90, 10), keys_stationary=1,
        type="bfloat16")
    add("stationary keys, packed, striped, soft cap, 2 batch items", ranks=2, rows=128, batch=2, dim=16,
        sharding="striped", documents=PACKED + (((5, 256),),), causal=1, softcap=5.0, keys_stationary=1, type="bfloat16")
    add("stationary keys, packed with padding, zigzag, lnc 2, GQA", ranks=2, rows=512, heads=4, kv_heads=2, dim=32,
        sharding="zigzag", documents=(((3, 300), (1, 7), (9, 500), (0, 217)),), keys_stationary=1, type="bfloat16", lnc=2)
    add("stationary keys, chunks", ranks=4, rows=200, heads=2, dim=32, chunk=170, causal=1, keys_stationary=1,
        type="bfloat16", lnc=2)
    add("bias of each pair, striped, lnc 2, 3 heads", ranks=4, rows=130, heads=3, dim=32, sharding="striped", causal=1,
        bias="hqk", type="bfloat16", lnc=2)
    add("bias of all heads, soft cap, packed, 2 batch items", ranks=2, rows=128, batch=2, heads=2, kv_heads=1, dim=16,
        documents=PACKED * 2, softcap=3.0, bias="qk", bias_type="bfloat16")
    add("bias of each query", ranks=2, rows=200, heads=2, dim=16, sharding="zigzag", causal=1, bias="q", lnc=2)
    add("bias of each head and key, two groups, ids global", ranks=2, groups=2, rows=128, dim=32, heads=2, window=(60, 9),
        bias="hk", ids="global", lnc=2)
    add("bias of bfloat16 in the products, striped, lnc 2, 3 heads", ranks=4, rows=130, heads=3, dim=32, sharding="striped",
        causal=1, bias="hqk", bias_type="bfloat16", type="bfloat16", lnc=2)
    add("bias of bfloat16 in the products of float16, scale a power of two, head_dim 160, dropout", ranks=2, rows=600,
        heads=2, kv_heads=1, dim=160, value_dim=24, scale=0.125, dropout=0.3, bias="hk", bias_type="bfloat16",
        type="float16")
    add("bias of bfloat16 that hides pairs, small scale", rows=128, dim=16, scale=0.0007, bias="hqk",
        bias_type="bfloat16", type="bfloat16")
    add("bias of a single value, a sink, lse 0", rows=128, dim=16, bias="constant", sinks=1, masked_row="zero")
    add("dropout and a bias, 3 ranks, GQA, lnc 2", ranks=3, rows=140, heads=3, kv_heads=1, dim=32, causal=1, dropout=0.3,
        bias="qk", type="bfloat16", lnc=2)
    add("keys of two groups in PSUM", ranks=1, rows=128, keys=1400, dim=32, type="bfloat16", lnc=1)
    return cases


def _backward():
    cases = {}

    def add(name, **keys):
        for travels in ("queries", "keys"):
            cases[f"backward {name}, {travels} travel"] = dict(keys, travels=travels, **{"pass": "backward"})

    add("one rank", rows=128)
    add("one rank, ragged, lnc 2, one head split by sequence", rows=300, dim=32, causal=1, lnc=2)
    add("one rank, functions that hold loops", rows=2304, dim=32, causal=1)
    for sharding in ("contiguous", "striped"):
        for lnc in (1, 2):
            add(f"{sharding} causal, 2 ranks, lnc {lnc}", ranks=2, rows=256, heads=2, dim=32, sharding=sharding,
                causal=1, lnc=lnc)
        add(f"{sharding} causal, 4 ranks, lnc 2, bfloat16, 3 heads", ranks=4, rows=128, heads=3, dim=32,
            sharding=sharding, causal=1, lnc=2, type="bfloat16")
    add("zigzag, ragged, by token, GQA, values of their own width", ranks=3, rows=200, heads=4, kv_heads=2, dim=32,
        value_dim=48, sharding="zigzag", causal=1, queries_by_token=1, keys_by_token=1)
    add("zigzag, chosen halves", ranks=2, rows=1024, dim=16, sharding="zigzag", causal=1)
    add("zigzag, halves of 256 rows", ranks=4, rows=512, dim=16, sharding="zigzag", causal=1)
    add("zigzag, chosen halves of 640 rows", ranks=2, rows=1280, dim=16, sharding="zigzag", causal=1, lnc=2, type="bfloat16")
    add("zigzag, chosen halves of 577 rows, 3 ranks, one item of both cores, negative scale", ranks=3, rows=1154, dim=16,
        sharding="zigzag", causal=1, lnc=2, scale=-0.3)
    add("zigzag, chosen halves of 600 rows, head_dim 160", ranks=2, rows=1200, dim=160, value_dim=24, sharding="zigzag",
        causal=1, masked_row="zero", type="bfloat16")
    add("zigzag, chosen halves, by token, GQA, one item of both cores", ranks=2, rows=1536, heads=2, kv_heads=1, dim=32,
        value_dim=48, sharding="zigzag", causal=1, lnc=2, queries_by_token=1, keys_by_token=1)
    add("zigzag, chosen halves, 3 ranks, lnc 2, bfloat16", ranks=3, rows=1024, heads=2, dim=16, sharding="zigzag",
        causal=1, lnc=2, type="bfloat16")
    add("8 ranks, striped, lnc 2, bfloat16", ranks=8, rows=128, dim=16, sharding="striped", causal=1, lnc=2,
        type="bfloat16")
    add("head_dim 160, window", ranks=2, rows=130, heads=3, kv_heads=1, dim=160, value_dim=72, sharding="striped",
        window=(50, 0), lnc=2)
    add("head_dim 16, float16, soft cap, sinks", ranks=2, rows=256, batch=2, dim=16, type="float16", sharding="striped",
        causal=1, softcap=5.0, sinks=2, lnc=2)
    add("packed with padding, bfloat16", ranks=2, rows=128, heads=2, dim=16, sharding="striped",
        documents=(((3, 100), (0, 16), (9, 140)),), causal=1, type="bfloat16", lnc=2)
    add("padding, 2 batch items", ranks=4, rows=64, batch=2, dim=16, causal=1, masked_row="zero",
        documents=(((0, 40), (2, 150), (-1, 66)), ((1, 256),)))
    add("causal with queries before the first key", ranks=2, rows=128, dim=16, query_offset=-50, causal=1, lnc=2)
    add("window and sink tokens, negative scale", ranks=4, rows=64, dim=16, causal=1, window=(20, -1), sink_tokens=5,
        scale=-0.3)
    add("bfloat16 output", ranks=2, rows=300, dim=64, sharding="zigzag", causal=1, type="bfloat16",
        output_type="bfloat16", lnc=2)
    add("bias of each pair, striped, lnc 2, 3 heads", ranks=4, rows=130, heads=3, dim=32, sharding="striped", causal=1,
        bias="hqk", type="bfloat16", lnc=2)
    add("bias of all heads, soft cap, packed, 2 batch items", ranks=2, rows=128, batch=2, heads=2, kv_heads=1, dim=16,
        documents=PACKED * 2, softcap=3.0, bias="qk", bias_type="bfloat16")
    add("bias of bfloat16 in the products, 3 heads, lnc 2, negative scale", ranks=4, rows=130, heads=3, dim=32,
        sharding="striped", causal=1, scale=-0.2, bias="hqk", bias_type="bfloat16", type="bfloat16", lnc=2)
    add("bias of bfloat16 in the products, scale a power of two, dropout", ranks=2, rows=300, heads=2,
        kv_heads=1, dim=32, scale=0.125, dropout=0.3, bias="qk", bias_type="bfloat16", type="bfloat16")
    add("bias of each query, zigzag, window and sink tokens", ranks=2, rows=200, heads=2, dim=16, sharding="zigzag",
        causal=1, window=(150, -1), sink_tokens=5, bias="q", lnc=2)
    add("bias of each head and key, one rank, one head split by sequence", rows=300, dim=32, bias="hk", lnc=2)
    add("dropout, 3 ranks, GQA, soft cap, lnc 2", ranks=3, rows=140, heads=3, kv_heads=1, dim=32, causal=1, dropout=0.3,
        softcap=4.0, lnc=2)
    add("dropout, striped, bfloat16, a bias", ranks=2, rows=256, heads=2, dim=32, sharding="striped", causal=1, dropout=0.5,
        bias="hqk", type="bfloat16", lnc=2)
    add("two groups, global ids", ranks=2, groups=2, rows=128, dim=32, sharding="striped", causal=1, ids="global",
        lnc=2)
    return cases


CASES = {**_forward(), **_backward()}
