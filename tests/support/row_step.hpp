#pragma once
// A random step of a reproducible call, folded for some of its query rows at a time: alone, as when a token is decoded,
// or many together. A row must have the same bits each time.

#include <annulus/annulus.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/random_ring_problem.hpp"

namespace annulus_test {

template <class T>
class RowStep {
  using A = annulus::Accumulator<T>;
  using Index = annulus::Index;
  template <class X, std::size_t N>
  using View = annulus::TensorView<X, N>;

 public:
  explicit RowStep(std::uint64_t seed) : choose_(seed) {
    choose_shape();
    choose_rules();
    fill_operands();
    for (Index i = 0; i < queries; ++i) query_positions_.push_back(offset_ + i + (i < cut_ ? 0 : gap_));
    for (Index i = 0; i < keys_; ++i) key_positions_.push_back(i);
    words_ << "seed " << seed << ": " << few << " queries, " << query_heads_ << ":" << kv_heads_ << " heads, " << keys_
           << " keys, dims " << dim_ << " and " << value_dim_;
  }

  /// All query rows of the step; enough for several panels.
  static constexpr Index queries = 100;
  /// The first of them, few enough to be decoded.
  Index few = 1;

  /// Complaint about rows that depend on the rows that are folded with them.
  std::string complaint() const {
    for (bool only_step : {false, true}) {
      std::vector<std::vector<A>> const many = fold({0, queries}, only_step), together = fold({0, few}, only_step);
      for (Index i = 0; i < few; ++i) {
        auto const row = static_cast<std::size_t>(i);
        std::string const where = words_.str() + ", query " + std::to_string(i) + (only_step ? ", results" : "");
        if (!same_bits(together[row], many[row])) return where + ": few rows differ from many";
        if (!same_bits(fold({i, i + 1}, only_step)[0], many[row])) return where + ": a row alone differs from many";
      }
    }
    return "";
  }

 private:
  /// A predicate that hides some pairs.
  struct Hashed {
    bool active;
    bool operator()(Index batch, Index head, Index query, Index key) const {
      return !active || (batch * 7 + head * 13 + query * 31 + key * 101) % 11 > 3;
    }
  };

  void choose_shape() {
    kv_heads_ = choose_.template of<Index>({1, 2, 3, 8});
    Index const group = choose_.template of<Index>({1, 1, 2, 3, 5, 8});
    query_heads_ = kv_heads_ * group;
    few = choose_.between(1, std::max<Index>(16 / group, 1));
    keys_ = choose_.one_in(3) ? choose_.between(256, 3000) : choose_.between(16, 700);
    dim_ = choose_.template of<Index>({1, 7, 16, 64, 96, 128, 200, 300});
    value_dim_ = choose_.one_in(2) ? dim_ : choose_.template of<Index>({1, 7, 16, 64, 96, 128, 200});
    offset_ = choose_.one_in(2) ? keys_ - few : choose_.between(0, keys_);
    cut_ = choose_.between(1, 2 * few);
    gap_ = choose_.template of<Index>({0, 0, 1, 200});
  }

  void choose_rules() {
    rules_.reproducible = true;
    rules_.softmax_scale = choose_.template of<double>({0.1, 0.1, 0.3, -0.2, 1e4});
    rules_.mask.causal = choose_.one_in(2);
    if (choose_.one_in(4)) rules_.mask.window = {.left = choose_.between(0, keys_)};
    if (choose_.one_in(4)) rules_.mask.sink_tokens = choose_.between(0, 20);
    if (choose_.one_in(4)) rules_.logit_softcap = choose_.template of<double>({2, 100});
    if (choose_.one_in(4)) rules_.dropout = {.probability = 0.3, .seed = 5};
    restricts_ = {choose_.one_in(5)};
    if (choose_.one_in(4)) {
      query_documents_.resize(static_cast<std::size_t>(batches * queries));
      key_documents_.resize(static_cast<std::size_t>(batches * keys_));
      Index const length = choose_.between(20, keys_), scattered = choose_.template of<Index>({7, 10000});
      for (Index b = 0; b < batches; ++b) {
        for (Index i = 0; i < keys_; ++i)
          key_documents_[static_cast<std::size_t>(b * keys_ + i)] =
              static_cast<std::int32_t>(i % scattered == 6 ? 1 : 1 + i / length);
        for (Index i = 0; i < queries; ++i)
          query_documents_[static_cast<std::size_t>(b * queries + i)] =
              static_cast<std::int32_t>(1 + std::min(offset_ + i, keys_ - 1) / length);
      }
    }
    Index first = 0;
    while (first < keys_) {
      Index const count = choose_.one_in(2) ? keys_ - first : choose_.between(1, keys_ - first);
      segments_.push_back({first, count, first, 1});
      first += count;
    }
  }

