#pragma once
// Adapter of the ring kernels of nkilib (AWS Neuron) with their names, layouts and conventions, for any ring and
// backend, and tensors in their memory space. Each rank of the ring calls the functions, as it would call the kernel.
//
// Symbols: n workers, b batch items, h query heads, s positions per rank, d head dimensions.
//
// Same as in nkilib
//  - layouts: see the functions; lse tiles and documents: nkilib_layout.hpp.
//  - striped: rank r holds positions r, r + n, r + 2n, ...; otherwise r * s ... r * s + s - 1.
//  - a masked row has output 0 and lse 0 (in annulus itself lse is -inf). The backward pass determines masked rows from
//    the mask, not from the 0, so that a row whose lse happens to be 0 keeps its gradients.
// Extensions
//  - softmax_scale is applied with every mask, and q is never scaled beforehand: one convention for both passes. (A
//    caller that scales q for the causal mask passes softmax_scale = 1 to the forward pass.)
//  - there may be fewer key and value heads than query heads; h must be a multiple of their number.
//  - any s, not only multiples of 128; any d, which may differ between v and q, k; documents without a causal mask.
//  - bound_max is exclusive in both passes, so that a query with the empty range [0, 0) sees nothing in either.
//  - on GPUs: CudaBackend and tensors there. Bounds are in host memory even so, because the host makes documents of
//    them; lse tiles pass through the host. NkiBackend takes host tensors, because its programs are simulated there.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/attention/collectives.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/interop/check_on_all_ranks.hpp"
#include "annulus/interop/host_access.hpp"
#include "annulus/interop/nkilib_layout.hpp"

