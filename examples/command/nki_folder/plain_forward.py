# FlashAttention's forward pass over a ring, in plain loops for a reader: one instruction after the other, each tile
# loaded where it is used, none skipped. Arguments and results are those of the fast kernel of this name.
#
#   for each key head of each batch item:
#     for each step of the ring, which brings the keys of another rank:  #: ring
#       for each tile of 128 queries of the query heads that read this key head:
#         for each tile of 128 keys:
#           logits = SCALE * queries keys^T  #: linear
#           logits = SOFTCAP * tanh(SCALE / SOFTCAP * queries keys^T)  #: softcap
#           logits += bias  #: bias
#           logits = LOWEST where the mask hides the key from the query  #: mask
#           highest = max(maximum, logits of the row)
#           correction = exp(maximum - highest)
#           weights = exp(logits - highest)
#           total = correction * total + sum of the weights of the row
#           accumulator = correction * accumulator + weights values
#           maximum = highest
#     output = accumulator / total
#     lse = maximum + log(total)  #: lse
#
# This is the online softmax: what was summed up under a lower maximum is corrected when a higher one is found.
#
@parts@
def first_state(queries):  #: no_sinks
    # Maximum, total and accumulator before any key.  #: no_sinks
def first_state(queries, sinks, head):  #: sinks
    # Maximum, total and accumulator before any key: a sink logit is that of a key without a value.  #: sinks
    maximum = sbuf(queries, 1, nl.float32)
    total = sbuf(queries, 1, nl.float32)
    accumulator = sbuf(queries, VALUE_DIM, nl.float32)
    nisa.memset(dst=accumulator, value=0.0)
    nisa.memset(dst=maximum, value=NO_KEY)  #: no_sinks
    nisa.memset(dst=total, value=0.0)  #: no_sinks
    logits = load(sinks, head * SINKS, queries, 0, SINKS, 1, nl.float32)  #: sinks
    nisa.tensor_reduce(dst=maximum, op=nl.maximum, data=logits, axis=1)  #: sinks
    minus_maximum = sbuf(queries, 1, nl.float32)  #: sinks
    nisa.tensor_scalar(dst=minus_maximum, data=maximum, op0=nl.multiply, operand0=-1.0)  #: sinks
    nisa.activation(dst=logits, op=nl.exp, data=logits, bias=minus_maximum, scale=1.0, reduce_op=nl.add,  #: sinks
                    reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce)  #: sinks
    return maximum, total, accumulator


def fold(logits, values, queries, keys, state):
    # Adds a tile of keys to what the queries have seen: the online softmax.
    maximum, total, accumulator = state
    highest = sbuf(queries, 1, nl.float32)
    nisa.tensor_reduce(dst=highest, op=nl.maximum, data=logits, axis=1)
    nisa.tensor_tensor(dst=highest, data1=highest, data2=maximum, op=nl.maximum)
    minus_highest = sbuf(queries, 1, nl.float32)
    nisa.tensor_scalar(dst=minus_highest, data=highest, op0=nl.multiply, operand0=-1.0)
    correction = sbuf(queries, 1, nl.float32)
    nisa.activation(dst=correction, op=nl.exp, data=maximum, bias=minus_highest, scale=1.0)
    nisa.tensor_copy(dst=maximum, src=highest)
    # ScalarE also sums up the weights of each row, before they are rounded to TYPE.
    weights = sbuf(queries, keys, TYPE)
    added = sbuf(queries, 1, nl.float32)
    nisa.activation(dst=weights, op=nl.exp, data=logits, bias=minus_highest, scale=1.0, reduce_op=nl.add,
                    reduce_res=added, reduce_cmd=nisa.reduce_cmd.reset_reduce)
    nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=added)
    weighted = product([transpose(weights, queries, keys)], [values], queries, VALUE_DIM)
    nisa.scalar_tensor_tensor(dst=accumulator, data=accumulator, op0=nl.multiply, operand0=correction, op1=nl.add,
                              operand1=weighted)


def finish(state, queries, row, output):
    # Divides by the total. Where a row has seen no key both are 0, and the accumulator is divided by another number.
    maximum, total, accumulator = state
    nisa.tensor_scalar(dst=total, data=total, op0=nl.maximum, operand0=2.0**-60)
    inverse = sbuf(queries, 1, nl.float32)
    nisa.reciprocal(dst=inverse, data=total)
    result = sbuf(queries, VALUE_DIM, OUTPUT_TYPE)
    nisa.tensor_scalar(dst=result, data=accumulator, op0=nl.multiply, operand0=inverse)
    store(output, row * VALUE_DIM, result, queries, VALUE_DIM)