  /// Numbers between -1 and 1, times `scale`.
  std::vector<T> numbers(Index count, double scale = 1) {
    std::vector<T> result(static_cast<std::size_t>(count));
    for (T& x : result) x = static_cast<T>(scale * (static_cast<double>(choose_.below(4001)) / 2000 - 1));
    return result;
  }
  void poison(std::vector<T>& elements) {
    for (Index i = choose_.below(4); i >= 0; --i)
      elements[static_cast<std::size_t>(choose_.below(static_cast<Index>(elements.size())))] =
          static_cast<T>(choose_.template of<double>({std::nan(""), std::numeric_limits<double>::infinity(), -1e300}));
  }

  void fill_operands() {
    order_ = choose_.below(4);
    q_ = numbers(batches * queries * query_heads_ * dim_, choose_.template of<double>({1, 1, 8, 3000}));
    k_ = numbers(batches * keys_ * kv_heads_ * dim_);
    v_ = numbers(batches * keys_ * kv_heads_ * value_dim_);
    if (choose_.one_in(3)) poison(v_);
    if (choose_.one_in(8)) poison(k_);
    if (choose_.one_in(4)) bias_ = numbers(batches * query_heads_ * queries * keys_, 3);
    if (choose_.one_in(4)) {
      mask_ = std::vector<char>(static_cast<std::size_t>(batches * query_heads_ * queries * keys_));
      Index const run = choose_.template of<Index>({1, 1, 150});
      for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = i / static_cast<std::size_t>(run) % 3 != 1;
    }
  }

  /// Keys or values with one of several orders of axes.
  View<T const, 4> view(std::vector<T> const& elements, Index dim) const {
    using V = View<T const, 4>;
    if (order_ == 1) return V(elements.data(), {batches, kv_heads_, keys_, dim}).permuted({0, 2, 1, 3});
    if (order_ == 2) return V(elements.data(), {dim, keys_, batches, kv_heads_}).permuted({2, 1, 3, 0});
    return V(elements.data(), {batches, keys_, kv_heads_, dim});
  }

  /// The tiles of all rows, clipped: with other cuts between tiles, sums of key blocks would be others.
  std::vector<annulus::Tile> tiles_of(annulus::RowRange rows) const {
    std::vector<annulus::Tile> all, clipped;
    annulus::Segment const both[]{{0, cut_, offset_, 1}, {cut_, queries - cut_, offset_ + cut_ + gap_, 1}};
    bool const elementwise = restricts_.active || !mask_.empty();
    annulus::detail::visible_tiles(both, segments_, rules_.mask, 0, elementwise, &all);
    for (annulus::Tile const& tile : all) {
      annulus::Tile part = tile.with_queries(rows);
      part.query_begin -= rows.begin;
      if (part.query_count > 0) clipped.push_back(part);
    }
    return clipped;
  }

