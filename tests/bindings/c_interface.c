/* The C interface from C99: results against dense attention, errors, plan, positions. */

#include <string.h>

#include "dense.h"

static problem whole;

static int message_has(char const* text) { return strstr(annulus_last_error().message, text) != NULL; }

static void test_version_and_names(void) {
  REQUIRE(strcmp(annulus_version(), EXPECTED_VERSION) == 0);
  REQUIRE(annulus_last_error().status == ANNULUS_SUCCESS && annulus_last_error().message[0] == 0);
  REQUIRE(strcmp(annulus_status_name(ANNULUS_SHAPE_ERROR), "ANNULUS_SHAPE_ERROR") == 0);
  REQUIRE(strcmp(annulus_status_name((annulus_status)99), "not a status of annulus") == 0);
}

static void test_one_rank(void) {
  annulus_ring* ring = NULL;
  annulus_options const options = causal_options(ANNULUS_CONTIGUOUS);
  fill_problem(&whole);
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  REQUIRE(annulus_ring_rank(ring) == 0 && annulus_ring_size(ring) == 1);
  REQUIRE(attend_on_rank(ring, &options, &whole) == ANNULUS_SUCCESS);
  REQUIRE(greatest_error(&whole) < bound);
  whole.dk[5] += 1e-4f;
  REQUIRE(greatest_error(&whole) > bound);
  annulus_ring_free(ring);
}

static annulus_status attend(annulus_ring* ring, void* options) { return attend_on_rank(ring, options, &whole); }

static void test_simulated_ring(void) {
  int64_t const lengths[3] = {20, 0, 17};
  int64_t positions[n];
  for (int i = 0; i < n; ++i) positions[i] = (i * 5 + 3) % n;
  for (int kind = ANNULUS_CONTIGUOUS; kind <= ANNULUS_EXPLICIT_MAP; ++kind) {
    annulus_options options = causal_options((annulus_sharding_kind)kind);
    if (kind == ANNULUS_STRIPED) options.sharding.block = 3;
    if (kind == ANNULUS_EXPLICIT_MAP) {
      options.sharding.map_ranks = 3;
      options.sharding.map_query_lengths = lengths;
      options.sharding.map_queries = positions;
    }
    memset(&whole, 0, sizeof whole);
    fill_problem(&whole);
    REQUIRE(annulus_run_ring(3, attend, &options, NULL) == ANNULUS_SUCCESS);
    REQUIRE(greatest_error(&whole) < bound);
  }
}

/* q and output with the heads before the sequence in memory, k backwards in memory. */
static void test_strides(void) {
  static float q[q_size], k[kv_size], output[q_size];
  annulus_ring* ring = NULL;
  annulus_attention* attention = NULL;
  annulus_options const options = causal_options(ANNULUS_CONTIGUOUS);
  annulus_tensor tq = rows_of(q, n, heads), tk = rows_of(k + kv_size - kv_heads * dim, n, kv_heads);
  annulus_tensor tout = rows_of(output, n, heads), dense = rows_of(whole.output, n, heads);
  annulus_tensor const plain_q = rows_of(whole.q, n, heads), plain_k = rows_of(whole.k, n, kv_heads),
                       v = rows_of(whole.v, n, kv_heads), lse = statistics_of(whole.lse, n);
  tq.strides[1] = tout.strides[1] = dim;
  tq.strides[2] = tout.strides[2] = n * dim;
  tk.strides[1] = -kv_heads * dim;
  fill_problem(&whole);
  for (int i = 0; i < n; ++i)
    for (int d = 0; d < dim; ++d) {
      for (int h = 0; h < heads; ++h) q[(h * n + i) * dim + d] = whole.q[(i * heads + h) * dim + d];
      for (int h = 0; h < kv_heads; ++h)
        k[((n - 1 - i) * kv_heads + h) * dim + d] = whole.k[(i * kv_heads + h) * dim + d];
    }
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &plain_q, &plain_k, &v, NULL, &dense, &lse, NULL) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &tq, &tk, &v, NULL, &tout, &lse, NULL) == ANNULUS_SUCCESS);
  for (int i = 0; i < n; ++i)
    for (int h = 0; h < heads; ++h)
      REQUIRE(memcmp(output + (h * n + i) * dim, whole.output + (i * heads + h) * dim, dim * sizeof(float)) == 0);
  annulus_ring_free(ring);
  REQUIRE(annulus_forward(attention, &tq, &tk, &v, NULL, &tout, &lse, NULL) == ANNULUS_ERROR);
  REQUIRE(message_has("the ring of this attention object has been freed"));
  annulus_attention_free(attention);
}

