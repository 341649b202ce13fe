#pragma once
// Calls of both passes on one rank of a ring of GPUs, with operands and results at fixed addresses.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"

namespace annulus_test {

/// Calls of both passes of CudaBackend on one rank of a ring, on a stream of the caller.
template <class T, annulus::Communicator C>
class RepeatedCalls {
  using Ids = annulus::DeviceTensor<std::int32_t, 2>;
  using Statistics = annulus::DeviceTensor<annulus::Accumulator<T>, 3>;

 public:
  /// The rank's GPU is current; `ring` must outlive it. documents: with document ids.
  explicit RepeatedCalls(C& ring, bool documents = false)
      : documents_(documents), attention_(ring, backend_, {.mask = annulus::causal()}) {}

  cudaStream_t stream() const { return stream_; }

  /// Other contents of the operands, and none of the results.
  void fill(unsigned seed) {
    std::minstd_rand random(seed);
    for (annulus::DeviceTensor<T>* x : {&q_, &k_, &v_, &dout_})
      set(*x, [&](annulus::Index) { return static_cast<T>(static_cast<float>(random() % 2001) / 1000 - 1); });
    annulus::Index const second = static_cast<annulus::Index>(20 + random() % 30);  // first row of the second document
    set(ids_, [&](annulus::Index row) { return row < second ? 1 : 2; });
    auto const none = [](auto& x) {
      using E = std::remove_pointer_t<decltype(x.data())>;
      set(x, [](annulus::Index) { return std::numeric_limits<E>::quiet_NaN(); });
    };
    for (annulus::DeviceTensor<T>* x : {&output_, &dq_, &dk_, &dv_}) none(*x);
    for (Statistics* x : {&lse_, &lse_remainder_}) none(*x);
  }

  void run() {
    annulus::Operands<T, annulus::CudaMemory> operands;
    if (documents_) operands.query_documents = operands.key_documents = ids_;
    attention_.forward_into(q_, k_, v_, output_, lse_, operands, lse_remainder_);
    attention_.backward_into(dout_, output_, lse_, q_, k_, v_,
                             annulus::GradientViews<T, annulus::CudaMemory>{dq_.view(), dk_.view(), dv_.view()},
                             operands, lse_remainder_);
  }

  /// The bytes of all results.
  std::vector<std::byte> results() const {
    annulus::cuda::detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<std::byte> bytes;
    auto const append = [&](auto const& x) {
      auto const host = annulus::to_host(x);
      auto const* const first = reinterpret_cast<std::byte const*>(host.data());
      bytes.insert(bytes.end(), first, first + sizeof(*host.data()) * static_cast<std::size_t>(host.size()));
    };
    for (annulus::DeviceTensor<T> const* x : {&output_, &dq_, &dk_, &dv_}) append(*x);
    for (Statistics const* x : {&lse_, &lse_remainder_}) append(*x);
    return bytes;
  }

 private:
  template <class E, std::size_t N, class Value>
  static void set(annulus::DeviceTensor<E, N>& x, Value value) {
    std::vector<E> host(static_cast<std::size_t>(x.size()));
    for (annulus::Index i = 0; i < x.size(); ++i) host[static_cast<std::size_t>(i)] = static_cast<E>(value(i));
    annulus::cuda::detail::check(cudaMemcpy(x.data(), host.data(), host.size() * sizeof(E), cudaMemcpyHostToDevice),
                                 "cudaMemcpy");
  }

  static constexpr annulus::Index rows = 70, heads = 4, kv_heads = 2, dim = 64;

  bool documents_;
  annulus::cuda::detail::Stream stream_ = annulus::cuda::detail::make_stream();
  annulus::CudaBackend backend_{annulus::CudaOptions{.stream = stream_}};
  annulus::RingAttention<C, annulus::CudaBackend> attention_;
  annulus::DeviceTensor<T> q_{1, rows, heads, dim}, k_{1, rows, kv_heads, dim}, v_{1, rows, kv_heads, dim},
      dout_{1, rows, heads, dim}, output_{1, rows, heads, dim}, dq_{1, rows, heads, dim}, dk_{1, rows, kv_heads, dim},
      dv_{1, rows, kv_heads, dim};
  Ids ids_{1, rows};
  Statistics lse_{1, heads, rows}, lse_remainder_{1, heads, rows};
};

}  // namespace annulus_test
