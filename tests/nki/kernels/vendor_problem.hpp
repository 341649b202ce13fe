#pragma once
// Cases of the vendor's tests of its ring kernels: operands, their shards per rank, and gathered results.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <Eigen/Core>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/simulate/arithmetic.hpp"
#include "annulus/nki/simulate/simulate.hpp"
#include "annulus/sharding/sharding.hpp"
#include "support/catch.hpp"

namespace annulus_test {

using annulus::Index;
template <class Scalar>
using Rows = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

enum class Order { full, contiguous, striped };  ///< not causal; causal over contiguous or striped shards

// Short names for the tables of cases.
inline constexpr auto full = Order::full, contiguous = Order::contiguous, striped = Order::striped;
inline constexpr auto fp16 = annulus::nki::ElementType::float16, bf16 = annulus::nki::ElementType::bfloat16;

/// One row of the vendor's tables.
struct VendorCase {
  Order order = Order::full;
  Index batch = 1, heads = 1;
  Index rows = 1;  ///< tokens per rank
  Index dim = 128;
  int ranks = 1, cores = 1;
  annulus::nki::ElementType type = annulus::nki::ElementType::bfloat16;
  std::vector<Index> boundaries{};  ///< packed: begin of each document, and end of the last one
  std::vector<std::int32_t> ids{};  ///< document ids; unset: 1, 2, ...; 0 and negative ids are padding
  Index query_offset = 0;

  /// The same with an eighth of the sequence, unless it is short (fewer than 1024 tokens per rank).
  VendorCase eighth() const {
    VendorCase small = *this;
    if (rows < 1024) return small;
    small.rows /= 8;
    for (Index& boundary : small.boundaries) boundary /= 8;
    return small;
  }

  std::string text() const {
    char const* const orders[] = {"full", "contiguous", "striped"};
    return annulus::detail::message_of(orders[static_cast<int>(order)], boundaries.empty() ? "" : " packed",
                                       query_offset == 0 ? "" : " offset", " batch ", batch, " heads ", heads, " rows ",
                                       rows, " dim ", dim, " ranks ", ranks, " lnc ", cores, " ", name_of(type));
  }
};

template <class Check>
void at_an_eighth(std::vector<VendorCase> const& cases, Check&& check) {
  for (VendorCase const& vendor_case : cases) check(vendor_case.eighth());
}

template <class Check>
void at_full_size(std::vector<VendorCase> const& cases, Check&& check) {
  for (VendorCase const& vendor_case : cases) {
    auto const begin = std::chrono::steady_clock::now();
    check(vendor_case);
    WARN(vendor_case.text() << ": " << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()
                            << " s");
  }
}

/// Random operands of a case, sharded over its ranks.
class VendorProblem {
 public:
  struct Head {
    Rows<float> q, k, v, dout;  ///< [tokens, dim]
  };

  /// Normally distributed values: q, k and dout of deviation 1, v of deviation 1/4, so that an absolute tolerance of
  /// 1e-3 is meaningful for rows with few visible keys, whose outputs are as large as the values.
  explicit VendorProblem(VendorCase const& vendor_case)
      : case_(vendor_case), tokens_(vendor_case.ranks * vendor_case.rows) {
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    auto const matrix = [&](float deviation) {
      Rows<float> values(tokens_, case_.dim);
      std::ranges::generate(values.reshaped(), [&] { return deviation * normal(generator); });
      annulus::nki::simulator::round_to(case_.type, values.data(), values.size());
      return values;
    };
    for (Index head = 0; head < case_.batch * case_.heads; ++head)
      heads_.push_back({matrix(1), matrix(1), matrix(0.25f), matrix(1)});
    for (std::size_t i = 0; i + 1 < case_.boundaries.size(); ++i)
      ids_.insert(ids_.end(), static_cast<std::size_t>(case_.boundaries[i + 1] - case_.boundaries[i]),
                  case_.ids.empty() ? static_cast<std::int32_t>(i + 1) : case_.ids[i]);
    std::vector<Index> const held(static_cast<std::size_t>(case_.ranks), case_.rows);
    annulus::Sharding const sharding =
        case_.order == Order::striped ? annulus::Sharding(annulus::Striped{}) : annulus::Sharding();
    for (int rank = 0; rank < case_.ranks; ++rank) {
      annulus::nki::RankRows& rows = ranks_.emplace_back();
      rows.segments = sharding.segments(annulus::Side::query, rank, held);
      positions_.push_back(annulus::positions_of(rows.segments));
      for (Index item = 0; !ids_.empty() && item < case_.batch; ++item) {
        auto& local = rows.documents.emplace_back();
        for (Index position : positions_.back()) local.push_back(ids_[static_cast<std::size_t>(position)]);
      }
    }
  }