static void test_refused_arguments(void) {
  annulus_ring* ring = NULL;
  annulus_attention* attention = NULL;
  annulus_options options = causal_options(ANNULUS_CONTIGUOUS);
  annulus_tensor const q = rows_of(whole.q, n, heads), v = rows_of(whole.v, n, kv_heads),
                       output = rows_of(whole.output, n, heads), lse = statistics_of(whole.lse, n);
  annulus_tensor k = rows_of(whole.k, n - 1, kv_heads);
  REQUIRE(annulus_ring_self(NULL) == ANNULUS_UNSUPPORTED_ERROR && message_has("ring is NULL"));
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  options.causal = 2;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("causal is 2; accepted: 0 and 1"));
  options.causal = 1;
  options.sharding.block = 4;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_UNSUPPORTED_ERROR);
  options.sharding.block = 1;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &q, &k, &v, NULL, &output, &lse, NULL) == ANNULUS_SHAPE_ERROR);
  REQUIRE(annulus_last_error().status == ANNULUS_SHAPE_ERROR && message_has("v has extents"));
  k = rows_of(whole.k, n, kv_heads);
  k.dtype = ANNULUS_FLOAT64;
  REQUIRE(annulus_forward(attention, &q, &k, &v, NULL, &output, &lse, NULL) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("k has elements of float64; accepted: float32, the type of q"));
  k.dtype = (annulus_dtype)77;
  REQUIRE(annulus_forward(attention, &k, &k, &v, NULL, &output, &lse, NULL) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("q has elements of a value that is no annulus_dtype"));
  k = rows_of(whole.k, n, kv_heads);
  REQUIRE(annulus_forward(attention, &q, &k, NULL, NULL, &output, &lse, NULL) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(annulus_forward(attention, &q, &k, &lse, NULL, &output, &lse, NULL) == ANNULUS_SHAPE_ERROR);
  REQUIRE(message_has("v has 3 axes; expected 4"));
  REQUIRE(annulus_forward(attention, &q, &k, &v, NULL, &output, &lse, NULL) == ANNULUS_SUCCESS);
  annulus_attention_free(attention);
  annulus_ring_free(ring);
}

/* A backward pass with other optional operands than those of the forward pass. */
static void test_operands_of_the_forward_pass(void) {
  annulus_ring* ring = NULL;
  annulus_attention* attention = NULL;
  annulus_tensor const q = rows_of(whole.q, n, heads), k = rows_of(whole.k, n, kv_heads),
                       v = rows_of(whole.v, n, kv_heads), dout = rows_of(whole.dout, n, heads),
                       output = rows_of(whole.output, n, heads), lse = statistics_of(whole.lse, n);
  annulus_gradients gradients = {0};
  annulus_operands operands = {0};
  gradients.dq = rows_of(whole.dq, n, heads);
  gradients.dk = rows_of(whole.dk, n, kv_heads);
  gradients.dv = rows_of(whole.dv, n, kv_heads);
  REQUIRE(annulus_given_operands(NULL) == ANNULUS_GIVEN_QKV);
  operands.bias = operands.sinks = lse;
  REQUIRE(annulus_given_operands(&operands) == ANNULUS_GIVEN_QKV + ANNULUS_GIVEN_BIAS + ANNULUS_GIVEN_SINKS);
  operands.mask = operands.query_documents = operands.key_documents = lse;
  REQUIRE(annulus_given_operands(&operands) == 31);
  operands.joint_keys = operands.joint_values = k;
  REQUIRE(annulus_given_operands(&operands) == 63);

  memset(&operands, 0, sizeof operands);
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  REQUIRE(annulus_attention_create(ring, NULL, &attention) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &q, &k, &v, &operands, &output, &lse, NULL) == ANNULUS_SUCCESS);
  operands.forward_given = ANNULUS_GIVEN_QKV;
  REQUIRE(annulus_backward(attention, &dout, &output, &lse, NULL, &q, &k, &v, &operands, &gradients) ==
          ANNULUS_SUCCESS);
  operands.forward_given = ANNULUS_GIVEN_QKV + ANNULUS_GIVEN_MASK;
  REQUIRE(annulus_backward(attention, &dout, &output, &lse, NULL, &q, &k, &v, &operands, &gradients) ==
          ANNULUS_SHAPE_ERROR);
  REQUIRE(message_has("optional operands of the backward pass: none; of the forward pass: mask"));
  operands.forward_given = 64;
  REQUIRE(annulus_backward(attention, &dout, &output, &lse, NULL, &q, &k, &v, &operands, &gradients) ==
          ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("forward_given is 64; accepted: 0, or a result of annulus_given_operands()"));
  annulus_attention_free(attention);
  annulus_ring_free(ring);
}

