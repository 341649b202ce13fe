#include <algorithm>
#include <annulus/attention/validate.hpp>
#include <annulus/nki/kernels/backward_kernel.hpp>
#include <annulus/nki/kernels/forward_kernel.hpp>
#include <annulus/nki/kernels/ring_mask.hpp>
#include <annulus/nki/simulate/arithmetic.hpp>
#include <annulus/nki/validate/validate.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "errors.hpp"
#include "nki_parts.hpp"
#include "packed_documents.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Side;
using annulus::nki::ElementType;

annulus::DataType data_type_of(ElementType type) {
  return type == ElementType::float32    ? annulus::DataType::float32
         : type == ElementType::bfloat16 ? annulus::DataType::bfloat16
                                         : annulus::DataType::float16;
}

AttendOptions file_options(NkiOptions const& options) {
  AttendOptions files = options.attend;
  files.dtype = data_type_of(options.type);
  if (!options.sinks.empty() && !options.sinks_per_head()) files.sinks = options.sinks;
  files.bias = options.bias;
  files.bias_gradient = options.bias_gradient;
  return files;
}

std::int32_t document_at(std::vector<Index> const& starts, Index position) {
  return static_cast<std::int32_t>(std::upper_bound(starts.begin(), starts.end(), position) - starts.begin());
}

/// Rows per rank. Throws InputError unless all ranks have equally many, at least 1.
Index local_length(annulus::Sharding const& sharding, Side side, int ranks, Index length) {
  std::vector<Index> const lengths = sharding.lengths(side, ranks, length);
  auto const [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  if (*least != *most || *least < 1)
    throw InputError(std::to_string(length) + (side == Side::query ? " queries" : " keys") + " on " +
                     std::to_string(ranks) + " ranks are " + std::to_string(*least) + " to " + std::to_string(*most) +
                     " per rank; accepted: equally many on every rank, at least 1");
  return *least;
}

/// Document ids, [batch][position]; empty if there is one document. The bounds of nkilib may differ between batch
/// items: with its functions each item has other ids, so that the kernels take a table for each.
std::vector<std::vector<std::int32_t>> document_ids(NkiOptions const& options, CallShape const& shape) {
  if (options.documents.empty()) return {};
  std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(shape.attention.batch));
  for (std::size_t item = 0; item < ids.size(); ++item)
    for (Index position = 0; position < shape.keys; ++position)
      ids[item].push_back(document_at(options.documents, position) +
                          (options.like_nkilib ? static_cast<std::int32_t>(item) : 0));
  return ids;
}

/// The bias that the options describe. A bias from a file varies along queries and keys, and along heads unless it has
/// one for all heads and batch items.
annulus::nki::BiasSpec bias_of(NkiOptions const& options, CallShape const& shape) {
  if (options.bias.empty()) return {};
  return options.bias_axes().value_or(annulus::nki::BiasSpec{.given = true,
                                                             .by_head = shape.bias[0] * shape.bias[1] > 1,
                                                             .gradient = options.bias_gradient,
                                                             .type = options.bias_type});
}

annulus::nki::KernelSpec spec_of(NkiOptions const& options, CallShape const& shape) {
  annulus::Options const& attention = options.attend.attention;
  int const ranks = options.ranks();
  return {.target = options.target,
          .cores = options.cores,
          .ranks = ranks,
          .groups = options.groups,
          .shape = shape.attention,
          .local_queries = local_length(attention.sharding, Side::query, ranks, shape.queries),
          .local_keys = local_length(attention.sharding, Side::key, ranks, shape.keys),
          .type = options.type,
          .output_type = options.output_type.value_or(options.type),
          .lse_type = options.lse_type.value_or(ElementType::float32),
          .softmax_scale = annulus::rules_of(attention).scale(shape.attention.head_dim),
          .logit_softcap = attention.logit_softcap,
          .sinks = shape.sinks,
          .bias = bias_of(options, shape),
          .queries_by_token = options.queries_by_token,
          .keys_by_token = options.keys_by_token,
          .training = options.training,
          .masked_row = options.masked_row.value_or(options.like_nkilib ? annulus::nki::MaskedRow::zero
                                                                        : annulus::nki::MaskedRow::minus_infinity),
          .travels = options.rotating_side() == NkiBackward::keys ? annulus::nki::RotatingSide::keys
                                                                  : annulus::nki::RotatingSide::queries,
          .keys_stationary = options.keys_stationary.value_or(false)};
}