  VendorCase const& what() const { return case_; }
  Index tokens() const { return tokens_; }
  std::vector<Head> const& heads() const { return heads_; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(case_.dim)); }

  annulus::nki::KernelSpec spec() const {
    annulus::nki::KernelSpec spec;
    spec.cores = case_.cores;
    spec.ranks = case_.ranks;
    spec.shape = {case_.batch, case_.heads, case_.heads, case_.dim, case_.dim};
    spec.local_queries = spec.local_keys = case_.rows;
    spec.type = spec.output_type = case_.type;
    spec.softmax_scale = scale();
    spec.masked_row = annulus::nki::MaskedRow::zero;
    return spec;
  }

  annulus::nki::RingMask mask() const {
    return {case_.order == Order::full ? annulus::full() : annulus::causal(), ranks_, ranks_, case_.query_offset};
  }

  /// The keys visible to a token, which are always consecutive.
  annulus::RowRange seen(Index token) const {
    annulus::RowRange range{0, tokens_};
    if (!ids_.empty()) {
      if (ids_[static_cast<std::size_t>(token)] <= 0) return {};
      auto const next = std::ranges::upper_bound(case_.boundaries, token);
      range = {*std::prev(next), *next};
    }
    if (case_.order != Order::full) range.end = std::min(range.end, token + case_.query_offset + 1);
    return range.empty() ? annulus::RowRange{} : range;
  }

  /// Inputs of the forward and backward kernels on each rank, without the results of the forward pass.
  std::vector<annulus::nki::Tensors> inputs(annulus::nki::RingMask const& mask) const {
    std::vector<annulus::nki::Tensors> all;
    for (int rank = 0; rank < case_.ranks; ++rank) {
      annulus::nki::Tensors& tensors = all.emplace_back();
      for (Head const& head : heads_) {
        auto const& rows = positions_[static_cast<std::size_t>(rank)];
        append(tensors["q"], head.q(rows, Eigen::all).transpose());
        append(tensors["k"], head.k(rows, Eigen::all).transpose());
        append(tensors["v"], head.v(rows, Eigen::all));
        append(tensors["dout"], head.dout(rows, Eigen::all));
      }
      if (mask.form() == annulus::nki::BoundsForm::band) tensors["mask_offsets"] = mask.offsets(rank, 1);
      if (mask.form() == annulus::nki::BoundsForm::ranges) tensors["mask_ranges"] = mask.ranges(rank, 1);
    }
    return all;
  }

  /// The results of one head, [tokens, dim], gathered from [batch, heads, rows, dim] of each rank.
  Rows<float> gathered(std::vector<annulus::nki::Tensors> const& results, char const* name, Index head) const {
    Rows<float> all(tokens_, case_.dim);
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      all(positions_[rank], Eigen::all) = Eigen::Map<Rows<float> const>(
          results[rank].at(name).data() + head * case_.rows * case_.dim, case_.rows, case_.dim);
    return all;
  }

  /// The log-sum-exp of one head, [tokens], gathered from [batch, heads, 128, columns] of each rank.
  std::vector<float> gathered_lse(std::vector<annulus::nki::Tensors> const& results, Index head) const {
    std::vector<float> all(static_cast<std::size_t>(tokens_));
    Index const columns = annulus::detail::ceil_divide(case_.rows, Index{128});
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      for (Index row = 0; row < case_.rows; ++row)
        all[static_cast<std::size_t>(positions_[rank][static_cast<std::size_t>(row)])] =
            results[rank].at("lse")[static_cast<std::size_t>((head * 128 + row % 128) * columns + row / 128)];
    return all;
  }

 private:
  static void append(std::vector<float>& values, Rows<float> const& matrix) {
    values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
  }

  VendorCase case_;
  Index tokens_;
  std::vector<Head> heads_;
  std::vector<std::int32_t> ids_;  // of each token; empty: no documents
  std::vector<annulus::nki::RankRows> ranks_;
  std::vector<std::vector<Index>> positions_;
};

}  // namespace annulus_test
