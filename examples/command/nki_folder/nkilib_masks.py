# Tables of the mask, made on the device from nkilib's parameters. A row is one partition of SBUF.


def neighbour_stride(replica_groups, ranks, groups):
    # Distance between neighbours of a ring in the world: 1 for ((0, 1), (2, 3)), 2 for ((0, 2), (1, 3)).
    assert len(replica_groups) == groups, "replica_groups has another number of groups than this kernel"
    stride = replica_groups[0][1] - replica_groups[0][0]
    assert stride >= 1, "replica_groups: the ranks of a group ascend"
    assert groups % stride == 0, "replica_groups: the groups are no part of the world at equal distances"
    for group in range(groups):
        first = group // stride * stride * ranks + group % stride
        assert len(replica_groups[group]) == ranks, "replica_groups has groups of another size than this kernel"
        for place in range(ranks):
            assert replica_groups[group][place] == first + place * stride, "replica_groups: ranks at equal distances"
    return stride


def look_up(dst, table, index):
    # One element of a table [1, n] in HBM, at an index in a register.
    nisa.dma_copy(dst=dst, src=table.ap(pattern=[[1, 1], [1, 1]], offset=0, scalar_offset=index, indirect_dim=1))


def store_row(table, row, elements):
    nisa.dma_copy(dst=table.ap(pattern=[[elements, 1], [1, elements]], offset=0), src=row[0:1, 0:elements])


def ring_positions(replica_groups, ranks, groups):
    # Position in its ring of the rank with each id, [1, ids], and of this rank, [1, 1]. The id of a rank may be counted
    # in the world or in its group. Where neighbours are consecutive in the world, ids modulo the ranks serve both;
    # elsewhere ids are counted in the world if the largest of the ring is not below the number of its ranks.
    world = ranks * groups
    positions = nl.ndarray((1, world), dtype=nl.float32, buffer=nl.sbuf)
    own = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    if ranks == 1:
        nisa.memset(dst=positions[0:1, 0:1], value=0.0)
        nisa.memset(dst=own[0:1, 0:1], value=0.0)
        return positions, own
    stride = neighbour_stride(replica_groups, ranks, groups)
    ring = ncc.ReplicaGroup(replica_groups)
    nisa.iota(dst=positions[0:1, 0:world], pattern=[[0, groups // stride], [1, ranks], [0, stride]], offset=0,
              channel_multiplier=0)
    if stride > 1:
        numbers = nl.ndarray((1, world), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=numbers[0:1, 0:world], pattern=[[1, world]], offset=0, channel_multiplier=0)
        table_of_numbers = nl.ndarray((1, world), dtype=nl.float32, buffer=nl.private_hbm, name="numbers_of_ids")
        store_row(table_of_numbers, numbers, world)
        ids = nl.ndarray((1, ranks), dtype=nl.float32, buffer=nl.sbuf)
        for step in range(ranks):
            look_up(ids[0:1, step:step + 1], table_of_numbers,
                    ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=step, replica_group=ring,
                                                                               channel_id=0))
        in_world = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=in_world[0:1, 0:1], op=nl.maximum, data=ids[0:1, 0:ranks], axis=1)
        nisa.tensor_scalar(dst=in_world[0:1, 0:1], data=in_world[0:1, 0:1], op0=nl.greater_equal, operand0=float(ranks))
        nisa.tensor_tensor(dst=positions[0:1, 0:world], data1=positions[0:1, 0:world], data2=numbers[0:1, 0:world],
                           op=nl.subtract)
        nisa.scalar_tensor_tensor(dst=positions[0:1, 0:world], data=positions[0:1, 0:world], op0=nl.multiply,
                                  operand0=in_world[0:1, 0:1], op1=nl.add, operand1=numbers[0:1, 0:world])
    table_of_positions = nl.ndarray((1, world), dtype=nl.float32, buffer=nl.private_hbm, name="positions_of_ids")
    store_row(table_of_positions, positions, world)
    look_up(own[0:1, 0:1], table_of_positions,
            ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=0, replica_group=ring,
                                                                       channel_id=0))
    return positions, own


def causal_ends(dst, positions, own, ids, rows, striped, queries_rotate):
    # hi for the rank with each id, [1, ids]: row i sees the keys j < i + hi. That rank owns the keys or the queries.
    if striped:
        # Positions i * ranks + own and j * ranks + other: row i sees key i if the owner of the key is not behind.
        nisa.tensor_scalar(dst=dst, data=positions[0:1, 0:ids],
                           op0=nl.greater_equal if queries_rotate else nl.less_equal, operand0=own[0:1, 0:1])
    else:
        nisa.tensor_scalar(dst=dst, data=positions[0:1, 0:ids], op0=nl.subtract, operand0=own[0:1, 0:1],
                           op1=nl.multiply, operand1=float(rows if queries_rotate else -rows))
        nisa.tensor_scalar(dst=dst, data=dst, op0=nl.add, operand0=1.0, op1=nl.maximum, operand1=-4194304.0)
        nisa.tensor_scalar(dst=dst, data=dst, op0=nl.minimum, operand0=4194304.0)


