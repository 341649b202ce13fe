#pragma once
// CachedAttention on a GPU, called with host tensors: operands are placed in memory of the GPU, and results copied back.

#include <span>
#include <utility>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/backend/cuda/cuda.hpp"
#include "support/cuda_memory.hpp"

namespace annulus_test {

template <annulus::Communicator Ring>
class PlacedCachedAttention {
  using Space = annulus::CudaMemory;
  using Sequences = std::span<annulus::Index const>;
  template <class T>
  using Cache = annulus::KvCache<T, annulus::CudaBackend>;
  template <class T>
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  template <class T>
  using Given = annulus::CachedOperands<T>;

  /// Results as CachedForward has them.
  template <class T>
  struct HostForward {
    Tensor<T> output;
    Eigen::Tensor<annulus::Accumulator<T>, 3, Eigen::RowMajor> lse;
  };

 public:
  PlacedCachedAttention(Ring& ring, annulus::CudaBackend& backend, annulus::CachedOptions const& options,
                        annulus::EveryPair = {})
      : attention_(ring, backend, without_check(options)) {}

  template <class T>
  void append(Cache<T>& cache, Sequences sequences, Tensor<T> const& k, Tensor<T> const& v,
              annulus::AppendOperands<> given) {
    Placed<std::int32_t, 2> ids(given.key_documents);
    attention_.template append<T>(cache, sequences, place(k), place(v), {.key_documents = ids.view()});
  }
  template <class T>
  void append_shards(Cache<T>& cache, Sequences sequences, Tensor<T> const& k, Tensor<T> const& v,
                     annulus::AppendOperands<> given) {
    Placed<std::int32_t, 2> ids(given.key_documents);
    attention_.template append_shards<T>(cache, sequences, place(k), place(v), {.key_documents = ids.view()});
  }
  template <class T>
  HostForward<T> decode(Cache<T>& cache, Sequences sequences, Tensor<T> const& q, Given<T> given) {
    return with_operands(given, [&](auto const& operands) {
      return attention_.template decode<T>(cache, sequences, place(q), operands);
    });
  }
  template <class T>
  HostForward<T> decode(Cache<T>& cache, Sequences sequences, Tensor<T> const& q, Tensor<T> const& k,
                        Tensor<T> const& v, Given<T> given) {
    return with_operands(given, [&](auto const& operands) {
      return attention_.template decode<T>(cache, sequences, place(q), place(k), place(v), operands);
    });
  }
  template <class T>
  HostForward<T> prefill(Cache<T>& cache, Sequences sequences, Tensor<T> const& q, Given<T> given) {
    return with_operands(given, [&](auto const& operands) {
      return attention_.template prefill<T>(cache, sequences, place(q), operands);
    });
  }

 private:
  /// An optional operand in memory of the GPU.
  template <class T, std::size_t N>
  class Placed {
   public:
    template <class Optional>
    explicit Placed(Optional& given) {
      if constexpr (requires { given.convert("", converted_); }) given.convert("an operand", converted_);
      if (given) tensor_.push_back(CudaPlacement::place(*given));
    }
    annulus::OptionalView<T, N, Space> view() const {
      if (tensor_.empty()) return {};
      return tensor_.front().view();
    }
    CudaTensor<T, N> const& tensor() const { return tensor_.front(); }

   private:
    std::vector<std::byte> converted_;
    std::vector<CudaTensor<T, N>> tensor_;
  };

  static annulus::CachedOptions without_check(annulus::CachedOptions options) {
    options.checked = false;  // accepted in host memory alone
    return options;
  }
  template <class T>
  static CudaTensor<T, 4> place(Tensor<T> const& tensor) {
    return CudaPlacement::place(annulus::TensorView<T const, 4>(annulus::view_of(tensor)));
  }

  /// The results of call(operands).
  template <class T, class Call>
  static HostForward<T> with_operands(Given<T>& given, Call const& call) {
    Placed<annulus::Accumulator<T>, 2> const sinks(given.sinks);
    Placed<T, 4> const bias(given.bias);
    Placed<bool, 4> const mask(given.mask);
    Placed<std::int32_t, 2> const query_ids(given.query_documents), key_ids(given.key_documents);
    annulus::CachedOperands<T, Space> operands{.bias = bias.view(),
                                               .mask = mask.view(),
                                               .query_documents = query_ids.view(),
                                               .key_documents = key_ids.view(),
                                               .query_offsets = given.query_offsets};
    if (given.sinks) operands.sinks = sinks.tensor();
    auto const result = call(operands);
    HostForward<T> host;
    copy(result.output, host.output);
    copy(result.lse, host.lse);
    return host;
  }
  template <class From, class To>
  static void copy(From const& from, To& to) {
    auto const view = CudaPlacement::host(from.view());
    to.resize(view.extents());
    annulus::detail::copy_elements(view, annulus::view_of(to));
  }

  annulus::CachedAttention<Ring, annulus::CudaBackend> attention_;
};

}  // namespace annulus_test
