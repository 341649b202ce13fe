/* Types of operands that travel, from C99. */

#include <string.h>

#include "dense.h"

static problem whole;

static annulus_status attend(annulus_ring* ring, void* options) { return attend_on_rank(ring, options, &whole); }

/* The nearest value of bfloat16; of equally near ones the even one. */
static void round_to_bfloat16(float* x, int count) {
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x[i], &bits, sizeof bits);
  }
}

/* Operands that travel as bfloat16 give the bits of operands that have been rounded to it. */
int main(void) {
  static problem on_wire;
  annulus_options options = causal_options(ANNULUS_ZIGZAG);
  options.wire = ANNULUS_WIRE_BFLOAT16;
  fill_problem(&whole);
  REQUIRE(annulus_run_ring(3, attend, &options, NULL) == ANNULUS_SUCCESS);
  REQUIRE(greatest_error(&whole) > bound);
  on_wire = whole;
  options.wire = ANNULUS_WIRE_AS_STORED;
  round_to_bfloat16(whole.q, q_size);
  round_to_bfloat16(whole.k, kv_size);
  round_to_bfloat16(whole.v, kv_size);
  round_to_bfloat16(whole.dout, q_size);
  REQUIRE(annulus_run_ring(3, attend, &options, NULL) == ANNULUS_SUCCESS);
  REQUIRE(greatest_error(&whole) < bound);
  REQUIRE(memcmp(on_wire.output, whole.output, sizeof whole.output) == 0);
  REQUIRE(memcmp(on_wire.lse, whole.lse, sizeof whole.lse) == 0);
  REQUIRE(memcmp(on_wire.dq, whole.dq, sizeof whole.dq) == 0);
  REQUIRE(memcmp(on_wire.dk, whole.dk, sizeof whole.dk) == 0);
  REQUIRE(memcmp(on_wire.dv, whole.dv, sizeof whole.dv) == 0);
  options.wire = (annulus_wire)3;
  REQUIRE(annulus_run_ring(3, attend, &options, NULL) == ANNULUS_UNSUPPORTED_ERROR);
  REQUIRE(strstr(annulus_last_error().message, "wire is 3") != NULL);
  puts("wire types of the C interface round operands once");
  return 0;
}
