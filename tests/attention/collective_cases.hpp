#pragma once
// What scatter, gather and all_reduce, and the members of RingAttention, must do on any communicator; called by every
// rank of `ring`.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "annulus/attention/collectives.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/tensor/eigen.hpp"

namespace annulus_test {

using annulus::Index;
using annulus::Rank;

/// An element that tells its place: the same for every sharding, small enough for bool, half and int8.
template <class T>
T element_at(Index place) {
  return static_cast<T>(place * 7 % 61);
}

template <class T, int N>
using AnyTensor = Eigen::Tensor<T, N, Eigen::RowMajor>;

template <class T, int N>
AnyTensor<T, N> numbered(std::array<Index, static_cast<std::size_t>(N)> const& extents) {
  Eigen::array<Eigen::Index, N> dimensions{};
  std::copy(extents.begin(), extents.end(), dimensions.begin());
  AnyTensor<T, N> tensor(dimensions);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = element_at<T>(i);
  return tensor;
}

template <class T, int N>
bool same(AnyTensor<T, N> const& a, AnyTensor<T, N> const& b) {
  return a.dimensions() == b.dimensions() && std::equal(a.data(), a.data() + a.size(), b.data());
}

/// Scatters a tensor of `tokens` positions along `axis` from rank 0, compares with the local scatter_into, and gathers
/// it. Empty text: all is as it must be.
template <class T, int N, class Ring>
std::string scattered_and_gathered(Ring& ring, annulus::Sharding const& sharding, Index tokens, std::size_t axis,
                                   annulus::Side side) {
  std::array<Index, static_cast<std::size_t>(N)> extents{};
  for (std::size_t a = 0; a < extents.size(); ++a) extents[a] = static_cast<Index>(2 + a);
  extents[axis] = tokens;
  AnyTensor<T, N> const whole = numbered<T, N>(extents);
  AnyTensor<T, N> const passed = ring.rank() == 0 ? whole : AnyTensor<T, N>();
  annulus::Along const along{.axis = axis, .side = side};
  AnyTensor<T, N> const local = annulus::scatter(ring, passed, sharding, along);

  auto const lengths = sharding.lengths(side, ring.size(), tokens);
  auto const segments = sharding.segments(side, ring.rank(), lengths);
  auto shard = extents;
  shard[axis] = lengths[static_cast<std::size_t>(ring.rank())];
  AnyTensor<T, N> expected = numbered<T, N>(shard);
  annulus::scatter_into(annulus::view_of(whole), std::span<annulus::Segment const>(segments),
                        annulus::view_of(expected), axis);
  if (!same(local, expected)) return "rank " + std::to_string(ring.rank()) + " got another shard";
  if (annulus::positions(ring, sharding, tokens, side) != annulus::positions_of(segments))
    return "positions are not those of the shard";
  if (!same(annulus::gather(ring, local, sharding, along), whole)) return "the gathered tensor differs";
  return "";
}

/// Sums whose bits depend on the order of the terms. Empty text: the sums are those in rank order.
template <class T, class Ring>
std::string reduced(Ring& ring, Index elements) {
  auto const term = [](Rank rank, Index i) {
    double const value = static_cast<double>(i % 11 + 1) / 3 * (rank % 2 == 0 ? 1e3 : -1e-2) + rank;
    return static_cast<T>(value);
  };
  AnyTensor<T, 2> tensor(2, elements);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = term(ring.rank(), i);
  annulus::all_reduce(ring, tensor);
  for (Index i = 0; i < tensor.size(); ++i) {
    T expected{};
    if constexpr (annulus::Scalar<T>) {
      annulus::Accumulator<T> sum(0);
      for (Rank rank = 0; rank < ring.size(); ++rank) sum += static_cast<annulus::Accumulator<T>>(term(rank, i));
      expected = static_cast<T>(sum);
    } else {
      for (Rank rank = 0; rank < ring.size(); ++rank) expected = static_cast<T>(expected + term(rank, i));
    }
    if (tensor.data()[i] != expected) return "element " + std::to_string(i) + " is another sum";
  }
  return "";
}

/// Scatters and gathers by the members of a RingAttention of this sharding, which passes tensors on rank 0 alone. Empty
/// text: they do what the functions do.
template <class Ring>
std::string scattered_by_attention(Ring& ring, annulus::Sharding const& sharding, Index tokens) {
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, {.sharding = sharding});
  AnyTensor<float, 4> const whole = numbered<float, 4>({2, tokens, 3, 4});
  AnyTensor<float, 4> const passed = ring.rank() == 0 ? whole : AnyTensor<float, 4>();
  AnyTensor<float, 4> const local = attention.scatter(passed);
  if (!same(local, annulus::scatter(ring, passed, sharding))) return "the attention has another sharding";
  if (!same(attention.gather(local), whole)) return "the attention gathers another tensor";
  if (attention.positions() != annulus::positions(ring, sharding, tokens)) return "the attention has other positions";
  return "";
}

/// Every kind of tensor on one ring; the first complaint, or an empty text.
template <class Ring>
std::string all_collectives(Ring& ring) {
  using annulus::Side;
  std::string complaint;
  auto const note = [&](std::string const& found) {
    if (complaint.empty()) complaint = found;
  };
  for (annulus::Sharding const& sharding :
       {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Striped{}),
        annulus::Sharding(annulus::Striped{.block = 3}), annulus::Sharding(annulus::Zigzag{})})
    for (Index tokens : {0, 1, 2, 13, 40}) {
      note(scattered_and_gathered<float, 4>(ring, sharding, tokens, 1, Side::query));
      note(scattered_and_gathered<double, 3>(ring, sharding, tokens, 2, Side::query));
      note(scattered_and_gathered<std::int64_t, 2>(ring, sharding, tokens, 1, Side::key));
      note(scattered_and_gathered<std::int8_t, 1>(ring, sharding, tokens, 0, Side::key));
      note(scattered_and_gathered<bool, 2>(ring, sharding, tokens, 0, Side::query));
      note(scattered_and_gathered<Eigen::bfloat16, 5>(ring, sharding, tokens, 3, Side::query));
      note(scattered_by_attention(ring, sharding, tokens));
    }
  for (Index elements : {0, 1, 5, 40'000}) {
    note(reduced<float>(ring, elements));
    note(reduced<double>(ring, elements));
    note(reduced<Eigen::half>(ring, elements));
    note(reduced<std::int32_t>(ring, elements));
  }
  return complaint;
}

}  // namespace annulus_test
