// C interface of whole calls of the library, for hopper_bench.py: both passes on one GPU, on tensors of the caller.

#include "annulus/annulus.hpp"
#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/comm/device_ring.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"
#include "c_status.hpp"

using annulus::CudaMemory;
using annulus::Index;
using T = Eigen::bfloat16;

/// Dense tensors [1, heads, rows, dim], and lse [1, query_heads, rows].
struct BenchCall {
  int rows, query_heads, kv_heads, dim, causal;
  float logit_softcap;
  void *q, *k, *v, *dout, *output, *dq, *dk, *dv;
  float* lse;
  void* stream;
};

namespace {

using Statistics = annulus::TensorView<float, 3, CudaMemory>;

class Calls {
 public:
  explicit Calls(BenchCall const& c)
      : c_(c), lse_(c.lse, {1, c.query_heads, c.rows}), backend_({.stream = static_cast<cudaStream_t>(c.stream)}) {}

  void forward() {
    attention_.forward_into(rows<T const>(c_.q, c_.query_heads), rows<T const>(c_.k, c_.kv_heads),
                            rows<T const>(c_.v, c_.kv_heads), output_, lse_);
  }
  void backward() {
    attention_.backward_into(
        rows<T const>(c_.dout, c_.query_heads), rows<T const>(c_.output, c_.query_heads), lse_,
        rows<T const>(c_.q, c_.query_heads), rows<T const>(c_.k, c_.kv_heads), rows<T const>(c_.v, c_.kv_heads),
        annulus::GradientViews<T, CudaMemory>{rows<T>(c_.dq, c_.query_heads), rows<T>(c_.dk, c_.kv_heads),
                                              rows<T>(c_.dv, c_.kv_heads)});
  }

 private:
  /// As the library has it: [1, rows, heads, dim].
  template <class U>
  annulus::TensorView<U, 4, CudaMemory> rows(void* data, Index heads) const {
    Index const head = Index{c_.rows} * c_.dim;
    return {static_cast<U*>(data), {1, c_.rows, heads, c_.dim}, {heads * head, c_.dim, head, 1}};
  }
  annulus::Options options() const {
    return {.mask = c_.causal ? annulus::causal() : annulus::Mask{}, .logit_softcap = c_.logit_softcap};
  }

  BenchCall c_;
  annulus::TensorView<T, 4, CudaMemory> output_ = rows<T>(c_.output, c_.query_heads);
  Statistics lse_;
  annulus::SelfRing self_;
  annulus::DeviceRing<CudaMemory, annulus::SelfRing> ring_{self_};
  annulus::CudaBackend backend_;
  annulus::RingAttention<annulus::DeviceRing<CudaMemory, annulus::SelfRing>, annulus::CudaBackend> attention_{
      ring_, backend_, options()};
};

}  // namespace

extern "C" {
/// Null after a message on stderr.
void* bench_calls(BenchCall const* call) {
  Calls* calls = nullptr;
  status_of([&] { calls = new Calls(*call); });
  return calls;
}
int bench_calls_forward(void* calls) {
  return status_of([&] { static_cast<Calls*>(calls)->forward(); });
}
int bench_calls_backward(void* calls) {
  return status_of([&] { static_cast<Calls*>(calls)->backward(); });
}
void bench_calls_end(void* calls) { delete static_cast<Calls*>(calls); }
}