/* The rows of k and v from `begin` on. */
static annulus_tensor keys_from(float* x, int begin, int count) {
  return rows_of(x + begin * kv_heads * dim, count, kv_heads);
}

static float greatest_difference(float const* a, float const* b, int count) {
  float worst = 0;
  for (int i = 0; i < count; ++i) {
    float const difference = fabsf(a[i] - b[i]);
    if (isnan(difference)) return difference;
    worst = fmaxf(worst, difference);
  }
  return worst;
}

/* Output and gradients of attention without a mask, on one rank, whose first `joint` keys are joint keys. */
static void attend_with_joint_keys(problem* p, int joint) {
  annulus_ring* ring = NULL;
  annulus_attention* attention = NULL;
  annulus_operands operands = {0};
  annulus_gradients gradients = {0};
  annulus_tensor const q = rows_of(p->q, n, heads), dout = rows_of(p->dout, n, heads),
                       output = rows_of(p->output, n, heads), lse = statistics_of(p->lse, n),
                       k = keys_from(p->k, joint, n - joint), v = keys_from(p->v, joint, n - joint);
  gradients.dq = rows_of(p->dq, n, heads);
  gradients.dk = keys_from(p->dk, joint, n - joint);
  gradients.dv = keys_from(p->dv, joint, n - joint);
  if (joint > 0) {
    operands.joint_keys = keys_from(p->k, 0, joint);
    operands.joint_values = keys_from(p->v, 0, joint);
    gradients.d_joint_keys = keys_from(p->dk, 0, joint);
    gradients.d_joint_values = keys_from(p->dv, 0, joint);
  }
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  REQUIRE(annulus_attention_create(ring, NULL, &attention) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &q, &k, &v, &operands, &output, &lse, NULL) == ANNULUS_SUCCESS);
  operands.forward_given = annulus_given_operands(&operands);
  REQUIRE(annulus_backward(attention, &dout, &output, &lse, NULL, &q, &k, &v, &operands, &gradients) ==
          ANNULUS_SUCCESS);
  memset(&operands.joint_values, 0, sizeof operands.joint_values);
  if (joint > 0) {
    REQUIRE(annulus_forward(attention, &q, &k, &v, &operands, &output, &lse, NULL) == ANNULUS_SHAPE_ERROR);
    REQUIRE(message_has("joint_keys are given without joint_values"));
  }
  annulus_attention_free(attention);
  annulus_ring_free(ring);
}

static void test_joint_keys(void) {
  static problem joined;
  fill_problem(&whole);
  fill_problem(&joined);
  attend_with_joint_keys(&whole, 0);
  attend_with_joint_keys(&joined, 9);
  REQUIRE(greatest_difference(whole.output, joined.output, q_size) < 1e-5f);
  REQUIRE(greatest_difference(whole.dq, joined.dq, q_size) < 1e-5f);
  REQUIRE(greatest_difference(whole.dk, joined.dk, kv_size) < 1e-5f);
  REQUIRE(greatest_difference(whole.dv, joined.dv, kv_size) < 1e-5f);
}

