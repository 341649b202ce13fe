#pragma once
// The Trainium backend: runs each step as a tile program on simulated NeuronCores.

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/nki/step_rows.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/program/program.hpp"
#include "annulus/nki/simulate/simulate.hpp"
#include "annulus/nki/validate/validate.hpp"

namespace annulus {

namespace nki {

/// Everything that the program of a step kernel depends on, for a fixed target and number of cores.
using KernelKey = std::vector<std::int64_t>;

/// Key of a step kernel: pass, shape, types, factors, pieces, and the range that each query row sees.
inline KernelKey key_of(Pass pass, KernelSpec const& spec, RingMask const& mask) {
  auto const& shape = spec.shape;
  KernelKey key{pass == Pass::backward,
                shape.batch,
                shape.query_heads,
                shape.kv_heads,
                shape.head_dim,
                shape.value_dim,
                spec.local_queries,
                spec.local_keys,
                static_cast<int>(spec.type),
                std::bit_cast<std::int64_t>(spec.softmax_scale),
                std::bit_cast<std::int64_t>(spec.logit_softcap),
                spec.bias.given,
                spec.bias.gradient,
                std::bit_cast<std::int64_t>(spec.keep_scale),
                static_cast<int>(mask.form())};
  auto const add = [&](RowRange range) {
    key.push_back(range.begin);
    key.push_back(range.end);
  };
  for (auto const* pieces : {&mask.query_pieces(), &mask.pieces()}) {
    key.push_back(std::ssize(*pieces));
    for (RowRange piece : *pieces) add(piece);
  }
  // Which tiles are skipped follows from what each row sees.
  for (std::size_t piece = 0; mask.form() != BoundsForm::none && piece < mask.pieces().size(); ++piece)
    for (Index i = 0; i < spec.local_queries; ++i) add(mask.seen(0, 0, 0, piece, i));
  return key;
}

/// Least-recently-used cache of up to `most` programs (at least 1).
class KernelCache {
 public:
  /// An empty cache.
  explicit KernelCache(std::size_t most) : most_(std::max(most, std::size_t{1})) {}

  std::size_t size() const { return kernels_.size(); }  ///< number of kernels kept
  /// Number of programs built so far, evicted ones included.
  Index built() const { return built_; }

  /// The program of that key, built by build() if it is not cached. The reference is valid until the next call.
  template <class Build>
  ValidatedProgram const& get(KernelKey const& key, Build&& build) {
    auto found = kernels_.find(key);
    if (found == kernels_.end()) {
      ValidatedProgram program = build();
      ++built_;
      if (kernels_.size() == most_)
        kernels_.erase(std::ranges::min_element(kernels_, {}, [](auto const& entry) { return entry.second.used; }));
      found = kernels_.emplace(key, Kernel{std::move(program), 0}).first;
    }
    found->second.used = ++clock_;
    return found->second.program;
  }

 private:
  struct Kernel {
    ValidatedProgram program;
    Index used = 0;
  };

  std::size_t most_;
  std::map<KernelKey, Kernel> kernels_;
  Index clock_ = 0, built_ = 0;
};

}  // namespace nki

/// Options of NkiBackend.
struct NkiOptions {
  nki::Target target = nki::Target::trn2;  ///< hardware generation
  int cores = 2;                           ///< LNC: 1 or 2 physical cores share a rank
  bool validate = true;                    ///< validate each program once against the limits of the hardware
  std::size_t kept_kernels = 64;           ///< capacity of the cache of step programs
};

/// Backend that computes in host memory what a NeuronCore would: products in the operands' type with fp32 sums;
/// probabilities are rounded to that type before they multiply the values.
///
/// Supports float, half and bfloat16, every option, grouped heads and dims up to 512. Kernels receive masks on
/// positions and documents as bounds, and bias, boolean masks, block masks and predicates as a bias of each pair. Keys
/// that no query sees may hold any value; a key that one query sees and another does not must be finite, as on the
/// device. fold() throws UnsupportedError for a row whose largest logit exceeds 2^24 in magnitude, add_gradients() for
/// one whose log-sum-exp exceeds 2^25; the error names the row, and the ring is then closed.
class NkiBackend : public HostOperations {
 public:
  /// Type of sums over operands of type T.
  template <class T>
  using accumulator = Accumulator<T>;

  /// Throws UnsupportedError unless options.cores is 1 or 2.
  explicit NkiBackend(NkiOptions const& options = {})
      : options_(options), hardware_(nki::hardware_of(options.target)), kernels_(options.kept_kernels) {
    detail::check<UnsupportedError>(options.cores == 1 || options.cores == 2, "nki: lnc is ", options.cores,
                                    "; a logical core is 1 or 2 physical cores");
  }