def causal_offsets(replica_groups, ranks, groups, rows, striped, queries_rotate):
    # mask_offsets [ids, 2]: lo, below every row, and hi.
    ids = ranks * groups
    positions, own = ring_positions(replica_groups, ranks, groups)
    row = nl.ndarray((1, 2 * ids), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row[0:1, 0:2 * ids], value=-4194304.0)
    causal_ends(row.ap(pattern=[[2 * ids, 1], [2, ids]], offset=1), positions, own, ids, rows, striped, queries_rotate)
    table = nl.ndarray((ids, 2), dtype=nl.float32, buffer=nl.private_hbm, name="mask_offsets")
    store_row(table, row, 2 * ids)
    return table


def document_ranges(replica_groups, ranks, groups, batch, rows, causal, queries_rotate, bound_min, bound_max, heads,
                    boundaries):
    # mask_ranges [ids, batch, 1, 2, rows]: first key that a row sees, and the one after the last. bound_min and
    # bound_max hold `heads` heads of each batch item; boundaries are global. Either may be None.
    ids = ranks * groups
    table = nl.ndarray((ids, batch, 1, 2, rows), dtype=nl.float32, buffer=nl.private_hbm, name="mask_ranges")
    ends = nl.ndarray((128, ids), dtype=nl.float32, buffer=nl.sbuf)
    if causal:
        positions, own = ring_positions(replica_groups, ranks, groups)
        row = nl.ndarray((1, ids), dtype=nl.float32, buffer=nl.sbuf)
        causal_ends(row[0:1, 0:ids], positions, own, ids, rows, True, queries_rotate)
        for quadrant in range(4):
            nisa.nc_stream_shuffle(dst=ends[32 * quadrant:32 * quadrant + 32, 0:ids], src=row[0:1, 0:ids],
                                   shuffle_mask=[0] * 32)
    columns = rows // 128
    if columns > 0:
        ranges_of_rows(table, ends, ids, ranks, batch, rows, causal, bound_min, bound_max, heads, boundaries, 0, 128,
                       columns)
    if rows % 128 > 0:
        ranges_of_rows(table, ends, ids, ranks, batch, rows, causal, bound_min, bound_max, heads, boundaries,
                       128 * columns, rows % 128, 1)
    return table


def ranges_of_rows(table, ends, ids, ranks, batch, rows, causal, bound_min, bound_max, heads, boundaries, first,
                   partitions, columns):
    # The rows from `first` on, one in each element of [partitions, columns].
    numbers = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers[0:partitions, 0:columns], pattern=[[1, columns]], offset=first, channel_multiplier=columns)
    for item in range(batch):
        begin = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
        end = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
        if bound_min == None:
            nisa.memset(dst=begin[0:partitions, 0:columns], value=0.0)
            nisa.memset(dst=end[0:partitions, 0:columns], value=float(rows))
        else:
            given = [[columns, partitions], [1, columns]]
            at = item * heads * rows + first
            nisa.dma_copy(dst=begin[0:partitions, 0:columns], src=bound_min.ap(pattern=given, offset=at))
            nisa.dma_copy(dst=end[0:partitions, 0:columns], src=bound_max.ap(pattern=given, offset=at))
        if boundaries != None:
            within_boundaries(begin, end, numbers, ranks, boundaries, partitions, columns)
        for other in range(ids):
            stop = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
            if causal:
                nisa.scalar_tensor_tensor(dst=stop[0:partitions, 0:columns], data=numbers[0:partitions, 0:columns],
                                          op0=nl.add, operand0=ends[0:partitions, other:other + 1], op1=nl.minimum,
                                          operand1=end[0:partitions, 0:columns])
            else:
                nisa.tensor_copy(dst=stop[0:partitions, 0:columns], src=end[0:partitions, 0:columns])
            nisa.tensor_tensor(dst=stop[0:partitions, 0:columns], data1=stop[0:partitions, 0:columns],
                               data2=begin[0:partitions, 0:columns], op=nl.maximum)
            place = [[columns, partitions], [1, columns]]
            at = (other * batch + item) * 2 * rows + first
            nisa.dma_copy(dst=table.ap(pattern=place, offset=at), src=begin[0:partitions, 0:columns])
            nisa.dma_copy(dst=table.ap(pattern=place, offset=at + rows), src=stop[0:partitions, 0:columns])


def within_boundaries(begin, end, numbers, ranks, boundaries, partitions, columns):
    # Narrows ranges to the document of each row. Local ends of documents rise by a step where the next one begins.
    edge = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
    step = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
    for side in range(2):
        nisa.memset(dst=edge[0:partitions, 0:columns], value=float(boundaries[side] // ranks))
        for document in range(1, len(boundaries) - 1):
            rise = (boundaries[document + side] - boundaries[document + side - 1]) // ranks
            nisa.tensor_scalar(dst=step[0:partitions, 0:columns], data=numbers[0:partitions, 0:columns],
                               op0=nl.greater_equal, operand0=float(boundaries[document] // ranks), op1=nl.multiply,
                               operand1=float(rise))
            nisa.tensor_tensor(dst=edge[0:partitions, 0:columns], data1=edge[0:partitions, 0:columns],
                               data2=step[0:partitions, 0:columns], op=nl.add)
        narrowed = begin if side == 0 else end
        nisa.tensor_tensor(dst=narrowed[0:partitions, 0:columns], data1=narrowed[0:partitions, 0:columns],
                           data2=edge[0:partitions, 0:columns], op=nl.maximum if side == 0 else nl.minimum)
