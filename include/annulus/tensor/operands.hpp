#pragma once
// Optional operands of a call: bias, boolean mask, document ids and sink logits.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/core/old_name.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// An optional view of an operand. Any tensor of element type T with N axes converts to it.
template <class T, std::size_t N, class Space>
class OptionalView {
 public:
  using View = TensorView<T const, N, Space>;  ///< type of the view

  OptionalView() = default;                        ///< not given
  OptionalView(std::nullopt_t) {}                  ///< not given
  OptionalView(View const& view) : view_(view) {}  ///< given

  /// A view of the tensor, which must outlive it.
  template <TensorLike X>
  requires(std::same_as<ScalarOf<X>, T>&& std::same_as<SpaceOf<X>, Space>&& rank_of<X> == N)
      OptionalView(X const& tensor)
      : view_(view_of(tensor)) {}

  explicit operator bool() const { return view_.has_value(); }  ///< true if given
  View const& operator*() const { return *view_; }              ///< the view, if given
  View const* operator->() const { return &*view_; }            ///< the view, if given

 private:
  std::optional<View> view_;
};

/// An optional view of integers, used as elements of type T: bool (a value other than 0 is true) or std::int32_t (a
/// negative value counts as 0). Takes tensors of T, and in host memory of any integer type.
template <class T, std::size_t N, class Space>
class OptionalIntegers : public OptionalView<T, N, Space> {
  using Base = OptionalView<T, N, Space>;

 public:
  OptionalIntegers() = default;                                      ///< not given
  OptionalIntegers(std::nullopt_t) {}                                ///< not given
  OptionalIntegers(Base const& view) : Base(view) {}                 ///< given or not
  OptionalIntegers(typename Base::View const& view) : Base(view) {}  ///< given

  /// A view of the tensor, which must outlive it.
  template <TensorLike X>
  requires(std::same_as<ScalarOf<X>, T>&& std::same_as<SpaceOf<X>, Space>&& rank_of<X> == N)
      OptionalIntegers(X const& tensor)
      : Base(tensor) {}

  /// A view of integers of another type, which convert() converts.
  template <TensorLike X>
  requires(std::integral<ScalarOf<X>> && !std::same_as<ScalarOf<X>, T> && std::same_as<SpaceOf<X>, Space> &&
           std::same_as<Space, HostMemory> && rank_of<X> == N) OptionalIntegers(X const& tensor)
      : OptionalIntegers(TensorView<ScalarOf<X> const, N, Space>(view_of(tensor))) {}

  /// Rebinds the view to the values converted to T, which `storage` receives, unless they have type T already. Before,
  /// only the extents of the view may be used. Throws UnsupportedError for a value that T cannot hold, and
  /// std::bad_alloc.
  void convert(std::string_view name, std::vector<std::byte>& storage) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!read_row_) return;
      auto const& extents = (*this)->extents();
      TensorView<T, N> target(nullptr, extents);
      storage.resize(static_cast<std::size_t>(target.size()) * sizeof(T));
      target = {reinterpret_cast<T*>(storage.data()), extents};
      Index const count = extents[N - 1];
      for (Index row = 0; row * count < target.size(); ++row) {
        Index offset = 0;
        for (std::size_t a = N - 1, rest = static_cast<std::size_t>(row); a-- > 0;) {
          auto const extent = static_cast<std::size_t>(extents[a]);
          offset += static_cast<Index>(rest % extent) * (*this)->stride(a);
          rest /= extent;
        }
        read_row_(name, source_, offset, (*this)->stride(N - 1), count, target.data() + row * count);
      }
      static_cast<Base&>(*this) = Base(typename Base::View(target));
      read_row_ = nullptr;
    }
  }

 private:
  template <class U>
  explicit OptionalIntegers(TensorView<U const, N, Space> const& view)
      : Base(typename Base::View(reinterpret_cast<T const*>(view.data()), view.extents(), view.strides())),
        source_(view.data()),
        read_row_(&read_row<U>) {}

  /// Reads `count` elements of type U, `stride` apart.
  template <class U>
  static void read_row(std::string_view name, void const* source, Index offset, Index stride, Index count, T* to) {
    U const* const from = static_cast<U const*>(source) + offset;
    for (Index i = 0; i < count; ++i) {
      U const value = from[i * stride];
      if constexpr (std::same_as<T, bool>) {
        to[i] = value != 0;
      } else {
        if constexpr (sizeof(U) >= sizeof(T))
          detail::check<UnsupportedError>(value <= static_cast<U>(std::numeric_limits<T>::max()), name, " holds ",
                                          value, "; accepted: at most ", std::numeric_limits<T>::max());
        to[i] = value > 0 ? static_cast<T>(value) : T(0);
      }
    }
  }

  void const* source_ = nullptr;
  void (*read_row_)(std::string_view, void const*, Index offset, Index stride, Index count, T*) = nullptr;
};

