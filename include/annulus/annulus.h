#ifndef ANNULUS_ANNULUS_H
#define ANNULUS_ANNULUS_H
/** @file
 * C interface of Annulus: exact ring attention, forward and backward. C99; CMake target annulus::c.
 *
 * Every function that can fail returns an annulus_status, and annulus_last_error() then describes the failure. No C++
 * exception leaves a function. A ring and the attention objects on it are used, and freed, by one thread at a time;
 * different rings, and plans, by different threads. All results are written to memory of the caller. What the options
 * and operands mean is in the documentation of the C++ interface, whose names they have. */

#include <stdint.h>

#if defined(__GNUC__)
#define ANNULUS_API __attribute__((visibility("default")))
#else
#define ANNULUS_API
#endif

/* Enumerations have the size of int. In C++ they then hold any value of int, so that unknown ones can be refused. */
#if defined(__cplusplus)
#define ANNULUS_INT : int
extern "C" {
#else
#define ANNULUS_INT
#endif

/** "major.minor.patch" of the library that runs. */
ANNULUS_API char const* annulus_version(void);

/* ---- Errors ---- */

/** The class of the C++ exception. */
typedef enum annulus_status ANNULUS_INT {
  ANNULUS_SUCCESS = 0,             /**< no failure */
  ANNULUS_ERROR = 1,               /**< annulus::Error: none of the following */
  ANNULUS_SHAPE_ERROR = 2,         /**< extents do not match */
  ANNULUS_UNSUPPORTED_ERROR = 3,   /**< an invalid or unsupported option or operand */
  ANNULUS_COMMUNICATION_ERROR = 4, /**< a peer is lost, late, or was called differently */
  ANNULUS_OUT_OF_MEMORY = 5,       /**< std::bad_alloc */
  ANNULUS_OTHER_ERROR = 6          /**< an exception that is not of the library */
} annulus_status;

/** A failure. */
typedef struct annulus_error {
  annulus_status status; /**< class of the failure */
  int rank;              /**< rank that detected the error, -1: not known */
  int step;              /**< step of the ring, -1: outside a step */
  int neighbour;         /**< rank that was waited for, or that failed, -1: not known */
  char const* message;   /**< valid until the next failure on this thread */
} annulus_error;

/** The last failure on this thread; status ANNULUS_SUCCESS and an empty message if there was none. */
ANNULUS_API annulus_error annulus_last_error(void);
/** Makes `error`, whose message is copied, the last failure on this thread, and returns its status. For a rank function
 * of annulus_run_ring that fails for a reason of its own. */
ANNULUS_API annulus_status annulus_set_error(annulus_error const* error);
/** "ANNULUS_SHAPE_ERROR" and so on. */
ANNULUS_API char const* annulus_status_name(annulus_status status);

/* ---- Tensors ---- */

/** Element type. */
typedef enum annulus_dtype ANNULUS_INT {
  ANNULUS_FLOAT64 = 0,  /**< double */
  ANNULUS_FLOAT32 = 1,  /**< float */
  ANNULUS_FLOAT16 = 2,  /**< IEEE 754, 5 bits of exponent */
  ANNULUS_BFLOAT16 = 3, /**< 8 bits of exponent */
  ANNULUS_BOOL = 4,     /**< 1 byte, 0 or 1 */
  ANNULUS_INT8 = 5,     /**< int8_t */
  ANNULUS_INT16 = 6,    /**< int16_t */
  ANNULUS_INT32 = 7,    /**< int32_t */
  ANNULUS_INT64 = 8,    /**< int64_t */
  ANNULUS_UINT8 = 9,    /**< uint8_t */
  ANNULUS_UINT16 = 10,  /**< uint16_t */
  ANNULUS_UINT32 = 11,  /**< uint32_t */
  ANNULUS_UINT64 = 12   /**< uint64_t */
} annulus_dtype;

/** Memory of the caller, with any strides. num_axes 0, as in a tensor of zeros: the tensor is not given. */
typedef struct annulus_tensor {
  void* data;          /**< not written to where a parameter is an operand */
  annulus_dtype dtype; /**< element type */
  int num_axes;        /**< 1 to 4; 0: not given */
  int64_t extents[4];  /**< by axis */
  int64_t strides[4];  /**< in elements; may be negative or 0 */
} annulus_tensor;

/** A dense tensor, the last axis contiguous. num_axes is 1 to 4; otherwise the result is no tensor: num_axes 0. */
ANNULUS_API annulus_tensor annulus_dense(void* data, annulus_dtype dtype, int num_axes, int64_t const* extents);

/* ---- Sharding ---- */

/** Queries and keys are sharded separately. */
typedef enum annulus_side ANNULUS_INT {
  ANNULUS_QUERIES = 0, /**< rows of q and of the output */
  ANNULUS_KEYS = 1     /**< rows of k and v */
} annulus_side;

/** Assignment of positions to ranks. */
typedef enum annulus_sharding_kind ANNULUS_INT {
  ANNULUS_CONTIGUOUS = 0,  /**< one block per rank, of any lengths */
  ANNULUS_STRIPED = 1,     /**< `block` positions at a time */
  ANNULUS_ZIGZAG = 2,      /**< blocks r and 2 * ranks - 1 - r of 2 * ranks */
  ANNULUS_EXPLICIT_MAP = 3 /**< any position on any rank */
} annulus_sharding_kind;

/** Owner of each position. */
typedef struct annulus_sharding {
  annulus_sharding_kind kind; /**< assignment */
  int64_t block;              /**< striped: 1 or more; otherwise 1 */
  /** Explicit map: rank r owns map_query_lengths[r] queries, their positions one rank after the other in map_queries.
   * Keys are placed like the queries if map_key_lengths is NULL. Other kinds: 0 and NULL. */
  int map_ranks;
  int64_t const* map_query_lengths; /**< [map_ranks] */
  int64_t const* map_queries;       /**< positions of the queries */
  int64_t const* map_key_lengths;   /**< [map_ranks], or NULL */
  int64_t const* map_keys;          /**< positions of the keys, or NULL */
} annulus_sharding;

/** lengths[rank]: number of the `tokens` positions that each of the ranks owns. */
ANNULUS_API annulus_status annulus_shard_lengths(annulus_sharding const* sharding, annulus_side side, int ranks,
                                                 int64_t tokens, int64_t* lengths);
/** Global positions of the lengths[rank] rows of a rank, in the order of its rows. `lengths` of all ranks are those of
 * annulus_shard_lengths; with ANNULUS_CONTIGUOUS any. */
ANNULUS_API annulus_status annulus_shard_positions(annulus_sharding const* sharding, annulus_side side, int rank,
                                                   int ranks, int64_t const* lengths, int64_t* positions);
/** Copies the rows of a rank from a tensor of all positions, which lie along `axis`, to its shard, without
 * communication. Any dtype, the same for both. Every extent of the shard but that along `axis` is the global one. */
ANNULUS_API annulus_status annulus_scatter(annulus_sharding const* sharding, annulus_side side, int rank, int ranks,
                                           int axis, annulus_tensor const* global, annulus_tensor const* shard);
/** Copies a shard to the positions of its rank. */
ANNULUS_API annulus_status annulus_gather(annulus_sharding const* sharding, annulus_side side, int rank, int ranks,
                                          int axis, annulus_tensor const* shard, annulus_tensor const* global);

/* ---- Communicators ---- */

/** One rank of a ring. */
typedef struct annulus_ring annulus_ring;

/** Whether ranks read each other's memory instead of sending messages. */
typedef enum annulus_zero_copy ANNULUS_INT {
  ANNULUS_ZERO_COPY_AUTOMATIC = 0, /**< if the ranks share memory */
  ANNULUS_ZERO_COPY_NEVER = 1,     /**< all bytes are sent as messages */
  ANNULUS_ZERO_COPY_ALWAYS = 2     /**< refused if the ranks do not share memory */
} annulus_zero_copy;

/** Options of a ring. */
typedef struct annulus_ring_options {
  int64_t timeout_ms;          /**< longest wait of a rank, 1 or more */
  annulus_zero_copy zero_copy; /**< default: automatic */
} annulus_ring_options;

/** 10 minutes, automatic. */
ANNULUS_API annulus_ring_options annulus_default_ring_options(void);

/** A ring of one rank, on which ring attention is attention. */
ANNULUS_API annulus_status annulus_ring_self(annulus_ring** ring);

/** The function of one rank. A status other than ANNULUS_SUCCESS fails the rank: the other ranks' waits end with
 * ANNULUS_COMMUNICATION_ERROR. */
typedef annulus_status (*annulus_rank_function)(annulus_ring* ring, void* context);

/** Runs function(ring, context) on `ranks` threads that form a ring, and returns when all have ended. Each thread's ring
 * is freed when its function returns. If a rank fails, returns its status; the last error has its message, and its rank
 * as `rank`. options NULL: the defaults. */
ANNULUS_API annulus_status annulus_run_ring(int ranks, annulus_rank_function function, void* context,
                                            annulus_ring_options const* options);

/** The ranks of an MPI communicator, given by its Fortran handle: MPI_Comm_c2f(comm) in C, comm or comm%MPI_VAL in
 * Fortran, comm.py2f() with mpi4py. Collective; MPI is running. To be freed before MPI_Finalize. Defined in the library
 * annulus_c_mpi (CMake target annulus::c_mpi). options NULL: the defaults. */
ANNULUS_API annulus_status annulus_ring_from_mpi(int communicator, annulus_ring_options const* options,
                                                 annulus_ring** ring);

/** Rank of this end of the ring. */
ANNULUS_API int annulus_ring_rank(annulus_ring const* ring);
/** Number of ranks of the ring. */
ANNULUS_API int annulus_ring_size(annulus_ring const* ring);
/** Leaves the ring. Attention objects on it can only be freed afterwards. NULL, and the rings of annulus_run_ring, are
 * left alone. */
ANNULUS_API void annulus_ring_free(annulus_ring* ring);

/* ---- Attention ---- */

/** The side that travels around the ring. */
typedef enum annulus_rotation ANNULUS_INT {
  ANNULUS_ROTATION_AUTOMATIC = 0, /**< the side that sends fewer bytes */
  ANNULUS_ROTATION_KEYS = 1,      /**< pass-KV */
  ANNULUS_ROTATION_QUERIES = 2    /**< pass-Q */
} annulus_rotation;

/** How rows travel: annulus::Schedule. */
typedef enum annulus_schedule ANNULUS_INT {
  ANNULUS_SCHEDULE_RING = 0,            /**< all rows one way around the ring */
  ANNULUS_SCHEDULE_BOTH_DIRECTIONS = 1, /**< half of the kv heads each way; of an odd number, half of the rows */
  ANNULUS_SCHEDULE_TWO_LEVELS = 2,      /**< heads are exchanged in groups of ranks, rows travel between groups */
  ANNULUS_SCHEDULE_TILES = 3,           /**< queries are gathered in groups of ranks, keys travel between groups */
  ANNULUS_SCHEDULE_ALL_GATHER = 4,      /**< the keys of all ranks are gathered on every rank */
  ANNULUS_SCHEDULE_AUTOMATIC = 5,       /**< the one of the fewest bytes, or of the least time by rates */
  ANNULUS_SCHEDULE_DOUBLE_RING = 6      /**< around the ring of a group of ranks, then to the next group */
} annulus_schedule;

/** Type in which q, k, v and dout of float32 and float64 travel. */
typedef enum annulus_wire ANNULUS_INT {
  ANNULUS_WIRE_AS_STORED = 0, /**< their own */
  ANNULUS_WIRE_BFLOAT16 = 1,  /**< they are rounded to it on every rank */
  ANNULUS_WIRE_HALF = 2       /**< the same; larger values than 65504 become infinite */
} annulus_wire;

/** A link from one rank to another: annulus::LinkRates. */
typedef struct annulus_link {
  double latency;   /**< seconds until the first byte arrives */
  double bandwidth; /**< bytes per second; 0: unlimited */
} annulus_link;

/** Rates of ranks and links: annulus::Rates. */
typedef struct annulus_rates {
  double flops;           /**< per second and rank; 0: unlimited */
  double step_overhead;   /**< seconds that a rank needs for a step without any work */
  annulus_link near_link; /**< between ranks of a group, such as those of a node */
  annulus_link far_link;  /**< between ranks of different groups */
  int group;              /**< consecutive ranks of a group; 0: the near ranks of the ring */
  double overlap;         /**< share of a rank's work during which its messages move; default 1 */
} annulus_rates;

/** annulus::BlockMask: query q may see key k iff visible[q / query_block * key_blocks + k / key_block] is not 0. */
typedef struct annulus_block_mask {
  int64_t query_block;  /**< positions of a block of queries */
  int64_t key_block;    /**< positions of a block of keys */
  int64_t query_blocks; /**< number of blocks of queries */
  int64_t key_blocks;   /**< number of blocks of keys */
  /** [query_blocks, key_blocks]; read when the attention or plan is made. NULL: no block mask */
  uint8_t const* visible;
} annulus_block_mask;

/** annulus::Options and the threads of CpuBackend. Begin with annulus_default_options(). Equal on all ranks, but for
 * `threads`. Flags are 0 or 1. */
typedef struct annulus_options {
  int causal;                 /**< k <= q */
  int64_t window_left;        /**< negative: unbounded, the default */
  int64_t window_right;       /**< the same */
  int64_t sink_tokens;        /**< the first keys, which stay visible outside the window */
  int64_t chunk;              /**< q / chunk == k / chunk; 0: no chunks */
  int has_softmax_scale;      /**< 0: 1 / sqrt(head_dim) */
  double softmax_scale;       /**< if has_softmax_scale */
  double logit_softcap;       /**< c > 0: c * tanh(x / c); 0: no cap */
  double dropout_probability; /**< 0 <= probability < 1 */
  uint64_t dropout_seed;      /**< chooses the pairs that are dropped */
  annulus_sharding sharding;  /**< owner of each position */
  int has_query_offset;       /**< 0: unset */
  int64_t query_offset;       /**< global position of query 0, if has_query_offset */
  annulus_rotation rotation;  /**< side that travels */
  annulus_schedule schedule;  /**< how rows travel */
  int ranks_per_group;        /**< ranks of a group of the schedule; 0: annulus::Options::ranks_per_group */
  annulus_wire wire;          /**< type in which operands travel */
  int reproducible;           /**< the same bits for any number of ranks */
  int64_t reproducible_leaf;  /**< positions of a leaf of a reproducible call, default 1024 */
  int checked;                /**< -1, the default: as the library was built */
  int require_finite;         /**< fail on a result that is not finite */
  int threads;                /**< of this rank; 0, the default: its share of the cores of the node */
  int has_rates;              /**< 0: ANNULUS_SCHEDULE_AUTOMATIC sends the fewest bytes */
  annulus_rates rates;        /**< if has_rates: it takes the least estimated time on these ranks and links */
  annulus_block_mask blocks;  /**< hides blocks of queries x keys */
} annulus_options;

/** The defaults of annulus::Options; threads 0. */
ANNULUS_API annulus_options annulus_default_options(void);

/** Which operands a pass was given, as the sum of those that apply. */
typedef enum annulus_given ANNULUS_INT {
  ANNULUS_GIVEN_QKV = 1,       /**< q, k and v: always */
  ANNULUS_GIVEN_BIAS = 2,      /**< bias */
  ANNULUS_GIVEN_MASK = 4,      /**< mask */
  ANNULUS_GIVEN_DOCUMENTS = 8, /**< query_documents and key_documents */
  ANNULUS_GIVEN_SINKS = 16,    /**< sinks */
  ANNULUS_GIVEN_JOINT = 32     /**< joint_keys and joint_values */
} annulus_given;

/** An explicit map that gives all ranks the same work where documents of these lengths are packed one after another, by
 * the mask of the options (NULL: the defaults; a block mask is refused): lengths[ranks], and the positions, as many as
 * the documents have, of one rank after the other, as annulus_sharding takes them. block 0: about 32 blocks for each
 * rank. */
ANNULUS_API annulus_status annulus_balanced_map(int64_t const* document_lengths, int documents,
                                                annulus_options const* options, int ranks, int64_t block,
                                                int64_t* lengths, int64_t* positions);

/** Operands of a call in addition to q, k and v; all zeros: none. The same ones on all ranks. */
typedef struct annulus_operands {
  annulus_tensor bias;            /**< [batch|1, query_heads|1, local_queries, global_keys], dtype of q */
  annulus_tensor mask;            /**< the same extents; bool or an integer dtype, not 0: visible */
  annulus_tensor query_documents; /**< document ids [batch, local_queries], an integer dtype; <= 0: padding */
  annulus_tensor key_documents;   /**< document ids [batch, local_keys] */
  annulus_tensor sinks;        /**< sink logits [query_heads] or [query_heads, n], dtype of lse; equal on all ranks */
  annulus_tensor joint_keys;   /**< keys that all ranks hold [batch, n, kv_heads, head_dim], dtype of q */
  annulus_tensor joint_values; /**< their values [batch, n, kv_heads, value_dim]; both or none */
  int has_call;                /**< 0: no number */
  int64_t call;                /**< number of the call, compared across ranks */
  /** For a backward pass: annulus_given_operands() of the forward pass's operands. If they are others than those of
   * this call, all ranks fail; 0: not compared. */
  int forward_given;
} annulus_operands;

/** The sum of annulus_given for these operands; NULL: ANNULUS_GIVEN_QKV. Never 0. */
ANNULUS_API int annulus_given_operands(annulus_operands const* operands);

/** Gradients that a backward pass writes. */
typedef struct annulus_gradients {
  annulus_tensor dq, dk, dv;   /**< extents of q, k and v; dtype of q, or of lse */
  annulus_tensor dbias;        /**< optional, with a bias: its extents, dtype of dq; given on all ranks or none */
  annulus_tensor dsinks;       /**< with sink logits: their extents, dtype of lse; summed over the ranks */
  annulus_tensor d_joint_keys; /**< with joint keys: their extents, dtype of dq; summed over the ranks, equal on all */
  annulus_tensor d_joint_values; /**< the same of joint_values */
} annulus_gradients;

/** Attention on a ring, with its plans and buffers. */
typedef struct annulus_attention annulus_attention;

/** A RingAttention with CpuBackend on a ring. Does not communicate; the options are validated by the first call, apart
 * from those that have no C++ value. The first call fixes the shapes. options NULL: the defaults. */
ANNULUS_API annulus_status annulus_attention_create(annulus_ring* ring, annulus_options const* options,
                                                    annulus_attention** attention);
/** Before or after its ring is freed. NULL is accepted. */
ANNULUS_API void annulus_attention_free(annulus_attention* attention);

/** Attention of this rank's queries over the keys of all ranks. Collective. All tensors in the axis order [batch,
 * sequence, heads, dim] (another one: set the strides), q, k, v and output of one floating-point dtype:
 *   q [batch, local_queries, query_heads, head_dim], k [batch, local_keys, kv_heads, head_dim],
 *   v [batch, local_keys, kv_heads, value_dim], output [batch, local_queries, query_heads, value_dim],
 *   lse, lse_remainder [batch, query_heads, local_queries]: float32, with float64 operands float64
 *
 * lse is the natural logarithm. Results must not share memory with operands. operands and lse_remainder may be NULL;
 * pass lse_remainder to both passes if |lse| may be large. Arguments that are invalid on one rank make all ranks
 * fail alike, and leave the ring open. */
ANNULUS_API annulus_status annulus_forward(annulus_attention* attention, annulus_tensor const* q,
                                           annulus_tensor const* k, annulus_tensor const* v,
                                           annulus_operands const* operands, annulus_tensor const* output,
                                           annulus_tensor const* lse, annulus_tensor const* lse_remainder);
/** Gradients of a scalar whose gradient with respect to the output is dout (extents and dtype of output). Output, lse
 * and lse_remainder (or NULL) are those of the forward pass with the same operands. Collective. */
ANNULUS_API annulus_status annulus_backward(annulus_attention* attention, annulus_tensor const* dout,
                                            annulus_tensor const* output, annulus_tensor const* lse,
                                            annulus_tensor const* lse_remainder, annulus_tensor const* q,
                                            annulus_tensor const* k, annulus_tensor const* v,
                                            annulus_operands const* operands, annulus_gradients const* gradients);

/* ---- Plan: steps, bytes and memory of a pass, without data ---- */

/** Forward or backward. */
typedef enum annulus_pass ANNULUS_INT {
  ANNULUS_PASS_FORWARD = 0, /**< output and lse */
  ANNULUS_PASS_BACKWARD = 1 /**< gradients */
} annulus_pass;

/** A pass to be planned. Flags are 0 or 1. */
typedef struct annulus_plan_request {
  annulus_pass pass;                                         /**< forward or backward */
  annulus_dtype dtype;                                       /**< of q */
  int ranks;                                                 /**< of the ring */
  int64_t batch, query_heads, kv_heads, head_dim, value_dim; /**< extents of q, k and v */
  int64_t queries, keys;                                     /**< of all ranks */
  int64_t bias_batch, bias_heads;                            /**< extents of the bias; 0: none */
  int bias_gradient;  /**< flag: dbias is computed, with a gradient of the dtype of q */
  int mask;           /**< flag: a boolean mask is given; where ranks of a group exchange it, of extents [1, 1, ...] */
  int document_ids;   /**< flag: document ids are given */
  int zero_copy;      /**< flag: ranks read each other's memory */
  int64_t sinks;      /**< sink logits per query head */
  int64_t joint_keys; /**< keys that all ranks hold */
} annulus_plan_request;

/** The plan of all ranks. */
typedef struct annulus_plan_totals {
  int ranks;                 /**< of the ring */
  int steps;                 /**< of the pass */
  annulus_rotation rotation; /**< the one chosen */
  int64_t bytes_sent;        /**< by all ranks */
  double imbalance;          /**< largest work of a rank over the mean: 1 is perfect balance */
} annulus_plan_totals;

/** The plan of one rank. */
typedef struct annulus_rank_plan {
  int64_t queries, keys;     /**< of this rank */
  int64_t multiply_adds;     /**< of the whole pass; INT64_MAX where there are more */
  int64_t bytes_sent;        /**< in the whole pass */
  int64_t peak_buffer_bytes; /**< of all buffers of the pass */
} annulus_rank_plan;

/** One step of one rank. */
typedef struct annulus_step_plan {
  int owner;                /**< rank whose rows are worked on */
  int64_t visible_pairs;    /**< per batch item and query head */
  int64_t multiply_adds;    /**< of all batch items and heads; INT64_MAX where there are more */
  int64_t prefetched_bytes; /**< sent ahead of the compute of the step */
  int64_t carried_bytes;    /**< sent after it */
} annulus_step_plan;

/** Steps, bytes and memory of one pass on all ranks. */
typedef struct annulus_plan annulus_plan;

/** Uses the mask, blocks, sharding, query offset, rotation, schedule, group, rates, wire and `checked` (-1: off) of the
 * options (NULL: the defaults). */
ANNULUS_API annulus_status annulus_plan_create(annulus_plan_request const* request, annulus_options const* options,
                                               annulus_plan** plan);
/** The plan of the last call of a pass; ANNULUS_ERROR before the first one. */
ANNULUS_API annulus_status annulus_attention_plan(annulus_attention const* attention, annulus_pass pass,
                                                  annulus_plan** plan);
/** NULL is accepted. */
ANNULUS_API void annulus_plan_free(annulus_plan* plan);
/** The plan of all ranks. */
ANNULUS_API annulus_status annulus_plan_get_totals(annulus_plan const* plan, annulus_plan_totals* totals);
/** The plan of one rank; ANNULUS_SHAPE_ERROR for a rank that the plan lacks. */
ANNULUS_API annulus_status annulus_plan_get_rank(annulus_plan const* plan, int rank, annulus_rank_plan* rank_plan);
/** One step of one rank; ANNULUS_SHAPE_ERROR for a rank or step that the plan lacks. */
ANNULUS_API annulus_status annulus_plan_get_step(annulus_plan const* plan, int rank, int step,
                                                 annulus_step_plan* step_plan);

#undef ANNULUS_INT
#if defined(__cplusplus)
}
#endif

#endif
