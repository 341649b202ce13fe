#pragma once
// The optional operands of a call.

#include <cstdint>
#include <optional>

#include "annulus/core/scalar.hpp"
#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// A view of an operand, or nothing. Any tensor of element type T with N axes converts to it.
template <class T, std::size_t N, class Space>
class OptionalView {
 public:
  using View = TensorView<T const, N, Space>;

  OptionalView() = default;
  OptionalView(std::nullopt_t) {}
  OptionalView(View const& view) : view_(view) {}

  template <TensorLike X>
    requires(std::same_as<ScalarOf<X>, T> && std::same_as<SpaceOf<X>, Space> && rank_of<X> == N)
  OptionalView(X const& tensor) : view_(view_of(tensor)) {}

  explicit operator bool() const { return view_.has_value(); }
  View const& operator*() const { return *view_; }
  View const* operator->() const { return &*view_; }

 private:
  std::optional<View> view_;
};

/// [query_heads] or [query_heads, n] sinks; inside the library always [query_heads, n].
template <class T, class Space>
class OptionalSinks : public OptionalView<T, 2, Space> {
 public:
  OptionalSinks() = default;
  OptionalSinks(std::nullopt_t) {}

  template <TensorLike X>
    requires(std::same_as<ScalarOf<X>, T> && std::same_as<SpaceOf<X>, Space> && (rank_of<X> == 1 || rank_of<X> == 2))
  OptionalSinks(X const& tensor) : OptionalView<T, 2, Space>(two_axes(TensorView<T const, rank_of<X>, Space>(view_of(tensor)))) {}

 private:
  using View = TensorView<T const, 2, Space>;
  static View two_axes(View sinks) { return sinks; }
  static View two_axes(TensorView<T const, 1, Space> sinks) {
    return {sinks.data(), {sinks.extent(0), 1}, {sinks.stride(0), 0}};
  }
};

/// Operands that a call may have, beside q, k and v. All ranks give the same ones.
///   bias            [batch|1, query_heads|1, local_queries, global_keys]  added to the logit; element type of q
///   mask            as bias, bool; true: may be seen
///   query_segments  [batch, local_queries], key_segments [batch, local_keys], int32: equal positive ids see each other,
///                   zero and negative ids are padding that sees and is seen by nothing; both or none
///   sinks           [query_heads] or [query_heads, n], the same on all ranks; logits that take part in the
///                   normalisation alone; element type of lse
///   bias_gradient   backward only: return dbias too (it is as large as the bias)
///   call            which call this is, as the caller counts them: the number of a batch or training step. Ranks that
///                   are in different calls all throw CommunicationError. Unset: a rank that leaves out a call is
///                   noticed only where the pass, a shape or an option differs, or at the end of the program
template <Scalar T, class Space = HostMemory>
struct Operands {
  OptionalView<T, 4, Space> bias{};
  OptionalView<bool, 4, Space> mask{};
  OptionalView<std::int32_t, 2, Space> query_segments{};
  OptionalView<std::int32_t, 2, Space> key_segments{};
  OptionalSinks<Accumulator<T>, Space> sinks{};
  bool bias_gradient = false;
  std::optional<Index> call{};
};

/// The optional operands that go with q. Empty for a q that is no operand, so that the pass itself can say why.
template <class Q, class Space>
struct OperandsOfQuery {
  using type = struct None {};
};
template <TensorLike Q, class Space>
  requires Scalar<ScalarOf<Q>>
struct OperandsOfQuery<Q, Space> {
  using type = Operands<ScalarOf<Q>, Space>;
};
template <class Q, class Space>
using OperandsFor = typename OperandsOfQuery<Q, Space>::type;

/// The view with axes of extent 1 repeated to the extents asked for.
template <class T, std::size_t N, class Space>
TensorView<T, N, Space> broadcast(TensorView<T, N, Space> view, std::array<Index, N> const& extents) {
  auto strides = view.strides();
  for (std::size_t a = 0; a < N; ++a)
    if (view.extent(a) == 1 && extents[a] != 1) strides[a] = 0;
  return {view.data(), extents, strides};
}

}  // namespace annulus
