#include "demo.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <annulus/core/default_threads.hpp>
#include <annulus/numerics/dropout.hpp>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "attend_on_ranks.hpp"
#include "benchmarks/peak.hpp"
#include "call.hpp"
#include "demo_check.hpp"
#include "embedded_texts.hpp"
#include "errors.hpp"
#include "gpu_ranks.hpp"
#include "options.hpp"
#include "output_stream.hpp"
#include "progress.hpp"

namespace annulus_command {

namespace {

/// Tables of fixed_number(), one for each operand.
enum class Table : std::uint32_t { query, key, value, output_gradient };

/// Pseudo-random number, uniform between -sqrt(3) and sqrt(3) (mean 0, variance 1); a pure function of its arguments.
float fixed_number(Table table, annulus::Index row, annulus::Index head, annulus::Index dim) {
  auto const words = annulus::philox4x32({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(head),
                                          static_cast<std::uint32_t>(dim / 4), static_cast<std::uint32_t>(table)},
                                         {0x616e6e75u, 0x6c757321u});
  double const unit = static_cast<double>(words[static_cast<std::size_t>(dim % 4)]) / 4294967296.0;
  return static_cast<float>((2 * unit - 1) * std::sqrt(3.0));
}

/// Rotary embedding: rotates each pair of dims by its frequency times the position (Su et al., arXiv 2104.09864).
void rotate_pairs(float* row, annulus::Index dims, annulus::Index position) {
  for (annulus::Index d = 0; d + 1 < dims; d += 2) {
    double const frequency = std::pow(10000.0, -static_cast<double>(d) / static_cast<double>(dims));
    double const angle = static_cast<double>(position) * frequency;
    double const x = row[d], y = row[d + 1];
    row[d] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    row[d + 1] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
}

/// Global inputs made from a text: each byte is a token, embedded by a fixed table and, in q and k, given its rotary
/// position. The text is repeated or truncated to call.shape.queries positions. Axes bshd, batch 1; dout is a fixed
/// pseudo-random tensor.
Inputs<float> inputs_of_text(std::string_view text, Call const& call) {
  annulus::Index const tokens = call.shape.queries;
  Inputs<float> inputs = make_inputs<float>(call, {tokens, tokens});
  auto const fill = [&](Tensor<float, 4>& tensor, Table table) {
    annulus::Index const heads = tensor.dimension(2), dims = tensor.dimension(3);
    for (annulus::Index i = 0; i < tokens; ++i) {
      auto const byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i) % text.size()]);
      annulus::Index const row = table == Table::output_gradient ? i : byte;
      for (annulus::Index h = 0; h < heads; ++h) {
        float* const vector = &tensor(0, i, h, 0);
        for (annulus::Index d = 0; d < dims; ++d) vector[d] = fixed_number(table, row, h, d);
        if (table == Table::query || table == Table::key) rotate_pairs(vector, dims, i);
      }
    }
  };
  fill(inputs.q, Table::query);
  fill(inputs.k, Table::key);
  fill(inputs.v, Table::value);
  fill(*inputs.dout, Table::output_gradient);
  return inputs;
}

/// The first `tokens` bytes of the text, or all of it if shorter. Throws InputError if it cannot be read or is empty.
std::string text_of(DemoOptions const& options) {
  auto const limit = static_cast<std::size_t>(options.tokens);
  if (options.text.empty()) return std::string(license_text.substr(0, limit));
  std::string const name = options.text.string();
  std::error_code error;
  if (std::filesystem::is_directory(options.text, error))
    throw InputError(name + ": is a folder; accepted: a text file");
  errno = 0;
  std::ifstream stream(options.text, std::ios::binary);
  if (!stream)
    throw InputError(name + ": cannot be read (" + std::generic_category().message(errno) + "); accepted: a text file");
  std::string text(limit, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.empty()) throw InputError(name + ": is empty; accepted: a text file with at least one byte");
  return text;
}

Call call_of(DemoOptions const& options) {
  if (options.heads % options.kv_heads != 0)
    throw InputError("--heads " + std::to_string(options.heads) + " --kv-heads " + std::to_string(options.kv_heads) +
                     "; accepted: a number of kv heads that divides the number of heads");
  if (options.head_dim % 2 != 0)
    throw InputError("--head-dim " + std::to_string(options.head_dim) +
                     "; accepted: an even number, since rotary positions rotate pairs");
  return {.shape = {.dtype = annulus::DataType::float32,
                    .attention = {.batch = 1,
                                  .query_heads = options.heads,
                                  .kv_heads = options.kv_heads,
                                  .head_dim = options.head_dim,
                                  .value_dim = options.head_dim},
                    .queries = options.tokens,
                    .keys = options.tokens,
                    .backward = true},
          .options = {.mask = annulus::causal(), .sharding = annulus::Zigzag{}},
          .backend = options.backend};
}