/// Throws InputError for an element that is not finite. `operand` names the option of its file, without the dashes;
/// allows_minus_infinity: -inf is accepted as well.
template <class Operand>
void require_finite(char const* operand, Operand const& tensor, ElementType type, bool allows_minus_infinity) {
  auto const end = tensor.data() + tensor.size();
  auto const found = std::find_if_not(tensor.data(), end,
                                      [&](float x) { return std::isfinite(x) || (allows_minus_infinity && x < 0); });
  if (found != end)
    throw InputError(std::string("--") + operand + ": element " + std::to_string(found - tensor.data()) +
                     " in memory order is " +
                     (std::isnan(*found) ? "nan"
                      : *found > 0       ? "inf"
                                         : "-inf") +
                     " as " + std::string(name_of(type)) + "; accepted: values that are finite in that type" +
                     (allows_minus_infinity ? ", and -inf" : ""));
}

/// Fills a bias [batch or 1, heads or 1, queries, keys] with random elements that are constant along the axes along
/// which it does not vary. One element in 16 hides its pairs.
template <class Generator>
void fill_bias(annulus::nki::BiasSpec const& spec, Tensor<float, 4>& bias, Generator& generator) {
  std::normal_distribution<float> normal;
  auto const random = [&] { return generator() % 16 == 0 ? annulus::nki::hiding_bias : normal(generator); };
  for (Index b = 0; b < bias.dimension(0); ++b)
    for (Index h = 0; h < bias.dimension(1); ++h)
      for (Index i = 0; i < bias.dimension(2); ++i)
        for (Index j = 0; j < bias.dimension(3); ++j)
          bias(b, h, i, j) = !spec.by_query && i > 0 ? bias(b, h, 0, j)
                             : !spec.by_key && j > 0 ? bias(b, h, i, 0)
                                                     : random();
}

}  // namespace

std::optional<AttendFiles> read_nki_files(NkiOptions const& options) {
  if (!options.reads_files()) return std::nullopt;
  return read_files(file_options(options));
}

CallShape nki_shape(NkiOptions const& options, std::optional<AttendFiles> const& files) {
  CallShape shape;
  if (files) {
    shape = shape_of(*files, file_options(options));
  } else {
    shape.attention = {.batch = options.batch,
                       .query_heads = options.query_heads,
                       .kv_heads = options.kv_heads.value_or(options.query_heads),
                       .head_dim = options.head_dim,
                       .value_dim = options.value_dim.value_or(options.head_dim)};
    shape.queries = *options.tokens_per_rank * options.ranks();
    shape.keys = options.keys_per_rank.value_or(*options.tokens_per_rank) * options.ranks();
    shape.sinks = options.sinks_per_head().value_or(0);
    shape.backward = options.wants_backward();
    shape.bias_gradient = options.bias_gradient;
    if (auto const bias = options.bias_axes())
      shape.bias = {bias->by_head ? options.batch : 1, bias->by_head ? options.query_heads : 1};
  }
  shape.dtype = data_type_of(options.type);
  shape.document_ids = !options.documents.empty();
  return shape;
}

namespace {

bool takes_stationary_keys(NkiProblem const& problem) {
  annulus::nki::KernelSpec spec = problem.spec;
  spec.keys_stationary = true;
  try {
    annulus::nki::ForwardKernel(spec, problem.mask);
  } catch (annulus::Error const&) {
    return false;
  }
  return true;
}

}  // namespace