  NkiOptions const& options() const { return options_; }        ///< as given
  nki::KernelCache const& kernels() const { return kernels_; }  ///< kernels built so far

  /// Refuses double, and shapes that no kernel takes.
  Support supports(Problem const& problem) const {
    auto const no = [](std::string_view what) { return Support::no("nki: " + std::string(what)); };
    if (problem.data_type == DataType::float64)
      return no("operands of float64; accepted are float32, float16, bfloat16");
    try {
      nki::KernelSpec spec = spec_of(problem);
      // Other ranks may hold more keys: beyond one group of keys, the SBUF that a kernel needs grows only with queries.
      spec.local_queries = std::max(spec.local_queries, Index{1});
      spec.local_keys = std::max(spec.local_keys, longest_group);
      std::vector<Segment> keys;
      Index const length = spec.local_keys / static_cast<Index>(nki::most_step_pieces);
      for (Index piece = 0; piece < static_cast<Index>(nki::most_step_pieces); ++piece)
        detail::append_segment(keys, length, 2 * piece * length, 1);
      nki::RingMask const widest(causal(), {{{{0, spec.local_queries, 0, 1}}}}, {{std::move(keys)}});
      problem.pass == Pass::forward ? void(nki::ForwardKernel(spec, widest)) : void(nki::BackwardKernel(spec, widest));
    } catch (Error const& error) {
      return Support::no(error.what());
    }
    return Support::yes();
  }

  /// Runs the forward program of a step on the rows of its operands and of the state.
  template <class T, class Predicate, class A, class L = Accumulator<T>>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> state, ForwardResults<T, L, HostMemory> const& results = {}) {
    detail::open_sums(*this, step.opens, state);
    for_each_part(Pass::forward, step, operands, false, [&](Part const& part) { fold_part(part, operands, state); });
    detail::close_sums(*this, step.closes, state, results);
  }