/// Seconds from the start of a pass on the first rank to its end on the last.
double seconds_of(std::vector<Timeline> const& timelines, annulus::Pass pass) {
  auto begin = Timeline::Clock::time_point::max(), end = Timeline::Clock::time_point::min();
  for (Timeline const& timeline : timelines)
    for (annulus::Interval const& interval : timeline.intervals())
      if (interval.kind == annulus::IntervalKind::call && interval.pass == pass) {
        begin = std::min(begin, interval.begin);
        end = std::max(end, interval.end);
      }
  return std::chrono::duration<double>(end - begin).count();
}

/// Time and cost of one pass.
struct PassCost {
  double seconds, flops;
  annulus::Index bytes_sent, buffer_bytes;  ///< largest over the ranks
};

PassCost cost_of(annulus::RingPlan const& plan, double seconds) {
  PassCost cost{seconds, 0, 0, 0};
  for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank) {
    cost.flops += 2 * static_cast<double>(plan.multiply_adds(rank));
    cost.bytes_sent = std::max(cost.bytes_sent, plan.bytes_sent(rank));
    cost.buffer_bytes = std::max(cost.buffer_bytes, plan.peak_buffer_bytes(rank));
  }
  return cost;
}

/// Largest size of a rank's operands and results in bytes: q, k, v, output, lse; backward also dout, dq, dk, dv.
annulus::Index shard_bytes(Call const& call, annulus::RingPlan const& plan) {
  annulus::AttentionShape const& shape = call.shape.attention;
  annulus::Index most = 0;
  for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank) {
    annulus::Index const query_row = shape.query_heads * shape.head_dim, key_row = shape.kv_heads * shape.head_dim;
    bool const backward = plan.request().pass == annulus::Pass::backward;
    annulus::Index const elements = plan.local_queries(rank) * (query_row * (backward ? 4 : 2) + shape.query_heads) +
                                    plan.local_keys(rank) * key_row * (backward ? 4 : 2);
    most = std::max(most, elements * 4);
  }
  return most;
}

/// First-order bound of rounding errors in float that behave like random ones (Higham and Mary, SIAM J. Sci. Comput.
/// 41, 2019): a sum of n terms has an error of sqrt(n) roundings. A weight exp(logit - lse) has the error of its logit,
/// at most sqrt(head_dim) * largest_logit roundings, and that of lse, a sum over the keys. Gradients of k and v are
/// sums over the queries of a group, which are at least as many: sqrt(rows) stands for both. The factor 2: each error
/// enters directly and through delta.
double error_bound(Inputs<float> const& inputs) {
  auto const longest = [](Tensor<float, 4> const& tensor) {
    Eigen::Index const dims = tensor.dimension(3);
    double largest = 0;
    for (Eigen::Index row = 0; row < tensor.size() / dims; ++row)
      largest = std::max(
          largest, static_cast<double>(Eigen::Map<Eigen::VectorXf const>(tensor.data() + row * dims, dims).norm()));
    return largest;
  };
  double const dims = static_cast<double>(inputs.q.dimension(3)), unit = std::ldexp(1.0, -24);
  double const rows = static_cast<double>(inputs.q.dimension(1) * inputs.q.dimension(2) / inputs.k.dimension(2));
  double const largest_logit = longest(inputs.q) * longest(inputs.k) / std::sqrt(dims);
  return 2 * unit * (std::sqrt(dims) * largest_logit + std::sqrt(rows));
}

double mebibytes(annulus::Index bytes) { return static_cast<double>(bytes) / (1024 * 1024); }

void print_balance(Call call, int ranks) {
  print_formatted("  %-28s", "load imbalance (max / mean)");
  for (auto const& [name, sharding] : shardings) {
    call.options.sharding = sharding;
    print_formatted("%s %.2f   ", name.c_str(), plan_of(call, annulus::Pass::forward, ranks).imbalance());
  }
  print_formatted("\n");
}

/// "4 simulated ranks", or "4 ranks on 2 GPUs".
std::string ranks_text(DemoOptions const& options) {
  auto const counted = [](int count, std::string const& one) {
    return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
  };
  if (options.backend != gpu_backend) return counted(options.ranks, "simulated rank");
  return counted(options.ranks, "rank") + " on " + counted(std::min(number_of_gpus(), options.ranks), "GPU");
}

void print_speed_of_cores(PassCost const& forward, PassCost const& backward) {
  int const cores = annulus::default_threads();
  double const peak = annulus_bench::peak_rate(annulus::DataType::float32, cores, 0.05);
  print_formatted("  %-28s%10.0f %%%10.0f %%   of the multiply-add peak of %d %s (%s)\n", "speed",
                  100 * forward.flops / forward.seconds / peak, 100 * backward.flops / backward.seconds / peak, cores,
                  cores == 1 ? "core" : "cores", std::string(annulus::cpu_target_name()).c_str());
}