NkiProblem nki_problem(NkiOptions const& options, CallShape const& shape) {
  require_documents(options.documents, shape.queries, shape.keys);
  annulus::nki::KernelSpec const spec = spec_of(options, shape);
  annulus::nki::check_spec(spec);
  annulus::Options attention = options.attend.attention;
  attention.query_offset = annulus::query_offset_of(annulus::rules_of(attention), shape.queries, shape.keys);
  auto const ids = document_ids(options, shape);
  annulus::nki::RingMask mask =
      annulus::nki::sharded_mask(attention.mask, attention.sharding, spec.ranks, spec.local_queries, spec.local_keys,
                                 *attention.query_offset, ids, ids);
  if (options.run_time_documents) mask = mask.for_any_documents();
  if (options.plain) mask = mask.by_rows();
  NkiProblem problem{.call = {.shape = shape, .options = attention, .axes = options.attend.axes},
                     .spec = spec,
                     .mask = std::move(mask),
                     .global_mask = annulus::nki::sharded_mask(attention.mask, annulus::Contiguous{}, 1, shape.queries,
                                                               shape.keys, *attention.query_offset, ids, ids),
                     .documents = options.documents,
                     .like_nkilib = options.like_nkilib};
  if (!options.keys_stationary && options.wants_forward() && !options.like_nkilib && !options.plain)
    problem.spec.keys_stationary = takes_stationary_keys(problem);
  if (options.plain) require_plain_sums_fit(options, problem);
  return problem;
}

Inputs<float> nki_inputs(NkiOptions const& options, NkiProblem const& problem, std::optional<AttendFiles>&& files) {
  CallShape const& shape = problem.call.shape;
  Inputs<float> inputs = files ? inputs_of<float>(std::move(*files), shape)
                               : make_inputs<float>(problem.call, {shape.queries, shape.keys});
  std::mt19937_64 generator(options.seed.value_or(0));
  std::normal_distribution<float> normal;
  auto const fill = [&](char const* operand, auto& tensor, ElementType type) {
    if (!options.reads_files())
      std::generate(tensor.data(), tensor.data() + tensor.size(), [&] { return normal(generator); });
    annulus::nki::simulator::round_to(type, tensor.data(), tensor.size());
    require_finite(operand, tensor, type, false);
  };
  fill("q", inputs.q, problem.spec.type);
  fill("k", inputs.k, problem.spec.type);
  fill("v", inputs.v, problem.spec.type);
  if (inputs.dout) fill("dout", *inputs.dout, problem.spec.type);
  if (inputs.sinks) fill("sinks", *inputs.sinks, ElementType::float32);
  if (inputs.bias) {
    annulus::nki::BiasSpec const& spec = problem.spec.bias;
    if (!options.reads_files()) fill_bias(spec, *inputs.bias, generator);
    annulus::nki::simulator::round_to(spec.type, inputs.bias->data(), inputs.bias->size());
    // The reference hides a pair by -inf.
    for (float& x : std::span(inputs.bias->data(), static_cast<std::size_t>(inputs.bias->size())))
      if (annulus::nki::hides_pair(x)) x = -std::numeric_limits<float>::infinity();
    require_finite("bias", *inputs.bias, spec.type, true);
  }
  if (!problem.documents.empty()) {
    // make_inputs allocates the ids; inputs from files have none.
    inputs.query_documents.emplace(shape.attention.batch, shape.queries);
    inputs.key_documents.emplace(shape.attention.batch, shape.keys);
    for (auto* ids : {&*inputs.query_documents, &*inputs.key_documents})
      for (Index b = 0; b < ids->dimension(0); ++b)
        for (Index i = 0; i < ids->dimension(1); ++i) (*ids)(b, i) = document_at(problem.documents, i);
  }
  return inputs;
}

namespace {

template <class Build>
NkiKernel built(annulus::Pass pass, NkiProblem const& problem, Build&& build) {
  using Clock = std::chrono::steady_clock;
  auto const begin = Clock::now();
  annulus::nki::Program program = build();
  auto const end = Clock::now();
  auto validated = annulus::nki::validated(std::move(program), annulus::nki::hardware_of(problem.spec.target));
  return {pass, std::move(validated), std::chrono::duration<double>(end - begin).count(),
          std::chrono::duration<double>(Clock::now() - end).count()};
}

}  // namespace

