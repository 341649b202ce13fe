#pragma once
// Checks of the forward pass of a case: one call, the same bits again, and a ring of three folds.

#include <cstdio>
#include <cstring>

#include "annulus/backend/cuda/hopper/hopper.hpp"
#include "hopper_case.cuh"
#include "hopper_comparison.hpp"
#include "hopper_reference.cuh"

namespace hopper_check {

namespace hopper = annulus::cuda::detail::hopper;

/// Operands of a case, the dense copies that the reference reads, and its forward results.
template <class T>
struct Problem {
  Case c;
  hopper::HeadShape shape;
  Padded<T> q, k, v, dout;
  DeviceArray<float> dense_q, dense_k, dense_v, dense_dout, sinks;
  DeviceArray<int2> ranges;
  DeviceArray<double> output, lse;
  float scale;

  Problem(Case const& c, hopper::HeadShape shape)
      : c(c),
        shape(shape),
        q(c.batch, c.queries, c.query_heads, shape.head_dim, c.heads_outer),
        k(c.batch, c.keys, c.kv_heads, shape.head_dim, c.heads_outer),
        v(c.batch, c.keys, c.kv_heads, shape.value_dim, c.heads_outer),
        dout(c.batch, c.queries, c.query_heads, shape.value_dim, c.heads_outer),
        dense_q(q.randomize(c.amplitude)),
        dense_k(k.randomize(1, c.same_keys)),
        dense_v(v.randomize(1)),
        dense_dout(dout.randomize(1)),
        sinks(random_sinks(c)),
        ranges(ranges_from(0)),
        output(static_cast<long long>(dout.dense_count())),
        lse(static_cast<long long>(c.batch) * c.query_heads * c.queries),
        scale(c.scale_factor / std::sqrt(static_cast<float>(shape.head_dim))) {
    if (lse.count() == 0) return;
    reference_forward<<<dim3(c.queries, c.query_heads, c.batch), 256, reference_bytes(c.keys)>>>(
        reference(), output.data(), lse.data());
    check(cudaGetLastError(), "reference_forward");
  }

  static std::vector<float> random_sinks(Case const& c) {
    std::vector<float> values(static_cast<std::size_t>(c.query_heads * c.sinks));
    for (float& x : values) x = 3 * normal();
    return values;
  }
  /// Ranges of the rows, counted from a key.
  std::vector<int2> ranges_from(int first) const {
    std::vector<int2> all;
    for (int b = 0; b < c.batch; ++b)
      for (int i = 0; i < c.queries; ++i) {
        int2 const seen = c.seen(b, i);
        all.push_back({seen.x - first, seen.y - first});
      }
    return all;
  }
  ReferenceStep reference() const {
    return {dense_q.data(), dense_k.data(), dense_v.data(), dense_dout.data(), ranges.data(), c.queries,    c.keys,
            c.query_heads,  c.kv_heads,     shape.head_dim, shape.value_dim,   scale,         sinks.data(), c.sinks};
  }
  cuda::StepExtents extents(int keys) const {
    return {c.batch, c.queries, keys, c.query_heads, c.kv_heads, shape.head_dim, shape.value_dim};
  }
  /// Coverage of the keys from `first` on, whose ranges must be those of ranges_from(first).
  cuda::VisibleKeys visible(int first, int2 const* part_ranges) const {
    bool const full = c.rows == Rows::band && c.low == -far && c.high == far;
    if (full) return {};
    if (c.rows != Rows::band) return {cuda::Coverage::ranges, 0, 0, part_ranges, c.batch > 1 ? c.queries : 0};
    return {cuda::Coverage::band, c.low - first, c.high - first};
  }
  /// The step of keys [from, to), whose ranges must be those of ranges_from(from).
  cuda::StepArguments<T> step_arguments(int from, int to, int2 const* part_ranges) const {
    return {extents(to - from),
            visible(from, part_ranges),
            scale,
            0,
            q.template view<T const>(),
            k.template view<T const>(from),
            v.template view<T const>(from)};
  }
  cuda::StridedStatistic<float> statistic(DeviceArray<float> const& values) const {
    return {values.data(), static_cast<long long>(c.query_heads) * c.queries, c.queries, 1};
  }
};

/// Counters and bounds of a step.
struct StepMemory {
  DeviceArray<int> counters;
  DeviceArray<int4> bounds;

  explicit StepMemory(hopper::WorkspaceSize const& size) : counters(size.counters), bounds(size.bounds) {
    counters.fill(0);
  }
  hopper::Workspace view() const { return {counters.data(), bounds.data()}; }
  bool is_clean() const {
    std::vector<int> const values = counters.get();
    return std::all_of(values.begin(), values.end(), [](int x) { return x == 0; });
  }
};

template <class T>
class ForwardCheck {
 public:
  explicit ForwardCheck(Problem<T> const& problem)
      : problem_(problem),
        output_(problem.c.batch, problem.c.queries, problem.c.query_heads, problem.shape.value_dim,
                problem.c.heads_outer),
        accumulator_(problem.c.batch, problem.c.queries, problem.c.query_heads, problem.shape.value_dim,
                     problem.c.heads_outer),
        maximum_(rows()),
        sum_(rows()),
        lse(rows()),
        remainder(rows()),
        memory_(hopper::workspace_size(arguments(0, problem.c.keys, problem.ranges.data()))) {}