/// Ring kernels of nkilib (AWS Neuron) with their names, layouts and conventions.
namespace annulus::nkilib {

/// Process groups as lists of world ranks; rank i of a ring is the i-th member of its group.
using ReplicaGroups = std::vector<std::vector<int>>;

/// Parameters of ring_attention_spmd_fwd, for designated initialisers.
struct ForwardParameters {
  ReplicaGroups replica_groups{};         ///< default: one group, 0 ... num_workers - 1; see check_workers
  int num_workers = 1;                    ///< communicator.size()
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(d)
  bool use_causal_mask = false;           ///< k <= q, on global positions
  bool striped_input = false;  ///< requires use_causal_mask or bounds; without both, position order has no effect
  bool training = false;       ///< return lse
  bool tp_q = false;           ///< false: q [b, h, d, s]; true: q [b, h, s, d]
  bool tp_k = false;           ///< the same for k
  /// [b * h, s, 1], both or none, with striped_input: local query i sees local key j of any rank iff
  /// bound_min(i) <= j < bound_max(i) and the causal mask, if any, allows it. Equal on all ranks.
  OptionalView<float, 3, HostMemory> bound_min{};
  /// Exclusive upper bounds; see bound_min.
  OptionalView<float, 3, HostMemory> bound_max{};
};

/// Parameters of ring_attention_spmd_bwd, for designated initialisers. Without comment: see ForwardParameters.
struct BackwardParameters {
  bool use_causal_mask = false;           ///< that of the forward pass
  bool mixed_precision = true;            ///< false throws UnsupportedError: sums are always wider than 16 bits
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(d)
  int num_workers = 1;                    ///< communicator.size()
  int lnc_size = 1;                       ///< cores of a rank: NkiOptions::cores with NkiBackend, else 1; others throw
  ReplicaGroups replica_groups{};         ///< default: one group, 0 ... num_workers - 1
  bool striped_attention = false;         ///< the striped_input of the forward pass
  /// [b, s]
  OptionalView<float, 2, HostMemory> bound_min{};
  /// [b, s]
  OptionalView<float, 2, HostMemory> bound_max{};
  /// Boundaries of documents in the sequence, 0 to num_workers * s, each a multiple of num_workers; with
  /// striped_attention. With bounds, a query sees what both allow. Empty: none.
  std::vector<Index> segment_cu_seqlens{};
};

/// Result of the forward pass: four-axis tensors of q's tensor library and storage order.
template <TensorLike Output, TensorLike Lse>
struct ForwardResult {
  Output o;                ///< [b, h, s, d], element type of q
  std::optional<Lse> lse;  ///< [b, h, 128, ceil(s / 128)], natural log; only with training
};

/// Gradients in float for any operand type (double for double).
template <TensorLike Gradient>
struct BackwardResult {
  Gradient dq, dk, dv;  ///< [b, heads, d, s], with the extents of q_ref, k_ref and v_ref
};

/// Throws UnsupportedError unless num_workers is the size of the ring and each of replica_groups, if given, has
/// num_workers members, all groups together naming each of 0 ... groups * num_workers - 1 once. A single group is the
/// whole world in ring order: it must be 0, 1, 2, ... With several groups the ring is one of them; which one, and in
/// which order, cannot be checked here (MpiRing::from_replica_groups ensures it).
inline void check_workers(int num_workers, ReplicaGroups const& replica_groups, int ring_size) {
  annulus::detail::check<UnsupportedError>(num_workers == ring_size, "num_workers is ", num_workers,
                                           ", the communicator has ", ring_size, " ranks; they must be equal");
  std::vector<bool> named(replica_groups.size() * static_cast<std::size_t>(num_workers), false);
  for (std::vector<int> const& group : replica_groups) {
    annulus::detail::check<UnsupportedError>(group.size() == static_cast<std::size_t>(num_workers), "replica group ",
                                             group, " has ", group.size(),
                                             " members; each group must have num_workers = ", num_workers);
    for (int const member : group) {
      annulus::detail::check<UnsupportedError>(member >= 0 && static_cast<std::size_t>(member) < named.size(),
                                               "replica group ", group, " names rank ", member,
                                               "; the groups together name 0 to ", named.size() - 1);
      annulus::detail::check<UnsupportedError>(!named[static_cast<std::size_t>(member)], "rank ", member,
                                               " is in the replica groups twice; groups must be disjoint");
      named[static_cast<std::size_t>(member)] = true;
    }
  }
  for (int place = 0; replica_groups.size() == 1 && place < num_workers; ++place)
    annulus::detail::check<UnsupportedError>(
        replica_groups[0][static_cast<std::size_t>(place)] == place, "the only replica group is ", replica_groups[0],
        "; ring order is rank order, accepted: 0, 1, 2, ... (for another order make the "
        "communicator in that order and leave replica_groups unset)");
}

namespace detail {

/// Cores that share the work of a rank: an option of NkiBackend; others have one.
template <Backend B>
int cores_of(B const& backend) {
  if constexpr (requires { backend.options().cores; })
    return backend.options().cores;
  else
    return 1;
}

/// Checks the parameters that both passes share, records the documents and returns them. The bounds have these extents,
/// which hold `heads` heads of each of `batch` batch items.
template <class Parameters, std::size_t N>
std::optional<PackedDocuments> read_documents(annulus::detail::CallRecord& record, Parameters const& p,
                                              std::array<Index, N> const& extents, std::string_view expected,
                                              Index batch, Index heads, bool striped, char const* striped_name) {
  if (p.bound_min) annulus::detail::require_extents("bound_min", *p.bound_min, extents, expected);
  if (p.bound_max) annulus::detail::require_extents("bound_max", *p.bound_max, extents, expected);
  annulus::detail::check<UnsupportedError>(static_cast<bool>(p.bound_min) == static_cast<bool>(p.bound_max),
                                           "only one of bound_min and bound_max is given; give both or none");
  annulus::detail::check<UnsupportedError>(!p.bound_min || striped, "bound_min and bound_max need ", striped_name,
                                           " = true: they are local positions, the same on all ranks");
  annulus::detail::check<UnsupportedError>(!striped || p.use_causal_mask || p.bound_min, striped_name,
                                           " without use_causal_mask or bounds changes nothing; set use_causal_mask");
  std::optional<PackedDocuments> documents;
  auto const by_head = [&](TensorView<float const, N> const& bound) -> TensorView<float const, 3> {
    return {bound.data(), {batch, heads, extents[1]}, {heads * bound.stride(0), bound.stride(0), bound.stride(1)}};
  };
  if (p.bound_min) documents.emplace(by_head(*p.bound_min), by_head(*p.bound_max));
  record.add("documents given", documents.has_value());
  record.add("bounds (fingerprint)", documents ? static_cast<Index>(documents->fingerprint()) : 0);
  return documents;
}

/// Replaces the bounds by those of segment_cu_seqlens, if any, within the given ones; `storage` holds them.
inline void narrow_bounds(BackwardParameters& p, Index batch, Index rows, std::vector<float>& storage) {
  std::vector<Index> const& edges = p.segment_cu_seqlens;
  if (edges.empty()) return;
  Index const ranks = p.num_workers;
  annulus::detail::check<UnsupportedError>(
      p.striped_attention,
      "segment_cu_seqlens needs striped_attention = true: documents are then the same rows of all ranks");
  annulus::detail::check<UnsupportedError>(
      edges.size() > 1 && edges.front() == 0 && edges.back() == ranks * rows &&
          std::ranges::adjacent_find(edges, std::greater_equal{}) == edges.end() &&
          std::ranges::all_of(edges, [&](Index edge) { return edge % ranks == 0; }),
      "segment_cu_seqlens is ", edges, "; accepted: ascending multiples of num_workers = ", ranks, " from 0 to ",
      ranks * rows);
  bool const bounded = static_cast<bool>(p.bound_min);
  if (bounded != static_cast<bool>(p.bound_max)) return;  // read_documents() refuses that
  for (auto const& [name, bound] : {std::pair{"bound_min", &p.bound_min}, {"bound_max", &p.bound_max}})
    if (bounded) annulus::detail::require_extents(name, **bound, std::array{batch, rows}, "[b, s]");
  storage.resize(static_cast<std::size_t>(2 * batch * rows));
  TensorView<float, 3> const narrowed(storage.data(), {2, batch, rows});
  for (std::size_t document = 0; document + 1 < edges.size(); ++document) {
    Index const begin = edges[document] / ranks, end = edges[document + 1] / ranks;
    for (Index b = 0; b < batch; ++b)
      for (Index row = begin; row < end; ++row) {
        // NaN stays NaN, and is refused.
        narrowed(0, b, row) = static_cast<float>(begin);
        narrowed(1, b, row) = static_cast<float>(end);
        if (!bounded) continue;
        narrowed(0, b, row) = std::max((*p.bound_min)(b, row), narrowed(0, b, row));
        narrowed(1, b, row) = std::min((*p.bound_max)(b, row), narrowed(1, b, row));
      }
  }
  p.bound_min = TensorView<float const, 2>(storage.data(), {batch, rows});
  p.bound_max = TensorView<float const, 2>(storage.data() + batch * rows, {batch, rows});
}

inline Options options_of(std::optional<double> softmax_scale, bool causal, bool striped) {
  Options options{.mask = {.causal = causal}, .softmax_scale = softmax_scale, .query_offset = 0};
  if (striped) options.sharding = Striped{};
  return options;
}

/// Document ids in the memory of the operands.
template <class Space>
class PlacedDocuments {
  static_assert(annulus::detail::CopiedFromHost<Space>,
                "annulus: this adapter reads and writes lse tiles on the host, which needs HostCopies of the memory "
                "space (tensor/host_copies.hpp)");

