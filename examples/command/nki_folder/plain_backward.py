# FlashAttention's backward pass over a ring, in plain loops for a reader: one instruction after the other, each tile
# loaded where it is used, none skipped. Arguments and results are those of the fast kernel of this name.
#
#   for each key head of each batch item:
#     delta = sum of dout * output, of each query
#     for each step of the ring, which brings the queries of another rank, with their dout, lse and delta:  #: ring
#       for each tile of 128 queries of the query heads that read this key head:
#         for each tile of 128 keys:
#           weights = exp(logits - lse), with the logits of the forward pass
#           dweights = dout values^T
#           dlogits = weights * (dweights - delta)
#           dlogits *= 1 - (logit before bias / SOFTCAP)^2, the slope of the soft cap  #: softcap
#           dv += weights^T dout
#           dk += SCALE * dlogits^T queries
#           dq += SCALE * dlogits keys
#       dq follows its queries from rank to rank, and is at their owner after the last step  #: ring
#
@parts@
def add_to(total, factor, terms):
    # total += factor * terms
    nisa.scalar_tensor_tensor(dst=total, data=terms, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=total)


def zeros(rows, columns):
    tile = sbuf(rows, columns, nl.float32)
    nisa.memset(dst=tile, value=0.0)
    return tile


def row_statistics(dout, output, lse, head, query, queries):
    # -lse and delta of a tile of queries. lse is -inf where a row sees no key, and 1e30 takes the place of +inf.
    minus_lse = sbuf(queries, 1, nl.float32)
    stored = load(lse, head * TILE * COLUMNS + query // TILE, queries, COLUMNS, 1, 1, LSE_TYPE)
    nisa.tensor_scalar(dst=minus_lse, data=stored, op0=nl.multiply, operand0=-1.0, op1=nl.minimum, operand1=-NO_KEY)
    offset = (head * QUERIES + query) * VALUE_DIM
    dout_rows = load(dout, offset, queries, VALUE_DIM, VALUE_DIM, 1, TYPE)
    output_rows = load(output, offset, queries, VALUE_DIM, VALUE_DIM, 1, OUTPUT_TYPE)
    terms = sbuf(queries, VALUE_DIM, nl.float32)
    nisa.tensor_tensor(dst=terms, data1=dout_rows, data2=output_rows, op=nl.multiply)
    delta = sbuf(queries, 1, nl.float32)
    nisa.tensor_reduce(dst=delta, op=nl.add, data=terms, axis=1)
    return minus_lse, delta


def gradients_of_logits(logits, minus_lse, delta, dout_by_dim, value_by_dim, queries, keys):
    # Weights, and gradients of the logits, both rounded to TYPE.
    weights = sbuf(queries, keys, TYPE)
    nisa.activation(dst=weights, op=nl.exp, data=logits, bias=minus_lse, scale=1.0)
    dweights = product(dout_by_dim, value_by_dim, queries, keys)
    dlogits = sbuf(queries, keys, TYPE)
    nisa.scalar_tensor_tensor(dst=dlogits, data=dweights, op0=nl.subtract, operand0=delta, op1=nl.multiply,
                              operand1=weights)
    return weights, dlogits


def slope_of(logits, queries, keys):  #: softcap
    # Derivative of the soft cap at logits before bias and mask: 1 - tanh^2.  #: softcap
    slope = sbuf(queries, keys, nl.float32)  #: softcap
    nisa.tensor_tensor(dst=slope, data1=logits, data2=logits, op=nl.multiply)  #: softcap
    nisa.tensor_scalar(dst=slope, data=slope, op0=nl.multiply, operand0=-1 / SOFTCAP**2, op1=nl.add,  #: softcap
                       operand1=1.0)  #: softcap
    return slope  #: softcap
  #: softcap
  #: softcap
def tensors_of_queries(suffix):
    # q, dout, -lse and delta of the query heads of one item for each core.
    q = nl.ndarray((CORES, HEADS, QUERIES, HEAD_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="q_" + suffix)
    dout = nl.ndarray((CORES, HEADS, QUERIES, VALUE_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="dout_" + suffix)
    minus_lse = nl.ndarray((CORES, HEADS, QUERIES), dtype=nl.float32, buffer=nl.shared_hbm, name="minus_lse_" + suffix)
    delta = nl.ndarray((CORES, HEADS, QUERIES), dtype=nl.float32, buffer=nl.shared_hbm, name="delta_" + suffix)
    return q, dout, minus_lse, delta


@kernel@
    dq = nl.ndarray((BATCH, QUERY_HEADS, QUERIES, HEAD_DIM), dtype=nl.float32, buffer=nl.shared_hbm, name="dq")
    dk = nl.ndarray((BATCH, KV_HEADS, KEYS, HEAD_DIM), dtype=nl.float32, buffer=nl.shared_hbm, name="dk")
    dv = nl.ndarray((BATCH, KV_HEADS, KEYS, VALUE_DIM), dtype=nl.float32, buffer=nl.shared_hbm, name="dv")
    here = tensors_of_queries("a")
    coming = tensors_of_queries("b")  #: ring
    # dq of the queries that are here: of this rank's keys, and of the ranks before it.  #: ring
    shape = (CORES, HEADS, QUERIES, HEAD_DIM)
    part = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="dq_part")
    sent = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="dq_a")  #: ring
    arrived = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="dq_b")  #: ring
    ring = ncc.ReplicaGroup(replica_groups)  #: ring
    core = nl.program_id(0)  #: pair
    core = 0  #: alone
    tiles = tiles_of_keys()
    for first_item in range(0, ITEMS, CORES):
        own, item, batch, first_head = item_of(first_item + core)
        # Own queries are those of the first step. Tile i is tile i % COLUMNS of the item's query head i // COLUMNS.
        meet(here)  #: both
        for i in range(HEADS * COLUMNS):
            head, query = i // COLUMNS, i % COLUMNS * TILE
            queries = min(TILE, QUERIES - query)
            row, own_row = (core * HEADS + head) * QUERIES + query, (first_head + head) * QUERIES + query
            copy(here[0], row * HEAD_DIM, q, own_row * HEAD_DIM, queries, HEAD_DIM)
            copy(here[1], row * VALUE_DIM, dout, own_row * VALUE_DIM, queries, VALUE_DIM)
            minus_lse, delta = row_statistics(dout, output, lse, first_head + head, query, queries)
            store(here[2], row, minus_lse, queries, 1)
            store(here[3], row, delta, queries, 1)
        meet(here)  #: both
        # Of each tile of keys: sums of dk and dv over all steps, kept in SBUF.
        sums = []
        for j in range(len(tiles)):
            piece, key, keys = tiles[j]
            sums.append((zeros(keys, HEAD_DIM), zeros(keys, VALUE_DIM)))
        for step in range(RANKS):
            # The queries of this step leave for the next rank while this one works on them.  #: ring
            if step < RANKS - 1:  #: ring
                meet(coming)  #: both
                permute(here, coming, ring)  #: ring
            # The rank whose queries these are, in a register: it depends on the order of the ring.  #: owner
            rank = ncc.collective_permute_implicit_current_processing_rank_id(  #: owner
                iteration_id=step, replica_group=ring, channel_id=0)  #: owner
            rank = None  #: no_owner
            meet((part,))  #: both
            # Each tile of queries meets each tile of this rank's keys.
            for i in range(HEADS * COLUMNS):
                head, query = i // COLUMNS, i % COLUMNS * TILE
                queries = min(TILE, QUERIES - query)
                first = (core * HEADS + head) * QUERIES
                row = first + query
                query_at = first * HEAD_DIM + query * Q_ROW
                query_by_dim = load_by_dim(here[0], query_at, HEAD_DIM, Q_DIM, queries, Q_ROW)
                query_rows = load(here[0], query_at, queries, Q_ROW, HEAD_DIM, Q_DIM, TYPE)
                dout_by_dim = load_by_dim(here[1], row * VALUE_DIM, VALUE_DIM, 1, queries, VALUE_DIM)
                dout_rows = load(here[1], row * VALUE_DIM, queries, VALUE_DIM, VALUE_DIM, 1, TYPE)
                minus_lse = load(here[2], row, queries, 1, 1, 1, nl.float32)
                delta = load(here[3], row, queries, 1, 1, 1, nl.float32)
                dq_tile = zeros(queries, HEAD_DIM)
                for j in range(len(tiles)):
                    piece, key, keys = tiles[j]
                    key_at = item * KEYS * HEAD_DIM + key * K_ROW
                    key_by_dim = load_by_dim(k, key_at, HEAD_DIM, K_DIM, keys, K_ROW)
                    key_rows = load(k, key_at, keys, K_ROW, HEAD_DIM, K_DIM, TYPE)
                    value_by_dim = load_by_dim(v, (item * KEYS + key) * VALUE_DIM, VALUE_DIM, 1, keys, VALUE_DIM)
                    logits = logits_of(query_by_dim, key_by_dim, queries, keys)
                    slope = slope_of(logits, queries, keys)  #: softcap
                    add_bias(logits, bias, rank, first_head + head, query, queries, key, keys)  #: bias
                    logits = hide(logits, mask_ranges, rank, batch, query, queries, piece, key, keys)  #: mask
                    weights, dlogits = gradients_of_logits(logits, minus_lse, delta, dout_by_dim, value_by_dim,
                                                           queries, keys)
                    nisa.tensor_tensor(dst=dlogits, data1=dlogits, data2=slope, op=nl.multiply)  #: softcap
                    dk_tile, dv_tile = sums[j]
                    add_to(dv_tile, 1.0, product([weights], [dout_rows], keys, VALUE_DIM))
                    add_to(dk_tile, SCALE, product([dlogits], [query_rows], keys, HEAD_DIM))
                    dlogits_by_key = transpose(dlogits, queries, keys)
                    add_to(dq_tile, SCALE, product([dlogits_by_key], [key_rows], queries, HEAD_DIM))
                store(part, row * HEAD_DIM, dq_tile, queries, HEAD_DIM)
            meet((part,))  #: both
            # dq leaves with what the ranks before added to it, and that of the queries to come arrives.  #: ring
            if step == 0:  #: ring
                permute((part,), (arrived,), ring)  #: ring
            else:  #: ring
                ncc.collective_permute_implicit_reduce(srcs0_by_channel=[[part]], srcs1_by_channel=[[arrived]],  #: ring
                                                       dsts_by_channel=[[sent]], replica_group=ring, op=nl.add,  #: ring
                                                       channel_ids=[0])  #: ring
                sent, arrived = arrived, sent  #: ring
            here, coming = coming, here  #: ring
        # What is complete goes to the results.
        arrived = part  #: one_rank
        for i in range(HEADS * COLUMNS):
            head, query = i // COLUMNS, i % COLUMNS * TILE
            row, own_row = (core * HEADS + head) * QUERIES + query, (first_head + head) * QUERIES + query
            if own:
                copy(dq, own_row * HEAD_DIM, arrived, row * HEAD_DIM, min(TILE, QUERIES - query), HEAD_DIM)
        for j in range(len(tiles)):
            piece, key, keys = tiles[j]
            dk_tile, dv_tile = sums[j]
            if own:
                store(dk, (item * KEYS + key) * HEAD_DIM, dk_tile, keys, HEAD_DIM)
                store(dv, (item * KEYS + key) * VALUE_DIM, dv_tile, keys, VALUE_DIM)
        meet((sent, arrived))  #: both
    return dq, dk, dv