void print_table(DemoOptions const& options, Call const& call, std::vector<Timeline> const& timelines) {
  annulus::RingPlan const forward_plan = plan_of(call, annulus::Pass::forward, options.ranks);
  annulus::RingPlan const backward_plan = plan_of(call, annulus::Pass::backward, options.ranks);
  PassCost const forward = cost_of(forward_plan, seconds_of(timelines, annulus::Pass::forward));
  PassCost const backward = cost_of(backward_plan, seconds_of(timelines, annulus::Pass::backward));
  double const tokens = static_cast<double>(options.tokens);
  double const full_bytes = 4 * tokens * tokens * static_cast<double>(options.heads);

  print_formatted("causal attention over %td tokens of %s, zigzag sharding, %s\n", options.tokens,
                  options.text.empty() ? "the license text" : detail::one_line(options.text.string()).c_str(),
                  ranks_text(options).c_str());
  print_formatted("%td query heads, %td kv heads, head_dim %td, float\n\n", options.heads, options.kv_heads,
                  options.head_dim);
  print_formatted("  %-28s%12s%12s\n", "", "forward", "backward");
  print_formatted("  %-28s%10.2f s%10.2f s\n", "time", forward.seconds, backward.seconds);
  print_formatted("  %-28s%12.2f%12.2f\n", "GFLOP/s", forward.flops / forward.seconds * 1e-9,
                  backward.flops / backward.seconds * 1e-9);
  if (options.backend != gpu_backend) print_speed_of_cores(forward, backward);
  print_formatted("  %-28s%8.2f MiB%8.2f MiB\n", "sent by a rank", mebibytes(forward.bytes_sent),
                  mebibytes(backward.bytes_sent));
  print_formatted("  %-28s%8.2f MiB%8.2f MiB\n", "peak memory of a rank",
                  mebibytes(shard_bytes(call, forward_plan) + forward.buffer_bytes),
                  mebibytes(shard_bytes(call, backward_plan) + backward.buffer_bytes));
  print_formatted("  %-28s%8.2f MiB\n\n", "scores of full attention", full_bytes / (1024 * 1024));
  print_balance(call, options.ranks);
}

}  // namespace

CLI::App& add_demo(CLI::App& app, DemoOptions& options) {
  using annulus::Index;
  CLI::App& demo = *app.add_subcommand(
      "demo", "attention over a text on simulated ranks or GPUs, forward and backward, with a check");
  add_file(demo, "--text", options.text, "text file; default: the license of the library", "text file");
  add_ranks(demo, options.ranks, "ranks of the ring")->capture_default_str();
  auto const extent = [&](char const* name, Index& value, Index most, char const* description) {
    add_extent(demo, name, value, most, description)->capture_default_str();
  };
  extent("--tokens", options.tokens, Index{1} << 17, "sequence length; the text is repeated or truncated to it");
  extent("--heads", options.heads, 256, "query heads");
  extent("--kv-heads", options.kv_heads, 256, "key and value heads");
  extent("--head-dim", options.head_dim, 1024, "head dimension of queries, keys and values");
  add_choice(demo, "--backend", options.backend, Choices<std::string>{{"cpu", "cpu"}, {"cuda", "cuda"}},
             "compute backend")
      ->default_str("cpu");
  add_choice(demo, "--comm", options.asked_comm,
             Choices<Comm>{{"sim", Comm::simulated}, {"peer", Comm::peer}, {"nccl", Comm::nccl}},
             "simulated ranks, or with --backend cuda GPUs: with copies between them (the default there), or over NCCL")
      ->default_str("sim");
  add_timeout(demo, options.timeout);
  return demo;
}

void run_demo(DemoOptions const& options) {
  Call const call = call_of(options);
  Comm const comm = comm_of(options.asked_comm, options.backend);
  require_comm(comm, options.backend);
  if (options.backend == gpu_backend) require_gpus(comm, options.ranks);
  std::string const text = text_of(options);
  Inputs<float> const inputs = inputs_of_text(text, call);
  std::size_t const steps = static_cast<std::size_t>(options.ranks) *
                            static_cast<std::size_t>(plan_of(call, annulus::Pass::forward, options.ranks).steps() +
                                                     plan_of(call, annulus::Pass::backward, options.ranks).steps());
  std::vector<Timeline> timelines;
  Results<float> results;
  {
    Progress progress("forward and backward", steps);
    timelines.assign(static_cast<std::size_t>(options.ranks), Timeline(&progress));
    results = attend_on_threads(inputs, call, comm, timelines, options.timeout);
  }
  DemoErrors errors{};
  {
    auto const blocks = (options.tokens + dense_block_rows - 1) / dense_block_rows * (options.heads / options.kv_heads);
    Progress progress("dense check in double", static_cast<std::size_t>(blocks));
    errors = check_against_dense(inputs, results, progress);
  }
  print_table(options, call, timelines);
  double const bound = error_bound(inputs);
  print_formatted(
      "  largest relative error      %.1e   bound %.1e   (output %.1e, lse %.1e, dq %.1e, dk %.1e, dv %.1e)\n",
      errors.largest(), bound, errors.output, errors.lse, errors.dq, errors.dk, errors.dv);
  if (!(errors.largest() <= bound))
    throw std::runtime_error("the largest relative error exceeds the bound of rounding errors in float");
}

}  // namespace annulus_command