/* Blocks of 10 queries x 20 keys, of which those of the first 20 keys are visible: attention over these keys. */
static void test_block_mask(void) {
  static float expected[q_size];
  uint8_t visible[8];
  annulus_ring* ring = NULL;
  annulus_attention* attention = NULL;
  annulus_options options = annulus_default_options();
  annulus_tensor const q = rows_of(whole.q, n, heads), few_k = keys_from(whole.k, 0, 20),
                       few_v = keys_from(whole.v, 0, 20), k = rows_of(whole.k, n, kv_heads),
                       v = rows_of(whole.v, n, kv_heads), dense = rows_of(expected, n, heads),
                       output = rows_of(whole.output, n, heads), lse = statistics_of(whole.lse, n);
  for (int block = 0; block < 8; ++block) visible[block] = block % 2 == 0;
  REQUIRE(annulus_ring_self(&ring) == ANNULUS_SUCCESS);
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_SUCCESS);
  REQUIRE(annulus_forward(attention, &q, &few_k, &few_v, NULL, &dense, &lse, NULL) == ANNULUS_SUCCESS);
  annulus_attention_free(attention);
  options.blocks.query_block = 10;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("visible is NULL"));
  options.blocks.key_block = 20;
  options.blocks.query_blocks = 4;
  options.blocks.visible = visible;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_SHAPE_ERROR);
  REQUIRE(message_has("blocks: 4 x 0 blocks"));
  options.blocks.key_blocks = 2;
  REQUIRE(annulus_attention_create(ring, &options, &attention) == ANNULUS_SUCCESS);
  memset(visible, 1, sizeof visible); /* they have been copied */
  REQUIRE(annulus_forward(attention, &q, &k, &v, NULL, &output, &lse, NULL) == ANNULUS_SUCCESS);
  REQUIRE(greatest_difference(expected, whole.output, q_size) < 1e-5f);
  annulus_attention_free(attention);
  annulus_ring_free(ring);
}

/* Without limits all schedules take the same time, and the first, the ring, is taken: it does not send the fewest bytes. */
static void test_rates(void) {
  annulus_plan_request request = {0};
  annulus_options options = annulus_default_options();
  annulus_plan_totals ring, fewest, fastest;
  annulus_plan* plan = NULL;
  request.dtype = ANNULUS_FLOAT32;
  request.ranks = 8;
  request.batch = 1;
  request.query_heads = request.kv_heads = 8;
  request.head_dim = request.value_dim = 64;
  request.queries = request.keys = 1024;
  annulus_plan_totals* const totals[3] = {&ring, &fewest, &fastest};
  for (int i = 0; i < 3; ++i) {
    options.schedule = i == 0 ? ANNULUS_SCHEDULE_RING : ANNULUS_SCHEDULE_AUTOMATIC;
    options.has_rates = i == 2;
    REQUIRE(annulus_plan_create(&request, &options, &plan) == ANNULUS_SUCCESS);
    REQUIRE(annulus_plan_get_totals(plan, totals[i]) == ANNULUS_SUCCESS);
    annulus_plan_free(plan);
  }
  REQUIRE(fewest.bytes_sent < ring.bytes_sent && fastest.bytes_sent == ring.bytes_sent);
  options.rates.near_link.bandwidth = 1e9;
  REQUIRE(annulus_plan_create(&request, &options, &plan) == ANNULUS_SUCCESS);
  REQUIRE(annulus_plan_get_totals(plan, &fastest) == ANNULUS_SUCCESS && fastest.bytes_sent < ring.bytes_sent);
  annulus_plan_free(plan);
  options.rates.near_link.bandwidth = -1;
  REQUIRE(annulus_plan_create(&request, &options, &plan) == ANNULUS_UNSUPPORTED_ERROR &&
          message_has("bandwidth is -1"));
}

typedef struct outcome {
  annulus_status status[3];
  char message[3][256];
  annulus_status again;
} outcome;

/* Rank 1 passes keys of another type, which all ranks refuse, and then the right ones. */
static annulus_status refuse_on_rank_1(annulus_ring* ring, void* context) {
  outcome* const seen = context;
  int const rank = annulus_ring_rank(ring);
  float* const own = calloc(q_size, sizeof *own);
  annulus_attention* attention = NULL;
  annulus_tensor const q = rows_of(own, 2, heads), lse = statistics_of(own, 2);
  annulus_tensor k = rows_of(own, 2, kv_heads);
  annulus_tensor const output = rows_of(own + q_size / 2, 2, heads);
  if (rank == 1) k.dtype = ANNULUS_BFLOAT16;
  if (annulus_attention_create(ring, NULL, &attention) != ANNULUS_SUCCESS) return ANNULUS_ERROR;
  seen->status[rank] = annulus_forward(attention, &q, &k, &k, NULL, &output, &lse, NULL);
  strncpy(seen->message[rank], annulus_last_error().message, 255);
  k.dtype = ANNULUS_FLOAT32;
  annulus_status const again = annulus_forward(attention, &q, &k, &k, NULL, &output, &lse, NULL);
  if (rank == 2) seen->again = again;
  annulus_attention_free(attention);
  free(own);
  return ANNULUS_SUCCESS;
}