 public:
  explicit PlacedDocuments(std::optional<PackedDocuments> const& documents) {
    if (!documents) return;
    query_ids_.emplace(HostCopies<Space>::to_space(documents->query_ids()));
    key_ids_.emplace(HostCopies<Space>::to_space(documents->key_ids()));
  }

  template <Scalar T>
  Operands<T, Space> operands() const {
    Operands<T, Space> operands;
    if (query_ids_) {
      operands.query_documents = *query_ids_;
      operands.key_documents = *key_ids_;
    }
    return operands;
  }

 private:
  using HostIds = TensorView<std::int32_t const, 2>;
  using Ids = std::remove_cvref_t<decltype(HostCopies<Space>::to_space(std::declval<HostIds>()))>;
  std::optional<Ids> query_ids_, key_ids_;
};

/// `count` positions of a tensor [bs, positions, d]: first, first + step, ...
template <class T, class Space>
TensorView<T, 3, Space> every_position(TensorView<T, 3, Space> const& x, Index first, Index step, Index count) {
  auto const part = x.slice(1, first, count);
  return {part.data(), part.extents(), {x.stride(0), x.stride(1) * step, x.stride(2)}};
}

}  // namespace detail

/// Forward pass of this rank's queries over the keys of the whole ring. Collective: every rank calls it with equal
/// parameters (except tp_q, tp_k, training and LseDtype, which may differ).
///
///   q    [b, h, d, s], or [b, h, s, d] with tp_q
///   k    [b, heads, d, s], or [b, heads, s, d] with tp_k
///   v    [b, heads, s, d]
///
/// LseDtype is nkilib's lse_dtype: float, Eigen::half or Eigen::bfloat16; default float (double for double operands).
/// Throws on all ranks: UnsupportedError for an invalid parameter, and the errors of RingAttention::forward.
template <class LseDtype = void, Communicator C, Backend B, class Q, class K, class V>
auto ring_attention_spmd_fwd(C& communicator, B& backend, Q const& q, K const& k, V const& v,
                             ForwardParameters const& parameters = {}) {
  using Space = typename B::memory_space;
  static_assert(interop::detail::RequireOneSpace<C, B>::value);
  static_assert(annulus::detail::RequireOperands<Space, Q, K, V>::value);
  using T = ScalarOf<Q>;
  using A = Accumulator<T>;
  using Tile = std::conditional_t<std::is_void_v<LseDtype>, A, LseDtype>;
  static_assert(Scalar<Tile>, "annulus: lse_dtype is float, double, Eigen::half or Eigen::bfloat16");
  ForwardParameters const& p = parameters;
  auto const queries = with_axes(q, p.tp_q ? AxisOrder::bhsd : AxisOrder::bhds);
  auto const keys = with_axes(k, p.tp_k ? AxisOrder::bhsd : AxisOrder::bhds);
  auto const extents = view_of(queries).extents();
  Index const batch = extents[axis::batch], heads = extents[axis::heads], rows = extents[axis::sequence];

  std::optional<PackedDocuments> documents;
  interop::detail::check_on_all_ranks(communicator, [&](annulus::detail::CallRecord& record) {
    check_workers(p.num_workers, p.replica_groups, communicator.size());
    documents = detail::read_documents(record, p, std::array<Index, 3>{batch * heads, rows, 1}, "[b * h, s, 1]", batch,
                                       heads, p.striped_input, "striped_input");
  });

  ForwardResult<MadeLike<Q, T, 4>, MadeLike<Q, Tile, 4>> result{
      make_like<T, 4>(q, {batch, heads, rows, view_of(bhsd(v)).extent(axis::dim)}), std::nullopt};
  auto lse = make_like<A, 3>(q, {batch, heads, rows});
  auto output = bhsd(result.o);
  detail::PlacedDocuments<Space> const placed(documents);
  RingAttention(communicator, backend, detail::options_of(p.softmax_scale, p.use_causal_mask, p.striped_input))
      .forward_into(queries, keys, bhsd(v), output, lse, placed.template operands<T>());
  if (p.training) {
    result.lse.emplace(make_like<Tile, 4>(q, {batch, heads, partitions, lse_columns(rows)}));
    auto const on_host = interop::detail::read_on_host(backend, TensorView<A const, 3, Space>(view_of(lse)));
    interop::detail::write_on_host(backend, view_of(*result.lse),
                                   [&](TensorView<Tile, 4> tiles) { to_lse_tiles(view_of(on_host), tiles); });
  }
  return result;
}

/// Gradients by q, k and v for dy_ref, the gradient by the output. Collective, with equal parameters on all ranks. dk
/// and dv hold the sum over the queries of all ranks.
///
///   q_ref             [b, h, d, s]
///   k_ref, v_ref      [b, heads, d, s]
///   o_ref, dy_ref     [b, h, d, s]: the forward pass returns o as [b, h, s, d], so pass
///                     annulus::view_of(o).permuted({0, 1, 3, 2}) or a transposed copy
///   lse_ref           [b, h, 128, ceil(s / 128)] of the forward pass, any lse_dtype; gradients carry about 2 |lse| of
///                     its rounding errors, because these interfaces have no lse remainder
///
/// Throws on all ranks: UnsupportedError for an invalid parameter, ShapeError, and the errors of
/// RingAttention::backward.
template <Communicator C, Backend B, class Q, class K, class V, class O, class Dy, class Lse>
auto ring_attention_spmd_bwd(C& communicator, B& backend, Q const& q_ref, K const& k_ref, V const& v_ref,
                             O const& o_ref, Dy const& dy_ref, Lse const& lse_ref,
                             BackwardParameters const& parameters = {}) {
  using Space = typename B::memory_space;
  static_assert(interop::detail::RequireOneSpace<C, B>::value);
  static_assert(annulus::detail::RequireOperands<Space, Q, K, V, O, Dy>::value && RequireTensor<Lse>::value);
  static_assert(annulus::detail::RequireSpace<Space, Lse>::value);
  static_assert(rank_of<Lse> == 4, "annulus: lse_ref is [b, h, 128, ceil(s / 128)]");
  using T = ScalarOf<Q>;
  using Gradient = Accumulator<T>;
  BackwardParameters p = parameters;
  std::vector<float> narrowed;
  auto const extents = view_of(bhds(q_ref)).extents();
  Index const batch = extents[axis::batch], heads = extents[axis::heads], rows = extents[axis::sequence];
  TensorView<ScalarOf<Lse> const, 4, Space> const tiles = view_of(lse_ref);

  std::optional<PackedDocuments> documents;
  interop::detail::check_on_all_ranks(communicator, [&](annulus::detail::CallRecord& record) {
    check_workers(p.num_workers, p.replica_groups, communicator.size());
    annulus::detail::check<UnsupportedError>(
        p.mixed_precision,
        "mixed_precision = false requests sums in the element type of the operands; sums are "
        "always kept in float (double for double); accepted: true");
    annulus::detail::check<UnsupportedError>(
        p.lnc_size == detail::cores_of(backend), "lnc_size is ", p.lnc_size,
        "; it is the number of cores that share the work of a rank, in NkiOptions::cores, and 1 for other backends; "
        "accepted: ",
        detail::cores_of(backend));
    annulus::detail::require_extents("lse_ref", tiles, {batch, heads, partitions, lse_columns(rows)},
                                     "[b, h, 128, ceil(s / 128)]");
    detail::narrow_bounds(p, batch, rows, narrowed);
    documents = detail::read_documents(record, p, std::array{batch, rows}, "[b, s]", batch, 1, p.striped_attention,
                                       "striped_attention");
  });

  auto lse = make_like<Gradient, 3>(q_ref, {batch, heads, rows});
  auto const tiles_on_host = interop::detail::read_on_host(backend, tiles);
  auto const sees_nothing = [&](Index b, Index row) {
    return documents && documents->sees_nothing(b, row, p.use_causal_mask);
  };
  interop::detail::write_on_host(backend, view_of(lse), [&](TensorView<Gradient, 3> to) {
    from_lse_tiles(view_of(tiles_on_host), to, sees_nothing);
  });
  detail::PlacedDocuments<Space> const placed(documents);
  auto const like = [&](auto const& x) { return make_like<Gradient, 4>(q_ref, view_of(x).extents()); };
  BackwardResult<MadeLike<Q, Gradient, 4>> result{like(q_ref), like(k_ref), like(v_ref)};
  GradientViews<Gradient, Space> const gradients{view_of(bhds(result.dq)), view_of(bhds(result.dk)),
                                                 view_of(bhds(result.dv))};
  RingAttention(communicator, backend, detail::options_of(p.softmax_scale, p.use_causal_mask, p.striped_attention))
      .backward_into(bhds(dy_ref), bhds(o_ref), lse, bhds(q_ref), bhds(k_ref), bhds(v_ref), gradients,
                     placed.template operands<T>());
  return result;
}

/// Parameters of ring_attention_unpermute; see ForwardParameters.
struct UnpermuteParameters {
  ReplicaGroups replica_groups{};  ///< default: one group, 0 ... num_workers - 1
  int num_workers = 1;             ///< communicator.size()
};

namespace detail {

/// ring_attention_unpermute, whose blocks the backend copies.
template <Communicator C, class B, class X>
auto unpermute(C& communicator, B& backend, X const& x, UnpermuteParameters const& parameters) {
  using Space = typename B::memory_space;
  static_assert(interop::detail::RequireOneSpace<C, B>::value);
  static_assert(RequireTensor<X>::value && annulus::detail::RequireSpace<Space, X>::value);
  static_assert(rank_of<X> == 3, "annulus: ring_attention_unpermute takes [bs, s, d]");
  using T = ScalarOf<X>;
  int const ranks = communicator.size();
  Rank const rank = communicator.rank();
  TensorView<T const, 3, Space> const striped = view_of(x);
  Index const rows = striped.extent(1), share = rows / ranks;
  interop::detail::check_on_all_ranks(communicator, [&](annulus::detail::CallRecord& record) {
    check_workers(parameters.num_workers, parameters.replica_groups, ranks);
    annulus::detail::require_addressable("x", striped);
    annulus::detail::check<ShapeError>(rows % ranks == 0, "x has ", rows,
                                       " rows; expected a multiple of num_workers = ", ranks);
    record.add("bs", striped.extent(0));
    record.add("s", rows);
    record.add("d", striped.extent(2));
  });

  auto result = make_like<T, 3>(x, striped.extents());
  TensorView<T, 3, Space> const contiguous = view_of(result);
  std::array<Index, 3> const extents{striped.extent(0), share, striped.extent(2)};
  auto const bytes = static_cast<std::size_t>(extents[0] * extents[1] * extents[2]) * sizeof(T);
  auto const sent = backend.allocate(static_cast<Index>(bytes)), received = backend.allocate(static_cast<Index>(bytes));
  auto const queue = annulus::detail::queue_of(backend);
  or_abandon(communicator, [&] {
    annulus::detail::SynchronizeOnUnwind const synchronize(backend);
    for (int hop = 0; hop < ranks; ++hop) {
      Rank const to = ring_neighbour(rank, hop, ranks), from = ring_neighbour(rank, -hop, ranks);
      auto const leaving = every_position(striped, to * share, 1, share);
      auto const arriving = every_position(contiguous, from, ranks, share);  // those that rank `from` has held
      if (hop == 0) {
        backend.copy(leaving, arriving);
        continue;
      }
      backend.copy(leaving, TensorView<T, 3, Space>(reinterpret_cast<T*>(sent.data()), extents));
      annulus::detail::shift_bytes(communicator, hop, {sent.data(), bytes}, {received.data(), bytes}, queue);
      backend.copy(TensorView<T const, 3, Space>(reinterpret_cast<T const*>(received.data()), extents), arriving);
    }
    annulus::detail::finish_queue(communicator, queue);
  });
  return result;
}

}  // namespace detail

/// Returns a tensor [bs, s, d] with positions rank * s ... rank * s + s - 1 of a sequence of n * s, for n ranks.
/// x [bs, s, d] holds positions rank, rank + n, rank + 2n, ...; s must be a multiple of n. Collective; every rank sends
/// (n - 1) / n of its shard. Throws on all ranks: UnsupportedError for num_workers or replica_groups (check_workers),
/// ShapeError, and CommunicationError if ranks pass different extents or a peer is lost.
template <Communicator C, class X>
auto ring_attention_unpermute(C& communicator, X const& x, UnpermuteParameters const& parameters = {}) {
  HostOperations copies;
  return detail::unpermute(communicator, copies, x, parameters);
}
/// The same for a tensor in the memory of any backend.
template <Communicator C, Backend B, class X>
auto ring_attention_unpermute(C& communicator, B& backend, X const& x, UnpermuteParameters const& parameters = {}) {
  return detail::unpermute(communicator, backend, x, parameters);
}

}  // namespace annulus::nkilib