std::vector<NkiKernel> nki_kernels(NkiOptions const& options, NkiProblem const& problem) {
  std::vector<NkiKernel> kernels;
  annulus::nki::KernelSpec online = problem.spec;
  online.keys_stationary = false;
  annulus::nki::RingMask forward_mask = problem.mask, backward_mask = problem.mask;
  if (options.like_nkilib && !problem.documents.empty()) {
    // Bounds are arguments of nkilib's functions; its backward function also takes documents that tiles are skipped by.
    forward_mask = problem.mask.for_any_documents();
    backward_mask = problem.mask.for_any_documents(!options.run_time_documents);
  }
  for (auto const* spec : {&problem.spec, &std::as_const(online)})
    if (options.wants_forward() && (spec->keys_stationary || spec == &online))
      kernels.push_back(built(annulus::Pass::forward, problem,
                              [&] { return annulus::nki::ForwardKernel(*spec, forward_mask).ring(); }));
  if (options.wants_backward())
    kernels.push_back(built(annulus::Pass::backward, problem, [&] {
      return annulus::nki::BackwardKernel(problem.spec_for(annulus::Pass::backward), backward_mask).ring();
    }));
  return kernels;
}

NkiFunction nki_function(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  if (problem.like_nkilib) return nkilib_function(options, problem, kernel);
  annulus::nki::Program const& program = kernel.program();
  annulus::nki::KernelSpec const& spec = problem.spec;
  auto const tensors = [&](annulus::nki::Role role) {
    std::vector<NkiTensor> all;
    for (int number : program.with_role(role)) {
      annulus::nki::Buffer const& buffer = program.buffer(number);
      bool const dim_first =
          (buffer.name == "q" && !spec.queries_by_token) || (buffer.name == "k" && !spec.keys_by_token);
      all.push_back({buffer.name, buffer.name, buffer.type, buffer.shape, dim_first});
    }
    return all;
  };
  NkiFunction function{program.name, tensors(annulus::nki::Role::input), tensors(annulus::nki::Role::output), {}};
  if (program.ranks > 1) function.constants.push_back({"replica_groups", "REPLICA_GROUPS"});
  if (!program.mask_fingerprint.empty())
    function.constants.push_back({"mask_fingerprint", "\"" + program.mask_fingerprint + "\""});
  return function;
}

std::string mask_input_of(annulus::nki::Program const& program) {
  for (char const* name : {"mask_offsets", "mask_ranges", "mask_key_ranges"})
    if (program.find(name) >= 0) return name;
  return {};
}

std::vector<float> mask_table(NkiProblem const& problem, NkiKernel const& kernel, int rank) {
  bool const queries_rotate = problem.queries_rotate(kernel.pass);
  std::string const input = mask_input_of(kernel.program());
  if (input == "mask_key_ranges") return problem.mask.key_ranges(rank, problem.groups());
  return input == "mask_offsets" ? problem.mask.offsets(rank, problem.groups(), queries_rotate)
                                 : problem.mask.ranges(rank, problem.groups(), queries_rotate);
}

std::string nki_ring_warning(annulus::nki::KernelSpec const& spec) {
  int const node = 128 / spec.cores, all = spec.ranks * spec.groups;
  auto const power_of_two = [](int ranks) { return (ranks & (ranks - 1)) == 0; };
  bool const whole = spec.target == annulus::nki::Target::trn2 ? all <= node || all % node == 0 : power_of_two(all);
  if (power_of_two(spec.ranks) && spec.ranks <= 128 && whole) return {};
  return annulus::detail::message_of(
      spec.groups, spec.groups == 1 ? " ring of " : " rings of ", spec.ranks,
      " ranks: a permute needs a physical link ",
      "between neighbours (vendor's page \"What is Neuron Collective Communication?\", operation Permute), and the ",
      "vendor's ring kernels name 2, 4, 8 .. 128 ranks in whole instances",
      spec.target == annulus::nki::Target::trn2 ? annulus::detail::message_of(" of ", node) : std::string(),
      " or equal parts of one; on other rings the runtime may refuse this kernel");
}

}  // namespace annulus_command
