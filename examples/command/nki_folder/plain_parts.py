# TensorE sums over the partitions of its operands: nc_matmul gives stationary^T moving, in PSUM. So operands are loaded
# with rows or with dims in the partitions, as a product needs them, and a tile in SBUF is transposed before some.
import nki
import nki.collectives as ncc  #: ring
import nki.isa as nisa
import nki.language as nl

@constants@
TILE = 128  # queries and keys of a tile, one for each partition
HEADS = QUERY_HEADS // KV_HEADS  # query heads that read one key head
ITEMS = BATCH * KV_HEADS  # key heads of all batch items
COLUMNS = (QUERIES + TILE - 1) // TILE  # tiles of queries of a head
NO_KEY = -1e30  # maximum, or lse, of a row without keys: hidden logits are far below it, so that their weights are 0
LOWEST = -3.4028235e38  # logit of a hidden key: the lowest float32  #: empty


def sbuf(rows, columns, dtype):
    return nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)


def psum(rows, columns, dtype):
    return nl.ndarray((rows, columns), dtype=dtype, buffer=nl.psum)


def load(tensor, offset, rows, row_stride, columns, column_stride, dtype, rank=None):
    # Part of a tensor in HBM, in elements: where it begins, and how far apart its rows and columns are. With a rank, of
    # the entry of that rank along the first axis.
    tile = sbuf(rows, columns, dtype)
    nisa.dma_copy(dst=tile, src=tensor.ap(pattern=[[row_stride, rows], [column_stride, columns]], offset=offset,
                                          scalar_offset=rank, indirect_dim=0))
    return tile


def load_by_dim(tensor, offset, dims, dim_stride, rows, row_stride):
    # Rows of an operand as [dims, rows], in tiles of up to 128 dims.
    tiles = []
    for dim in range(0, dims, TILE):
        tiles.append(load(tensor, offset + dim * dim_stride, min(TILE, dims - dim), dim_stride, rows, row_stride, TYPE))
    return tiles


def store(tensor, offset, tile, rows, columns):
    nisa.dma_copy(dst=tensor.ap(pattern=[[columns, rows], [1, columns]], offset=offset), src=tile)


def copy(dst, dst_offset, src, src_offset, rows, columns):  #: copies
    # Rows that lie one after the other, from HBM to HBM.  #: copies
    pattern = [[columns, rows], [1, columns]]  #: copies
    nisa.dma_copy(dst=dst.ap(pattern=pattern, offset=dst_offset),  #: copies
                  src=src.ap(pattern=pattern, offset=src_offset))  #: copies
  #: copies
  #: copies
def product(stationary, moving, rows, columns):
    # Sum over the partitions of all tiles of both, in PSUM.
    result = psum(rows, columns, nl.float32)
    for i in range(len(stationary)):
        nisa.nc_matmul(dst=result, stationary=stationary[i], moving=moving[i], accumulate=i > 0)
    return result


def transpose(tile, rows, columns):
    # TensorE transposes into PSUM; operands are in SBUF.
    transposed = psum(columns, rows, TYPE)
    nisa.nc_transpose(dst=transposed, data=tile)
    result = sbuf(columns, rows, TYPE)
    nisa.tensor_copy(dst=result, src=transposed)
    return result


def item_of(number):
    # Whether the item exists, itself, its batch item, and the first of its query heads, counted through the batch.
    # A core without an item works on item 0, because both cores run alike, and writes nothing.  #: pair
    own = number < ITEMS
    item = number if own else 0
    return own, item, item // KV_HEADS, item * HEADS


def tiles_of_keys():
    # Of each tile: the piece of a rank's keys in which it is, its first key, and how many it has.
    tiles = []
    for piece in range(len(KEY_PIECES)):
        first, last = KEY_PIECES[piece]
        for key in range(first, last, TILE):
            tiles.append((piece, key, min(TILE, last - key)))
    return tiles


def logits_of(query, key, queries, keys):
    # Logits [queries, keys] of two tiles, before bias and mask.
    products = product(query, key, queries, keys)
    logits = sbuf(queries, keys, nl.float32)
    nisa.tensor_scalar(dst=logits, data=products, op0=nl.multiply, operand0=SCALE)  #: linear
    nisa.activation(dst=logits, op=nl.tanh, data=products, scale=SCALE / SOFTCAP)  #: softcap
    nisa.tensor_scalar(dst=logits, data=logits, op0=nl.multiply, operand0=SOFTCAP)  #: softcap
    return logits


def add_bias(logits, bias, rank, head, query, queries, key, keys):  #: bias
    # head counts through the batch. A stride is 0 along an axis along which the bias does not vary.  #: bias
    offset = head * BIAS_HEAD + query * BIAS_QUERY + key * BIAS_KEY  #: bias
    tile = load(bias, offset, queries, BIAS_QUERY, keys, BIAS_KEY, BIAS_TYPE, rank)  #: bias
    nisa.tensor_tensor(dst=logits, data1=logits, data2=tile, op=nl.add)  #: bias
  #: bias
  #: bias
def hide(logits, mask_ranges, rank, batch, query, queries, piece, key, keys):  #: mask
    # Returns the logits with LOWEST where the mask hides a key. In each piece of keys a query sees those from  #: mask
    # begin to before end: the table has both for each query.  #: mask
    offset = (batch % MASK_BATCH * len(KEY_PIECES) + piece) * 2 * QUERIES + query  #: mask
    begin = load(mask_ranges, offset, queries, 1, 1, 1, nl.float32, rank)  #: mask
    end = load(mask_ranges, offset + QUERIES, queries, 1, 1, 1, nl.float32, rank)  #: mask
    seen = sbuf(queries, keys, nl.float32)  #: mask
    highest = sbuf(queries, 1, nl.float32)  #: mask
    nisa.range_select(dst=seen, on_true_tile=logits, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=begin,  #: mask
                      bound1=end, reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=highest,  #: mask
                      reduce_op=nl.maximum, range_start=key, on_false_value=LOWEST)  #: mask
    return seen  #: mask
  #: mask
  #: mask
def meet(tensors):  #: both
    # Waits for the other core: it has written what it writes to the tensors, and read what it reads.  #: both
    for i in range(len(tensors)):  #: both
        nisa.core_barrier(data=tensors[i], cores=(0, 1))  #: both
  #: both
  #: both
def permute(sources, targets, ring):  #: ring
    # Each rank sends to the next one and receives from the one before.  #: ring
    for i in range(len(sources)):  #: ring
        ncc.collective_permute_implicit(srcs_by_channel=[[sources[i]]], dsts_by_channel=[[targets[i]]],  #: ring
                                        replica_group=ring, channel_ids=[0])  #: ring
  #: ring
  #: ring