static annulus_status fail_on_rank_2(annulus_ring* ring, void* context) {
  annulus_error const own = {ANNULUS_OTHER_ERROR, -1, -1, -1, "no data for rank 2"};
  if (annulus_ring_rank(ring) == 2) return annulus_set_error(&own);
  return attend_on_rank(ring, context, &whole);
}

static annulus_status fail_without_error(annulus_ring* ring, void* context) {
  (void)context;
  return annulus_ring_rank(ring) == 0 ? ANNULUS_ERROR : ANNULUS_SUCCESS;
}

static void test_failing_ranks(void) {
  static outcome seen;
  annulus_options options = causal_options(ANNULUS_ZIGZAG);
  annulus_ring_options ring_options = annulus_default_ring_options();
  REQUIRE(annulus_run_ring(3, refuse_on_rank_1, &seen, NULL) == ANNULUS_SUCCESS);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(seen.status[rank] == ANNULUS_UNSUPPORTED_ERROR);
    REQUIRE(strcmp(seen.message[rank], "rank 1: k has elements of bfloat16; accepted: float32, the type of q") == 0);
  }
  REQUIRE(seen.again == ANNULUS_SUCCESS);
  REQUIRE(annulus_run_ring(3, fail_on_rank_2, &options, NULL) == ANNULUS_OTHER_ERROR);
  REQUIRE(annulus_last_error().rank == 2 && strcmp(annulus_last_error().message, "no data for rank 2") == 0);
  REQUIRE(annulus_run_ring(2, fail_without_error, NULL, NULL) == ANNULUS_ERROR);
  REQUIRE(message_has("the function of rank 0 returned status 1"));
  ring_options.timeout_ms = 0;
  REQUIRE(annulus_run_ring(2, fail_without_error, NULL, &ring_options) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(message_has("timeout is 0 ms"));
  REQUIRE(annulus_run_ring(2, NULL, NULL, NULL) == ANNULUS_UNSUPPORTED_ERROR);
}

/* A gradient of the bias that heads share is summed in float; of one that they do not, it is written without a buffer. */
static void test_memory_of_bias_gradient(annulus_plan_request request) {
  annulus_rank_plan ranks[4];
  request.pass = ANNULUS_PASS_BACKWARD;
  request.bias_batch = 1;
  for (int i = 0; i < 4; ++i) {
    annulus_plan* plan = NULL;
    request.bias_heads = i < 2 ? request.query_heads : 1;
    request.bias_gradient = i % 2;
    REQUIRE(!annulus_plan_create(&request, NULL, &plan) && !annulus_plan_get_rank(plan, 0, &ranks[i]));
    annulus_plan_free(plan);
  }
  REQUIRE(ranks[1].peak_buffer_bytes == ranks[0].peak_buffer_bytes);
  REQUIRE(ranks[3].peak_buffer_bytes == ranks[2].peak_buffer_bytes + (131072ll / 8) * 131072 * 4);
}

static void test_plan(void) {
  annulus_plan_request request = {0};
  annulus_plan_totals totals;
  annulus_rank_plan rank;
  annulus_step_plan step;
  annulus_plan* plan = NULL;
  int64_t sent = 0;
  request.pass = ANNULUS_PASS_FORWARD;
  request.dtype = ANNULUS_BFLOAT16;
  request.ranks = 8;
  request.batch = 1;
  request.query_heads = 32;
  request.kv_heads = 8;
  request.head_dim = request.value_dim = 128;
  request.queries = request.keys = 131072;
  REQUIRE(annulus_plan_create(&request, NULL, &plan) == ANNULUS_SUCCESS);
  REQUIRE(annulus_plan_get_totals(plan, &totals) == ANNULUS_SUCCESS);
  REQUIRE(totals.ranks == 8 && totals.steps == 8 && totals.rotation == ANNULUS_ROTATION_KEYS && totals.imbalance == 1);
  REQUIRE(annulus_plan_get_rank(plan, 3, &rank) == ANNULUS_SUCCESS);
  REQUIRE(rank.queries == 16384 && rank.bytes_sent == 448ll << 20 && totals.bytes_sent == 8 * rank.bytes_sent);
  for (int i = 0; i < totals.steps; ++i) {
    REQUIRE(annulus_plan_get_step(plan, 3, i, &step) == ANNULUS_SUCCESS);
    REQUIRE(step.owner == (8 + 3 - i) % 8 && step.visible_pairs == 16384ll * 16384);
    sent += step.prefetched_bytes + step.carried_bytes;
  }
  REQUIRE(sent == rank.bytes_sent);
  REQUIRE(annulus_plan_get_rank(plan, 8, &rank) == ANNULUS_SHAPE_ERROR);
  annulus_plan_free(plan);
  test_memory_of_bias_gradient(request);
  request.kv_heads = 5;
  REQUIRE(annulus_plan_create(&request, NULL, &plan) == ANNULUS_SHAPE_ERROR && message_has("multiple of kv_heads"));
}

