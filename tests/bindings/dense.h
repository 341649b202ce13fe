#ifndef ANNULUS_TESTS_BINDINGS_DENSE_H
#define ANNULUS_TESTS_BINDINGS_DENSE_H
/* Dense attention in double, from the definition, as reference of the C tests; and their checks. */

#include <annulus/annulus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, \
              annulus_last_error().message);                                                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* Causal attention over n tokens, batch 1: q and output [n, heads, dim], k and v [n, kv_heads, dim], lse [heads, n]. */
enum { n = 37, heads = 4, kv_heads = 2, dim = 8 };
enum { q_size = n * heads * dim, kv_size = n * kv_heads * dim, lse_size = heads * n };

typedef struct problem {
  float q[q_size], k[kv_size], v[kv_size], dout[q_size];
  float output[q_size], lse[lse_size], lse_remainder[lse_size], dq[q_size], dk[kv_size], dv[kv_size];
} problem;

static void fill(float* x, int count, unsigned seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)((double)(seed >> 8) / (1 << 23) - 1);
  }
}

static void fill_problem(problem* p) {
  fill(p->q, q_size, 1);
  fill(p->k, kv_size, 2);
  fill(p->v, kv_size, 3);
  fill(p->dout, q_size, 4);
}

static double dot(float const* a, float const* b) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += (double)a[d] * b[d];
  return sum;
}

/* Greatest difference of the results from those of dense attention. */
static double greatest_error(problem const* p) {
  static double output[q_size], dq[q_size], dk[kv_size], dv[kv_size];
  double const scale = 1 / sqrt((double)dim);
  double worst = 0;
  for (int i = 0; i < q_size; ++i) output[i] = dq[i] = 0;
  for (int i = 0; i < kv_size; ++i) dk[i] = dv[i] = 0;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < n; ++i) {
      double weight[n], sum = 0, delta = 0;
      int const row = (i * heads + h) * dim, kv_head = h / (heads / kv_heads);
      for (int j = 0; j <= i; ++j)
        sum += weight[j] = exp(scale * dot(p->q + row, p->k + (j * kv_heads + kv_head) * dim));
      for (int j = 0; j <= i; ++j) {
        weight[j] /= sum;
        for (int d = 0; d < dim; ++d) output[row + d] += weight[j] * p->v[(j * kv_heads + kv_head) * dim + d];
      }
      for (int d = 0; d < dim; ++d) delta += p->dout[row + d] * output[row + d];
      for (int j = 0; j <= i; ++j) {
        int const key = (j * kv_heads + kv_head) * dim;
        double const dlogit = scale * weight[j] * (dot(p->dout + row, p->v + key) - delta);
        for (int d = 0; d < dim; ++d) {
          dq[row + d] += dlogit * p->k[key + d];
          dk[key + d] += dlogit * p->q[row + d];
          dv[key + d] += weight[j] * p->dout[row + d];
        }
      }
      worst = fmax(worst, fabs(p->lse[h * n + i] - log(sum)));
    }
  for (int i = 0; i < q_size; ++i) worst = fmax(worst, fmax(fabs(p->output[i] - output[i]), fabs(p->dq[i] - dq[i])));
  for (int i = 0; i < kv_size; ++i) worst = fmax(worst, fmax(fabs(p->dk[i] - dk[i]), fabs(p->dv[i] - dv[i])));
  return worst;
}

/* About the rounding of float sums over n terms of size 1. */
static double const bound = 5e-6;

static annulus_tensor rows_of(float* data, int count, int row_heads) {
  int64_t const extents[4] = {1, count, row_heads, dim};
  return annulus_dense(data, ANNULUS_FLOAT32, 4, extents);
}

static annulus_tensor statistics_of(float* data, int count) {
  int64_t const extents[3] = {1, heads, count};
  return annulus_dense(data, ANNULUS_FLOAT32, 3, extents);
}

static annulus_options causal_options(annulus_sharding_kind kind) {
  annulus_options options = annulus_default_options();
  options.causal = 1;
  options.sharding.kind = kind;
  return options;
}

/* Runs forward and backward on the shards of one rank of `whole`, and writes this rank's rows of the results there. */
static annulus_status attend_on_rank(annulus_ring* ring, annulus_options const* options, problem* whole) {
  static int const axis = 1, statistics_axis = 2;
  int const rank = annulus_ring_rank(ring), ranks = annulus_ring_size(ring);
  annulus_sharding const* const sharding = &options->sharding;
  problem* const own = malloc(sizeof *own);
  int64_t* const lengths = malloc((size_t)ranks * sizeof *lengths);
  annulus_attention* attention = NULL;
  annulus_gradients gradients = {0};
  annulus_status status = annulus_shard_lengths(sharding, ANNULUS_QUERIES, ranks, n, lengths);
  int const rows = status == ANNULUS_SUCCESS ? (int)lengths[rank] : 0;

#define CALL(call) \
  if (status == ANNULUS_SUCCESS) status = (call)
  struct {
    float *whole, *own;
    int row_heads;
    annulus_side side;
  } const operands[4] = {{whole->q, own->q, heads, ANNULUS_QUERIES},
                         {whole->k, own->k, kv_heads, ANNULUS_KEYS},
                         {whole->v, own->v, kv_heads, ANNULUS_KEYS},
                         {whole->dout, own->dout, heads, ANNULUS_QUERIES}},
          results[4] = {{whole->output, own->output, heads, ANNULUS_QUERIES},
                        {whole->dq, own->dq, heads, ANNULUS_QUERIES},
                        {whole->dk, own->dk, kv_heads, ANNULUS_KEYS},
                        {whole->dv, own->dv, kv_heads, ANNULUS_KEYS}};
  for (int i = 0; i < 4; ++i) {
    annulus_tensor const from = rows_of(operands[i].whole, n, operands[i].row_heads);
    annulus_tensor const to = rows_of(operands[i].own, rows, operands[i].row_heads);
    CALL(annulus_scatter(sharding, operands[i].side, rank, ranks, axis, &from, &to));
  }

  annulus_tensor const q = rows_of(own->q, rows, heads), k = rows_of(own->k, rows, kv_heads),
                       v = rows_of(own->v, rows, kv_heads), dout = rows_of(own->dout, rows, heads),
                       output = rows_of(own->output, rows, heads), lse = statistics_of(own->lse, rows),
                       remainder = statistics_of(own->lse_remainder, rows);
  gradients.dq = rows_of(own->dq, rows, heads);
  gradients.dk = rows_of(own->dk, rows, kv_heads);
  gradients.dv = rows_of(own->dv, rows, kv_heads);
  CALL(annulus_attention_create(ring, options, &attention));
  CALL(annulus_forward(attention, &q, &k, &v, NULL, &output, &lse, &remainder));
  CALL(annulus_backward(attention, &dout, &output, &lse, &remainder, &q, &k, &v, NULL, &gradients));
  annulus_attention_free(attention);

  for (int i = 0; i < 4; ++i) {
    annulus_tensor const from = rows_of(results[i].own, rows, results[i].row_heads);
    annulus_tensor const to = rows_of(results[i].whole, n, results[i].row_heads);
    CALL(annulus_gather(sharding, results[i].side, rank, ranks, axis, &from, &to));
  }
  annulus_tensor const whole_lse = statistics_of(whole->lse, n);
  CALL(annulus_gather(sharding, ANNULUS_QUERIES, rank, ranks, statistics_axis, &lse, &whole_lse));
#undef CALL
  free(lengths);
  free(own);
  return status;
}

#endif