def finish_lse(state, queries, head, column, lse):  #: lse
    maximum, total, accumulator = state  #: lse
    logarithm = sbuf(queries, 1, nl.float32)  #: lse
    nisa.activation(dst=logarithm, op=nl.log, data=total)  #: lse
    nisa.tensor_tensor(dst=logarithm, data1=logarithm, data2=maximum, op=nl.add)  #: lse
    # Rows that saw no key get 0.  #: zero
    # Rows that saw no key get -inf, which is twice the lowest float32.  #: infinity
    marked = sbuf(queries, 1, nl.float32)  #: marked
    nisa.tensor_scalar(dst=marked, data=maximum, op0=nl.greater, operand0=NO_KEY / 2)  #: zero
    nisa.tensor_tensor(dst=logarithm, data1=logarithm, data2=marked, op=nl.multiply)  #: zero
    nisa.tensor_scalar(dst=marked, data=maximum, op0=nl.less, operand0=NO_KEY / 2, op1=nl.multiply,  #: infinity
                       operand1=LOWEST)  #: infinity
    for i in range(2):  #: infinity
        nisa.tensor_tensor(dst=logarithm, data1=logarithm, data2=marked, op=nl.add)  #: infinity
    # In lse row c * 128 + p of a head is at (p, c), and what is after the last row is 0.  #: lse
    result = sbuf(TILE, 1, LSE_TYPE)  #: lse
    nisa.memset(dst=result, value=0.0)  #: lse
    nisa.tensor_copy(dst=result[0:queries, 0:1], src=logarithm)  #: lse
    nisa.dma_copy(dst=lse.ap(pattern=[[COLUMNS, TILE], [1, 1]], offset=head * TILE * COLUMNS + column),  #: lse
                  src=result)  #: lse
  #: lse
  #: lse
@kernel@
    output = nl.ndarray((BATCH, QUERY_HEADS, QUERIES, VALUE_DIM), dtype=OUTPUT_TYPE, buffer=nl.shared_hbm,
                        name="output")
    lse = nl.ndarray((BATCH, QUERY_HEADS, TILE, COLUMNS), dtype=LSE_TYPE, buffer=nl.shared_hbm, name="lse")  #: lse
    # Keys and values of a head for each core: those of this step, and those that arrive for the next one.  #: ring
    here_k = nl.ndarray((CORES, KEYS, HEAD_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="k_a")  #: ring
    here_v = nl.ndarray((CORES, KEYS, VALUE_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="v_a")  #: ring
    next_k = nl.ndarray((CORES, KEYS, HEAD_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="k_b")  #: ring
    next_v = nl.ndarray((CORES, KEYS, VALUE_DIM), dtype=TYPE, buffer=nl.shared_hbm, name="v_b")  #: ring
    ring = ncc.ReplicaGroup(replica_groups)  #: ring
    core = nl.program_id(0)  #: pair
    core = 0  #: alone
    tiles = tiles_of_keys()
    for first_item in range(0, ITEMS, CORES):
        own, item, batch, first_head = item_of(first_item + core)
        # Of each tile of queries, what it has seen of the keys: kept in SBUF over all steps. Tile i is tile i % COLUMNS
        # of the item's query head i // COLUMNS.
        states = []
        for i in range(HEADS * COLUMNS):
            queries = min(TILE, QUERIES - i % COLUMNS * TILE)
            states.append(first_state(queries))  #: no_sinks
            states.append(first_state(queries, sinks, first_head + i // COLUMNS))  #: sinks
        here_k, here_v, place = k, v, item  #: one_rank
        place = core  #: ring
        # Own keys are those of the first step.  #: ring
        meet((here_k, here_v))  #: both
        for key in range(0, KEYS, TILE):  #: ring
            keys = min(TILE, KEYS - key)  #: ring
            copy(here_k, (core * KEYS + key) * HEAD_DIM, k, (item * KEYS + key) * HEAD_DIM, keys, HEAD_DIM)  #: ring
            copy(here_v, (core * KEYS + key) * VALUE_DIM, v, (item * KEYS + key) * VALUE_DIM, keys, VALUE_DIM)  #: ring
        meet((here_k, here_v))  #: both
        for step in range(RANKS):
            # The keys of this step leave for the next rank while this one attends to them.  #: ring
            if step < RANKS - 1:  #: ring
                meet((next_k, next_v))  #: both
                permute((here_k, here_v), (next_k, next_v), ring)  #: ring
            # The rank whose keys these are, in a register: it depends on the order of the ring.  #: owner
            rank = ncc.collective_permute_implicit_current_processing_rank_id(  #: owner
                iteration_id=step, replica_group=ring, channel_id=0)  #: owner
            rank = None  #: no_owner
            # Each tile of queries meets each tile of the keys that are here.
            for i in range(HEADS * COLUMNS):
                head, query = first_head + i // COLUMNS, i % COLUMNS * TILE
                queries = min(TILE, QUERIES - query)
                query_at = head * QUERIES * HEAD_DIM + query * Q_ROW
                query_by_dim = load_by_dim(q, query_at, HEAD_DIM, Q_DIM, queries, Q_ROW)
                for j in range(len(tiles)):
                    piece, key, keys = tiles[j]
                    key_at = place * KEYS * HEAD_DIM + key * K_ROW
                    key_by_dim = load_by_dim(here_k, key_at, HEAD_DIM, K_DIM, keys, K_ROW)
                    values = load(here_v, (place * KEYS + key) * VALUE_DIM, keys, VALUE_DIM, VALUE_DIM, 1, TYPE)
                    logits = logits_of(query_by_dim, key_by_dim, queries, keys)
                    add_bias(logits, bias, rank, head, query, queries, key, keys)  #: bias
                    logits = hide(logits, mask_ranges, rank, batch, query, queries, piece, key, keys)  #: mask
                    fold(logits, values, queries, keys, states[i])
            here_k, next_k = next_k, here_k  #: ring
            here_v, next_v = next_v, here_v  #: ring
        # All keys have been seen.
        for i in range(HEADS * COLUMNS):
            head, column = first_head + i // COLUMNS, i % COLUMNS
            queries = min(TILE, QUERIES - column * TILE)
            if own:
                finish(states[i], queries, head * QUERIES + column * TILE, output)
                finish_lse(states[i], queries, head, column, lse)  #: lse
    return output, lse  #: lse
    return output  #: no_lse