static void test_positions(void) {
  annulus_sharding sharding = {0};
  int64_t lengths[2], positions[n];
  sharding.kind = ANNULUS_STRIPED;
  sharding.block = 1;
  REQUIRE(annulus_shard_lengths(&sharding, ANNULUS_KEYS, 2, n, lengths) == ANNULUS_SUCCESS);
  REQUIRE(lengths[0] == 19 && lengths[1] == 18);
  REQUIRE(annulus_shard_positions(&sharding, ANNULUS_KEYS, 1, 2, lengths, positions) == ANNULUS_SUCCESS);
  for (int i = 0; i < 18; ++i) REQUIRE(positions[i] == 2 * i + 1);
  REQUIRE(annulus_shard_positions(&sharding, ANNULUS_KEYS, 2, 2, lengths, positions) == ANNULUS_SHAPE_ERROR);
  sharding.block = 0;
  REQUIRE(annulus_shard_lengths(&sharding, ANNULUS_KEYS, 2, n, lengths) == ANNULUS_UNSUPPORTED_ERROR);
}

static void test_balanced_map(void) {
  // Two documents: causal rows see 1 to 24 and 1 to 13 keys, 391 in all.
  int64_t const documents[2] = {24, 13};
  int64_t lengths[2], positions[n], work[2] = {0, 0};
  int owned[n] = {0}, place = 0;
  annulus_options options = annulus_default_options();
  options.causal = 1;
  REQUIRE(annulus_balanced_map(documents, 2, &options, 2, 1, lengths, positions) == ANNULUS_SUCCESS);
  REQUIRE(lengths[0] + lengths[1] == n && (lengths[0] == 18 || lengths[0] == 19));
  for (int rank = 0; rank < 2; ++rank)
    for (int row = 0; row < lengths[rank]; ++row) {
      int64_t const position = positions[place++];
      REQUIRE(position >= 0 && position < n && owned[position]++ == 0);
      work[rank] += position < 24 ? position + 1 : position - 23;
    }
  REQUIRE(work[0] + work[1] == 391 && work[0] >= 190 && work[0] <= 201);

  annulus_sharding sharding = {0};
  sharding.kind = ANNULUS_EXPLICIT_MAP;
  sharding.map_ranks = 2;
  sharding.map_query_lengths = lengths;
  sharding.map_queries = positions;
  int64_t found[2];
  REQUIRE(annulus_shard_lengths(&sharding, ANNULUS_KEYS, 2, n, found) == ANNULUS_SUCCESS && found[1] == lengths[1]);

  REQUIRE(annulus_balanced_map(documents, 2, NULL, 0, 0, lengths, positions) == ANNULUS_SHAPE_ERROR);
  REQUIRE(annulus_balanced_map(documents, 2, NULL, 2, -1, lengths, positions) == ANNULUS_UNSUPPORTED_ERROR &&
          message_has("block is -1"));
  REQUIRE(annulus_balanced_map(NULL, 2, NULL, 2, 0, lengths, positions) != ANNULUS_SUCCESS);
}

int main(void) {
  test_version_and_names();
  test_one_rank();
  test_simulated_ring();
  test_strides();
  test_refused_arguments();
  test_operands_of_the_forward_pass();
  test_joint_keys();
  test_block_mask();
  test_rates();
  test_failing_ranks();
  test_plan();
  test_positions();
  test_balanced_map();
  puts("the C interface agrees with dense attention");
  return 0;
}