  /// Appends what is wrong to `failures`; returns a summary.
  std::string run(double bound, std::string& failures) {
    fold(0, problem_.c.keys, true, true);
    std::string text = judge("one call", bound, failures);
    std::vector<T> const first = output_.device.get();
    std::vector<float> const first_lse = lse.get();
    poison();
    fold(0, problem_.c.keys, true, true);
    std::vector<T> const second = output_.device.get();
    std::vector<float> const second_lse = lse.get();
    if (std::memcmp(first.data(), second.data(), first.size() * sizeof(T)) != 0 ||
        std::memcmp(first_lse.data(), second_lse.data(), first_lse.size() * sizeof(float)) != 0)
      failures += " NOT THE SAME BITS TWICE";
    int const a = problem_.c.keys / 3, b = a + (problem_.c.keys + 1) / 2;
    if (a > 0 && b < problem_.c.keys) {
      poison();
      fold(0, a, true, false);
      fold(a, b, false, false);
      fold(b, problem_.c.keys, false, true);
      text += ", three folds " + judge("three folds", bound, failures);
      poison();  // leaves the results of one call for the backward pass
      fold(0, problem_.c.keys, true, true);
    }
    if (!memory_.is_clean()) failures += " COUNTERS LEFT";
    return text;
  }

 private:
  long long rows() const { return static_cast<long long>(problem_.lse.count()); }

  cuda::FoldArguments<T> arguments(int from, int to, int2 const* ranges) const {
    cuda::FoldArguments<T> a{problem_.step_arguments(from, to, ranges)};
    a.accumulator = accumulator_.view();
    a.maximum = problem_.statistic(maximum_);
    a.sum = problem_.statistic(sum_);
    a.output = output_.view();
    a.lse = problem_.statistic(lse);
    a.lse_remainder = problem_.statistic(remainder);
    a.sinks = problem_.c.sinks > 0 ? problem_.sinks.data() : nullptr;
    a.sink_count = problem_.c.sinks;
    a.sink_head = problem_.c.sinks;
    a.sink = 1;
    return a;
  }
  void fold(int from, int to, bool opens, bool closes) {
    DeviceArray<int2> const ranges(problem_.ranges_from(from));
    cuda::FoldArguments<T> a = arguments(from, to, ranges.data());
    a.opens = opens;
    a.closes = closes;
    if (!hopper::is_fast(a)) throw annulus::Error("is_fast() refuses this step");
    hopper::fold(a, memory_.view(), nullptr);
    finish("a forward kernel");
  }
  void poison() {
    output_.device.fill(0xFF);
    accumulator_.device.fill(0xFF);
    for (DeviceArray<float>* x : {&maximum_, &sum_, &lse, &remainder}) x->fill(0xFF);
  }

  std::string judge(char const* name, double bound, std::string& failures) const {
    std::vector<T> const got = output_.device.get();
    std::vector<double> const want = problem_.output.get();
    std::vector<std::size_t> place(want.size());
    output_.for_each([&](std::size_t padded, std::size_t dense) { place[dense] = padded; });
    auto const dim = static_cast<std::size_t>(problem_.shape.value_dim);
    Difference d = compare(
        static_cast<std::size_t>(rows()), problem_.shape.value_dim, true,
        [&](std::size_t row, int e) { return static_cast<double>(static_cast<float>(got[place[row * dim + e]])); },
        [&](std::size_t row, int e) { return want[row * dim + e]; });
    if (!output_.padding_is_untouched(got)) d.wrong = true;
    double const lse_error = worst_lse();
    if (!d.within(bound)) failures += std::string(" ") + name + ": output " + d.text() + ";";
    if (!(lse_error <= 1))
      failures += std::string(" ") + name + ": lse " + std::to_string(lse_error) + " of its bound;";
    char lse_text[40];
    std::snprintf(lse_text, sizeof lse_text, ", lse %.2g of its bound", lse_error);
    return d.text() + lse_text;
  }
  /// Largest error of lse + remainder, relative to its bound: scale and exponentials round in fp32, and a tensor core
  /// rounds a logit's head_dim / 16 partial sums, each relative to the products, not to the logit.
  double worst_lse() const {
    std::vector<float> const got = lse.get(), rest = remainder.get();
    std::vector<double> const want = problem_.lse.get();
    Case const& c = problem_.c;
    double const products = c.amplitude * std::abs(c.scale_factor) * std::sqrt(problem_.shape.head_dim);
    double const of_products = products * problem_.shape.head_dim / 16 * 1.2e-7;
    double worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::isinf(want[i]) || std::isinf(got[i])) {
        if (got[i] != want[i] || rest[i] != 0) return INFINITY;
        continue;
      }
      if (got[i] + rest[i] != got[i]) return INFINITY;  // in fp32: the lse is the nearest number
      double const error = std::abs(static_cast<double>(got[i]) + rest[i] - want[i]);
      worst = std::max(worst, error / (2e-5 + of_products + 1e-6 * std::abs(want[i])));
    }
    return worst;
  }

  Problem<T> const& problem_;
  Padded<T> output_;
  Padded<float> accumulator_;
  DeviceArray<float> maximum_, sum_;

 public:
  DeviceArray<float> lse, remainder;  ///< of the last call

 private:
  StepMemory memory_;
};

}  // namespace hopper_check