  /// The state and results of query rows `rows` after the step: for each, all of its numbers.
  std::vector<std::vector<A>> fold(annulus::RowRange rows, bool only_step) const {
    Index const count = rows.size();
    auto const row_view = [&](auto const& elements, std::size_t axis, auto const& extents) {
      using X = typename std::remove_cvref_t<decltype(elements)>::value_type;
      constexpr std::size_t rank = std::tuple_size_v<std::remove_cvref_t<decltype(extents)>>;
      if (elements.empty()) return View<X const, rank>();
      return View<X const, rank>(elements.data(), extents).slice(axis, rows.begin, count);
    };
    std::vector<annulus::Tile> const tiles = tiles_of(rows);
    std::array<Index, 4> const pairs{batches, query_heads_, queries, keys_};
    auto const mask = row_view(mask_, 2, pairs);
    annulus::Step<T, Hashed, annulus::HostMemory> const step{
        .tiles = tiles,
        .rules = rules_,
        .query_positions =
            std::span(query_positions_).subspan(static_cast<std::size_t>(rows.begin), static_cast<std::size_t>(count)),
        .key_positions = key_positions_,
        .predicate = &restricts_,
        .bias = row_view(bias_, 2, pairs),
        .boolean_mask = {reinterpret_cast<bool const*>(mask.data()), mask.extents(), mask.strides()},
        .query_documents = row_view(query_documents_, 1, std::array<Index, 2>{batches, queries}),
        .key_documents = View<std::int32_t const, 2>(key_documents_.data(), {batches, keys_}),
        .opens = only_step ? annulus::Sums::queries : annulus::Sums::none,
        .closes = only_step ? annulus::Sums::queries : annulus::Sums::none};
    std::vector<A> sums(static_cast<std::size_t>(batches * count * query_heads_ * value_dim_), A(0.25));
    std::vector<A> statistics(static_cast<std::size_t>(4 * batches * query_heads_ * count), A(1));
    std::vector<T> output(sums.size());
    Index const of_rows = batches * query_heads_ * count;
    std::array<Index, 3> const by_row{batches, query_heads_, count};
    std::array<Index, 4> const by_element{batches, count, query_heads_, value_dim_};
    auto const statistic = [&](Index i) { return View<A, 3>(statistics.data() + i * of_rows, by_row); };
    annulus::CpuBackend backend{.threads = 2};
    annulus::detail::fold(
        backend, step,
        annulus::StepOperands<T, annulus::HostMemory>{
            row_view(q_, 1, std::array<Index, 4>{batches, queries, query_heads_, dim_}), view(k_, dim_),
            view(v_, value_dim_)},
        annulus::RunningState<A, annulus::HostMemory>{{sums.data(), by_element}, statistic(0), statistic(1)},
        annulus::ForwardResults<T, A, annulus::HostMemory>{{output.data(), by_element}, statistic(2), statistic(3)});
    std::vector<std::vector<A>> result(static_cast<std::size_t>(count));
    for (Index b = 0; b < batches; ++b)
      for (Index i = 0; i < count; ++i)
        for (Index h = 0; h < query_heads_; ++h) {
          std::vector<A>& row = result[static_cast<std::size_t>(i)];
          for (Index s = only_step ? 2 : 0; s < (only_step ? 4 : 2); ++s) row.push_back(statistic(s)(b, h, i));
          for (Index d = 0; d < value_dim_; ++d) {
            auto const e = static_cast<std::size_t>(((b * count + i) * query_heads_ + h) * value_dim_ + d);
            row.push_back(only_step ? static_cast<A>(output[e]) : sums[e]);
          }
        }
    return result;
  }

  /// NaN equals NaN.
  static bool same_bits(std::vector<A> const& a, std::vector<A> const& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
    return a.size() == b.size();
  }

  static constexpr Index batches = 2;
  RandomChoice choose_;
  Index kv_heads_ = 1, query_heads_ = 1, keys_ = 1, dim_ = 1, value_dim_ = 1, order_ = 0;
  Index offset_ = 0, cut_ = 1, gap_ = 0;  ///< position of the first query; `gap_` more from query cut_ on
  annulus::AttentionRules rules_;
  Hashed restricts_{false};
  std::vector<T> q_, k_, v_, bias_;
  std::vector<char> mask_;
  std::vector<std::int32_t> query_documents_, key_documents_;
  std::vector<Index> query_positions_, key_positions_;
  std::vector<annulus::Segment> segments_;
  std::ostringstream words_;
};

}  // namespace annulus_test