/// Optional sink logits, given as [query_heads] or [query_heads, n]; the view is always [query_heads, n].
template <class T, class Space>
class OptionalSinks : public OptionalView<T, 2, Space> {
 public:
  OptionalSinks() = default;        ///< not given
  OptionalSinks(std::nullopt_t) {}  ///< not given

  /// A view of the tensor, which must outlive it.
  template <TensorLike X>
  requires(std::same_as<ScalarOf<X>, T>&& std::same_as<SpaceOf<X>, Space> && (rank_of<X> == 1 || rank_of<X> == 2))
      OptionalSinks(X const& tensor)
      : OptionalView<T, 2, Space>(two_axes(TensorView<T const, rank_of<X>, Space>(view_of(tensor)))) {}

 private:
  using View = TensorView<T const, 2, Space>;
  static View two_axes(View sinks) { return sinks; }
  static View two_axes(TensorView<T const, 1, Space> sinks) {
    return {sinks.data(), {sinks.extent(0), 1}, {sinks.stride(0), 0}};
  }
};

/// Operands of a call in addition to q, k and v. All ranks must pass the same set of operands.
///   bias            [batch|1, query_heads|1, local_queries, global_keys]  added to the logit; element type of q
///   mask            [batch|1, query_heads|1, local_queries, global_keys]  bool or any integer type; true, or not 0: the
///                   query may see the key
///   query_documents [batch, local_queries], key_documents [batch, local_keys]: document ids of any integer type, both
///                   or none. Equal positive ids see each other; zero and negative ids are padding, which sees and is
///                   seen by nothing. Integers that are not int32 (of a mask: bool) are converted in every call
///   sinks           [query_heads] or [query_heads, n]: sink logits, extra terms of the softmax denominator; equal on
///                   all ranks; element type of lse
///   joint_keys      [batch, n, kv_heads, head_dim], joint_values [batch, n, kv_heads, value_dim]: keys that all ranks
///                   hold, both or none, equal on all ranks; element type of q. Counted once, and visible to every query
///                   but padding: they have no position, so that masks, bias, predicate and dropout do not apply to them
///                   (dropout is refused). The backward pass returns their gradients, summed over all ranks
///   bias_gradient   backward only: also return dbias (it is as large as the bias)
///   call            sequence number of the call, such as a batch or training step, counted by the caller. If ranks
///                   pass different numbers, all throw CommunicationError. Unset: a call that one rank skips is noticed
///                   only if the pass, a shape or an option differs, or at the end of the program
template <Scalar T, class Space = HostMemory>
struct Operands {
  OptionalView<T, 4, Space> bias{};                            ///< [batch|1, query_heads|1, local_queries, global_keys]
  OptionalIntegers<bool, 4, Space> mask{};                     ///< [batch|1, query_heads|1, local_queries, global_keys]
  OptionalIntegers<std::int32_t, 2, Space> query_documents{};  ///< document ids [batch, local_queries]
  detail::OldName<OptionalIntegers<std::int32_t, 2, Space>> query_segments{};  ///< deprecated: query_documents
  OptionalIntegers<std::int32_t, 2, Space> key_documents{};                    ///< document ids [batch, local_keys]
  detail::OldName<OptionalIntegers<std::int32_t, 2, Space>> key_segments{};    ///< deprecated: key_documents
  OptionalSinks<Accumulator<T>, Space> sinks{};  ///< sink logits [query_heads] or [query_heads, n]
  OptionalView<T, 4, Space> joint_keys{};        ///< [batch, n, kv_heads, head_dim]
  OptionalView<T, 4, Space> joint_values{};      ///< [batch, n, kv_heads, value_dim]
  bool bias_gradient = false;                    ///< also compute dbias
  std::optional<Index> call{};                   ///< sequence number of the call
};

namespace detail {

/// Operands type that matches q. An empty struct if q is not a valid operand, so that the pass reports the reason.
template <class Q, class Space>
struct OperandsOfQuery {
  using type = struct None {};
};
template <TensorLike Q, class Space>
requires Scalar<ScalarOf<Q>>
struct OperandsOfQuery<Q, Space> {
  using type = Operands<ScalarOf<Q>, Space>;
};

}  // namespace detail

/// Operands that fit a tensor Q of queries.
template <class Q, class Space>
using OperandsFor = typename detail::OperandsOfQuery<Q, Space>::type;

/// The view with its axes of extent 1 repeated (stride 0) to the requested extents.
template <class T, std::size_t N, class Space>
TensorView<T, N, Space> broadcast(TensorView<T, N, Space> view, std::array<Index, N> const& extents) {
  auto strides = view.strides();
  for (std::size_t a = 0; a < N; ++a)
    if (view.extent(a) == 1 && extents[a] != 1) strides[a] = 0;
  return {view.data(), extents, strides};
}

}  // namespace annulus