  /// Runs the backward program of a step and adds its gradients.
  template <class T, class L, class Predicate, class A, class G = T>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     BackwardOperands<T, L, A, HostMemory> const& backward, StepGradients<A, HostMemory> gradients,
                     GradientResults<G, HostMemory> const& results = {}) {
    detail::open_sums(*this, step.opens, gradients);
    TensorView<G, 4> const written_dbias = has(step.closes, Sums::pairs) ? results.dbias : TensorView<G, 4>();
    if (written_dbias.data()) detail::clear_pairs(*this, step.key_positions, written_dbias);
    bool const wants_dbias = gradients.dbias.data() || written_dbias.data();
    for_each_part(Pass::backward, step, operands, wants_dbias, [&](Part const& part) {
      nki::Tensors const after = add_part_gradients(part, operands, backward, gradients);
      if (gradients.dbias.data()) add_bias_gradient(step, part, after.at("dbias"), part.of(gradients.dbias));
      if (written_dbias.data()) add_bias_gradient(step, part, after.at("dbias"), part.of(written_dbias));
    });
    detail::close_sums(*this, step.closes, gradients, results);
  }

 private:
  using Layout = nki::Layout;
  static constexpr Index longest_group = 4096;

  /// Batch items of a step that one kernel computes.
  struct Part {
    nki::StepRows rows;
    nki::KernelSpec spec;
    Index first;                ///< batch item
    std::vector<float> bias{};  ///< [query_heads, queries, keys] of the kernel
    std::vector<float> kept{};  ///< by dropout: 1 or 0, likewise
    std::vector<char> sees{};   ///< with a bias: whether a row sees a key, [query_heads, queries]

    auto of(auto const& view) const { return view.slice(axis::batch, first, spec.shape.batch); }
  };

  template <class T, class A>
  void fold_part(Part const& part, StepOperands<T, HostMemory> const& operands,
                 RunningState<A, HostMemory> const& state) {
    auto const sums = part.of(state.accumulator);
    auto const maximum = nki::rows_of_one(part.of(state.maximum)), sum = nki::rows_of_one(part.of(state.sum));
    std::vector<Index> const& rows = part.rows.queries;
    nki::Tensors inputs = inputs_of(part, operands);
    inputs["old_negated_maximum"] = nki::packed<A>(
        maximum, rows, Layout::by_column,
        [](A value, auto...) { return value == empty_row<A> ? A(nki::empty_negated_maximum) : -value; },
        nki::empty_negated_maximum);
    inputs["old_sum"] = nki::packed<A>(sum, rows, Layout::by_column);
    float const kept = part.spec.keep_scale > 0 ? static_cast<float>(part.spec.keep_scale) : 1;
    inputs["old_accumulator"] =
        nki::packed<A>(sums, rows, Layout::by_row, [&](A value, auto...) { return static_cast<float>(value) / kept; });
    nki::Tensors const after = run(Pass::forward, part, inputs);
    nki::unpack(after.at("new_negated_maximum"), rows, Layout::by_column, maximum, -1);
    nki::unpack(after.at("new_sum"), rows, Layout::by_column, sum);
    nki::unpack(after.at("new_accumulator"), rows, Layout::by_row, sums, kept);
    mark_empty_rows(part.of(state.maximum), part);
    require_within(part.of(state.maximum), part, nki::largest_logit, "largest logit");
  }

  /// Adds the gradients of a part but that of the bias; returns the results of the program.
  template <class T, class L, class A>
  nki::Tensors add_part_gradients(Part const& part, StepOperands<T, HostMemory> const& operands,
                                  BackwardOperands<T, L, A, HostMemory> const& backward,
                                  StepGradients<A, HostMemory> const& gradients) {
    auto const lse = part.of(backward.lse);
    require_within(lse, part, 2 * nki::largest_logit, "log-sum-exp");
    // A weight is exp(logit - lse) * exp(-lse_remainder). The kernel computes the first factor; the second is folded
    // into dout and delta, which the kernel multiplies by the weights.
    auto const weighed = [&]<class Value>(Value value, Index b, Index h, Index row) {
      float const factor = std::exp(-static_cast<float>(backward.remainder(part.first + b, h, row)));
      return static_cast<Value>(static_cast<float>(value) * factor);
    };
    nki::StepRows const& rows = part.rows;
    nki::Tensors inputs = inputs_of(part, operands);
    inputs["dout"] = nki::packed(part.of(backward.dout), rows.queries, Layout::by_row, weighed);
    inputs["lse"] = nki::packed(nki::rows_of_one(lse), rows.queries, Layout::by_column);
    inputs["delta"] = nki::packed(nki::rows_of_one(part.of(backward.delta)), rows.queries, Layout::by_column, weighed);
    auto const dq = part.of(gradients.dq), dk = part.of(gradients.dk), dv = part.of(gradients.dv);
    inputs["dq"] = nki::packed<A>(dq, rows.queries, Layout::by_row);
    inputs["dk"] = nki::packed<A>(dk, rows.keys, Layout::by_row);
    inputs["dv"] = nki::packed<A>(dv, rows.keys, Layout::by_row);
    nki::Tensors after = run(Pass::backward, part, inputs);
    nki::unpack(after.at("new_dq"), rows.queries, Layout::by_row, dq);
    nki::unpack(after.at("new_dk"), rows.keys, Layout::by_row, dk);
    nki::unpack(after.at("new_dv"), rows.keys, Layout::by_row, dv);
    return after;
  }

  /// True for options that shift or hide single pairs.
  static bool has_pair_options(Problem const& problem) {
    return problem.bias || problem.boolean_mask || problem.predicate || problem.rules.block_mask;
  }

  /// Fills the bias of a part: hiding_bias where an option hides the pair. Rows without a visible pair become inactive.
  template <class T, class Predicate>
  static void fill_bias(Step<T, Predicate, HostMemory> const& step, Part& part) {
    std::vector<Index>&queries = part.rows.queries, &keys = part.rows.keys;
    std::vector<char> query_sees(queries.size()), key_seen(keys.size());
    Index const positions = std::ssize(step.key_positions);
    auto const visible = std::make_unique<bool[]>(static_cast<std::size_t>(positions));
    for (Index head = 0; head < part.spec.shape.query_heads; ++head)
      for (std::size_t i = 0; i < queries.size(); ++i) {
        bool const active = queries[i] != nki::inactive_row;
        if (active) step.find_visible(part.first, head, queries[i], {0, positions}, {}, visible.get());
        part.sees.push_back(false);
        for (std::size_t j = 0; j < keys.size(); ++j) {
          bool seen = active && keys[j] != nki::inactive_row && visible[static_cast<std::size_t>(keys[j])];
          float bias = 0;
          if (seen && step.bias.data())
            bias = static_cast<float>(step.bias(part.first, head, queries[i], position(step, keys[j])));
          seen = seen && !nki::hides_pair(bias);
          part.bias.push_back(seen ? bias : nki::hiding_bias);
          if (seen) part.sees.back() = query_sees[i] = key_seen[j] = true;
        }
      }
    for (std::size_t i = 0; i < queries.size(); ++i)
      if (!query_sees[i]) queries[i] = nki::inactive_row;
    for (std::size_t j = 0; j < keys.size(); ++j)
      if (!key_seen[j]) keys[j] = nki::inactive_row;
  }

  /// Fills what dropout keeps of a part: 1 or 0 for each pair.
  template <class T, class Predicate>
  static void fill_kept(Step<T, Predicate, HostMemory> const& step, Part& part) {
    for (Index head = 0; head < part.spec.shape.query_heads; ++head)
      for (Index query : part.rows.queries)
        for (Index key : part.rows.keys)
          part.kept.push_back(query != nki::inactive_row && key != nki::inactive_row &&
                              step.kept(part.first, head, query, key));
  }

  template <class T, class Predicate>
  static Index position(Step<T, Predicate, HostMemory> const& step, Index key) {
    return step.key_positions[static_cast<std::size_t>(key)];
  }

  /// Adds a kernel's dbias, [query_heads, queries, keys], to that of the step, in which pairs may share elements.
  template <class T, class Predicate, class A>
  static void add_bias_gradient(Step<T, Predicate, HostMemory> const& step, Part const& part,
                                std::vector<float> const& values, TensorView<A, 4> const& dbias) {
    std::size_t place = 0;
    for (Index head = 0; head < part.spec.shape.query_heads; ++head)
      for (Index query : part.rows.queries)
        for (Index key : part.rows.keys) {
          float const value = values[place++];
          if (query != nki::inactive_row && key != nki::inactive_row)
            dbias(0, head, query, position(step, key)) += static_cast<A>(value);
        }
  }

  /// Calls function(batch item, query head, row) for the rows of a part that see a key or, with sees = false, that take
  /// part and see none because of the bias.
  static void for_each_row(Part const& part, bool sees, auto&& function) {
    std::vector<Index> const& rows = part.rows.queries;
    for (Index b = 0; b < part.spec.shape.batch; ++b)
      for (Index h = 0; h < part.spec.shape.query_heads; ++h)
        for (std::size_t i = 0; i < rows.size(); ++i)
          if (rows[i] != nki::inactive_row &&
              sees == (part.sees.empty() || part.sees[static_cast<std::size_t>(h) * rows.size() + i]))
            function(b, h, rows[i]);
  }

  /// Restores the maximum of rows that have not seen a key in this step or before.
  template <class A>
  static void mark_empty_rows(TensorView<A, 3> const& maximum, Part const& part) {
    for_each_row(part, false, [&](Index b, Index h, Index row) {
      if (maximum(b, h, row) <= -nki::empty_negated_maximum) maximum(b, h, row) = empty_row<A>;
    });
  }

  /// Throws UnsupportedError if the statistic of a row that sees a key exceeds the limit or is infinite. NaN passes,
  /// since it propagates to the results.
  static void require_within(auto const& statistic, Part const& part, float limit, std::string_view name) {
    for_each_row(part, true, [&](Index b, Index h, Index row) {
      auto const value = statistic(b, h, row);
      detail::check<UnsupportedError>(!(std::abs(value) > limit), "nki: the ", name, " of batch item ", part.first + b,
                                      ", query head ", h, ", query row ", row, " of the step is ", value,
                                      "; accepted: magnitudes of at most ", limit,
                                      ", up to which the rounding of logits does not decide the result");
    });
  }

  static nki::ElementType element_type(DataType type) {
    return type == DataType::float16    ? nki::ElementType::float16
           : type == DataType::bfloat16 ? nki::ElementType::bfloat16
                                        : nki::ElementType::float32;
  }

  template <class T, class Predicate>
  static Problem problem_of(Pass pass, Step<T, Predicate, HostMemory> const& step,
                            StepOperands<T, HostMemory> const& operands, bool bias_gradient) {
    auto const &q = operands.q, &k = operands.k;
    AttentionShape const shape{.batch = q.extent(axis::batch),
                               .query_heads = q.extent(axis::heads),
                               .kv_heads = k.extent(axis::heads),
                               .head_dim = q.extent(axis::dim),
                               .value_dim = operands.v.extent(axis::dim)};
    return {.pass = pass,
            .data_type = data_type<T>,
            .shape = shape,
            .local_queries = q.extent(axis::sequence),
            .local_keys = k.extent(axis::sequence),
            .rules = step.rules,
            .bias = step.bias.data() != nullptr,
            .bias_gradient = bias_gradient,
            .boolean_mask = step.boolean_mask.data() != nullptr,
            .predicate = !std::same_as<Predicate, EveryPair>,
            .document_ids = step.has_documents()};
  }

  nki::KernelSpec spec_of(Problem const& problem) const {
    nki::KernelSpec spec{.target = options_.target,
                         .cores = options_.cores,
                         .shape = problem.shape,
                         .local_queries = problem.local_queries,
                         .local_keys = problem.local_keys,
                         .type = element_type(problem.data_type),
                         .softmax_scale = problem.rules.scale(problem.shape.head_dim),
                         .logit_softcap = problem.rules.logit_softcap,
                         .bias = {.given = has_pair_options(problem), .gradient = problem.bias_gradient}};
    if (problem.rules.dropout.active()) spec.keep_scale = problem.rules.dropout.keep_scale();
    spec.shape.batch = std::max(spec.shape.batch, Index{1});
    spec.output_type = spec.type;
    return spec;
  }

  /// Calls function(part): once with all batch items, or item by item if there are document ids or a bias.
  template <class T, class Predicate, class Function>
  void for_each_part(Pass pass, Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     bool bias_gradient, Function&& function) const {
    if (step.tiles.empty()) return;
    Problem const problem = problem_of(pass, step, operands, bias_gradient);
    Support const support = supports(problem);
    detail::check<UnsupportedError>(static_cast<bool>(support), support.reason());
    nki::KernelSpec spec = spec_of(problem);
    // The place of a key, by which sums are grouped, must not depend on what other queries of a reproducible step see.
    Tile const all{.key_count = problem.local_keys};
    std::vector<Index> const key_rows =
        nki::key_rows_of(step.rules.reproducible ? std::span(&all, 1) : std::span(step.tiles), problem.local_keys);
    std::vector<Index> key_positions;
    for (Index row : key_rows) key_positions.push_back(position(step, row));
    Index const batch = problem.shape.batch;
    spec.shape.batch = step.has_documents() || spec.bias.given || spec.keep_scale > 0 ? 1 : batch;
    for (Index first = 0; first < batch; first += spec.shape.batch) {
      nki::StepPositions at{step.query_positions, key_positions};
      if (step.has_documents()) {
        for (Index row = 0; row < problem.local_queries; ++row)
          at.query_documents.push_back(step.query_documents(first, row));
        for (Index row : key_rows) at.key_documents.push_back(step.key_documents(first, row));
      }
      auto rows = nki::step_rows(step.rules.mask, at);
      if (!rows) continue;
      for (Index& row : rows->keys)
        if (row != nki::inactive_row) row = key_rows[static_cast<std::size_t>(row)];
      spec.local_queries = std::ssize(rows->queries);
      spec.local_keys = std::ssize(rows->keys);
      Part part{*std::move(rows), spec, first};
      if (spec.bias.given) fill_bias(step, part);
      if (spec.keep_scale > 0) fill_kept(step, part);
      function(std::as_const(part));
    }
  }

  template <class T>
  static nki::Tensors inputs_of(Part const& part, StepOperands<T, HostMemory> const& operands) {
    nki::StepRows const& rows = part.rows;
    nki::Tensors inputs;
    inputs["q"] = nki::packed(part.of(operands.q), rows.queries, Layout::by_dim);
    inputs["k"] = nki::packed(part.of(operands.k), rows.keys, Layout::by_dim);
    inputs["v"] = nki::packed(part.of(operands.v), rows.keys, Layout::by_row);
    if (rows.mask.form() == nki::BoundsForm::band) inputs["mask_offsets"] = rows.mask.offsets(0, 1);
    if (rows.mask.form() == nki::BoundsForm::ranges) inputs["mask_ranges"] = rows.mask.ranges(0, 1);
    if (part.spec.bias.given) inputs["bias"] = part.bias;
    if (part.spec.keep_scale > 0) inputs["kept"] = part.kept;
    return inputs;
  }

  nki::Tensors run(Pass pass, Part const& part, nki::Tensors const& inputs) {
    nki::RingMask const& mask = part.rows.mask;
    nki::ValidatedProgram const& program = kernels_.get(nki::key_of(pass, part.spec, mask), [&] {
      nki::Program built = pass == Pass::forward ? nki::ForwardKernel(part.spec, mask).step()
                                                 : nki::BackwardKernel(part.spec, mask).step();
      return options_.validate ? nki::validated(std::move(built), hardware_)
                               : nki::ValidatedProgram::assume_valid(std::move(built));
    });
    return nki::simulate(program, inputs);
  }

  NkiOptions options_;
  nki::Hardware hardware_;
  nki::KernelCache kernels_;
};

static_assert(ClosingBackend<NkiBackend>);

}  // namespace annulus
