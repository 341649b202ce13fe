// Attention objects and their calls.

#include "annulus/bindings/c/errors.hpp"
#include "annulus/bindings/c/handles.hpp"
#include "annulus/bindings/c/options.hpp"
#include "annulus/bindings/c/tensors.hpp"

using namespace annulus;
using namespace annulus::bindings;

namespace {

/// Throws Error if the ring has been freed.
Passes& passes_of(annulus_attention const* attention) {
  require_given(attention, "attention");
  detail::check<Error>(attention->passes != nullptr,
                       "the ring of this attention object has been freed; accepted: an object on a ring that exists");
  return *attention->passes;
}

/// Calls call(passes), which returns a status.
template <class Call>
annulus_status with_passes(annulus_attention const* attention, Call&& call) {
  Passes* passes = nullptr;
  annulus_status const found = guarded([&] { passes = &passes_of(attention); });
  return found == ANNULUS_SUCCESS ? call(*passes) : found;
}

}  // namespace

annulus_status annulus_attention_create(annulus_ring* ring, annulus_options const* options,
                                        annulus_attention** attention) {
  return guarded([&] {
    require_given(ring, "ring");
    require_given(attention, "attention");
    auto made = std::make_unique<annulus_attention>();
    made->ring = ring;
    made->passes = ring->make_passes(options_of(options), options ? options->threads : 0);
    ring->attentions.push_back(made.get());
    *attention = made.release();
  });
}

void annulus_attention_free(annulus_attention* attention) {
  if (!attention) return;
  if (attention->ring) std::erase(attention->ring->attentions, attention);
  delete attention;
}

int annulus_given_operands(annulus_operands const* operands) {
  int given = ANNULUS_GIVEN_QKV;
  if (!operands) return given;
  if (is_given(operands->bias)) given |= ANNULUS_GIVEN_BIAS;
  if (is_given(operands->mask)) given |= ANNULUS_GIVEN_MASK;
  if (is_given(operands->query_documents)) given |= ANNULUS_GIVEN_DOCUMENTS;
  if (is_given(operands->sinks)) given |= ANNULUS_GIVEN_SINKS;
  if (is_given(operands->joint_keys)) given |= ANNULUS_GIVEN_JOINT;
  return given;
}

annulus_status annulus_forward(annulus_attention* attention, annulus_tensor const* q, annulus_tensor const* k,
                               annulus_tensor const* v, annulus_operands const* operands, annulus_tensor const* output,
                               annulus_tensor const* lse, annulus_tensor const* lse_remainder) {
  return with_passes(attention, [&](Passes& passes) {
    return passes.forward({q, k, v, operands, output, lse, lse_remainder});
  });
}

annulus_status annulus_backward(annulus_attention* attention, annulus_tensor const* dout, annulus_tensor const* output,
                                annulus_tensor const* lse, annulus_tensor const* lse_remainder, annulus_tensor const* q,
                                annulus_tensor const* k, annulus_tensor const* v, annulus_operands const* operands,
                                annulus_gradients const* gradients) {
  return with_passes(attention, [&](Passes& passes) {
    return passes.backward({dout, output, lse, lse_remainder, q, k, v, operands, gradients});
  });
}
