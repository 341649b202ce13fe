#pragma once
// CudaBackend: attention on a GPU. Programs link annulus::cuda, which has the kernels. Needs the CUDA toolkit; not part
// of the umbrella.

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/cuda/complete/arguments.hpp"
#include "annulus/backend/cuda/decode_path.hpp"
#include "annulus/backend/cuda/elementwise.hpp"
#include "annulus/backend/cuda/fast_path.hpp"
#include "annulus/backend/cuda/strided.hpp"
#include "annulus/backend/cuda/uploaded_steps.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus {

/// Where a CudaBackend works.
struct CudaOptions {
  int device = -1;  ///< number of the GPU; -1: the current one of the thread
  /// Stream of that GPU, which the caller owns and which outlives the backend; null: one that the backend owns.
  cudaStream_t stream = nullptr;
  /// Memory of that GPU for the positions and block lists of steps, which the caller owns and which outlives the
  /// backend: about 16 bytes for each query and key of each different step. Empty: the backend allocates up to 64 MiB.
  std::span<std::byte> workspace{};
};

/// Backend (see the concept in backend/backend.hpp) that computes on one GPU; sums in float, in double for double
/// operands. All work is put on one stream, and nothing waits for it but synchronize(). Results have the same bits in
/// every run. Each rank needs its own object; several may share a GPU.
///
/// Host data of a step is uploaded when a step of its content is made for the first time: then memory is allocated.
/// Calls of equal shapes and rules allocate and upload nothing, and can be captured in a CUDA graph, which does their
/// work when it is launched and is valid until a call of the backend with other shapes or rules, or its end.
///
/// A predicate of the mask is a device function object: trivially copyable, with a call operator (batch, head, query,
/// key) for device code. One file that nvcc compiles adds its kernels (complete/complete_path.cuh); without it the
/// program does not link. It is copied when a step is made.
class CudaBackend {
 public:
  using memory_space = CudaMemory;
  using Buffer = cuda::detail::DeviceBytes;  ///< 256-byte aligned
  /// Type of sums over operands of type T.
  template <class T>
  using accumulator = Accumulator<T>;

  /// Throws Error if there is no such GPU.
  explicit CudaBackend(CudaOptions const& options = {})
      : device_(options.device >= 0 ? options.device : current_device()), steps_(options.workspace) {
    cuda::detail::CurrentDevice const current(device_);
    if (!options.stream) own_stream_ = cuda::detail::make_stream();
    stream_ = options.stream ? options.stream : own_stream_;
  }
  /// Returns when the work on the queue is done, because it may read memory of the backend.
  ~CudaBackend() {
    if (stream_) cudaStreamSynchronize(stream_);
  }
  /// Movable; without a stream after a move.
  CudaBackend(CudaBackend&& other) noexcept
      : device_(other.device_),
        own_stream_(std::move(other.own_stream_)),
        stream_(std::exchange(other.stream_, nullptr)),
        steps_(std::move(other.steps_)),
        fast_(std::move(other.fast_)),
        decode_(std::move(other.decode_)) {}
  CudaBackend& operator=(CudaBackend&&) = delete;

  int device() const { return device_; }  ///< number of the GPU
  /// The stream of all operations.
  CudaMemory::Queue queue() { return {stream_}; }
  /// Returns when all work is done. Throws Error if some of it failed.
  void synchronize() { queue().wait(); }

  /// Memory of the GPU, contents unspecified. Throws Error.
  Buffer allocate(Index bytes) {
    cuda::detail::CurrentDevice const current(device_);
    return cuda::detail::allocate_device(bytes);
  }

  /// Accepts every problem with heads of up to 512 elements; refuses GPUs before compute capability 8.0 and those that
  /// annulus::cuda was not compiled for.
  Support supports(Problem const& problem) const {
    Index const dim = std::max(problem.shape.head_dim, problem.shape.value_dim);
    if (dim > largest_dim)
      return Support::no("CudaBackend: head_dim is " + std::to_string(problem.shape.head_dim) + " and value_dim " +
                         std::to_string(problem.shape.value_dim) + "; accepted: up to " + std::to_string(largest_dim));
    std::string const refusal = cuda::detail::refusal_of_device(device_);
    return refusal.empty() ? Support::yes() : Support::no("CudaBackend: " + refusal);
  }

  /// Copies each element. Both views have the same extents.
  template <class T, std::size_t N>
  void copy(TensorView<T const, N, CudaMemory> from, TensorView<T, N, CudaMemory> to) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::copy_elements(stream_, from, to);
  }
  /// Copies each element, converted from the type of the sums to that of the results. Equal extents.
  template <class A, class T, std::size_t N>
  void convert(TensorView<A const, N, CudaMemory> from, TensorView<T, N, CudaMemory> to) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::convert_elements(stream_, from, to);
  }
  /// Adds each element of `from` to that of `into`. Equal extents.
  template <class A, std::size_t N>
  void add(TensorView<A, N, CudaMemory> into, TensorView<A const, N, CudaMemory> from) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::add_elements(stream_, into, from);
  }
  /// Sets each element to 0.
  template <class T, std::size_t N>
  void clear(TensorView<T, N, CudaMemory> view) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::clear_elements(stream_, view);
  }

  /// Makes every row empty: it has seen no key.
  template <class A>
  void reset(RunningState<A, CudaMemory> state) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::reset(stream_, extents_of(state.accumulator), strided_state(state));
  }
  /// Merges two states of the same rows, by the merge rule of SoftmaxRow, into the first.
  template <class A>
  void merge(RunningState<A, CudaMemory> into, RunningState<A, CudaMemory> from) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::merge(stream_, extents_of(into.accumulator), strided_state(into), strided_state(from));
  }
  /// HostOperations::normalise.
  template <class A, class L, class T>
  void normalise(RunningState<A, CudaMemory> state, TensorView<L const, 2, CudaMemory> sinks,
                 TensorView<T, 4, CudaMemory> output, TensorView<L, 3, CudaMemory> lse,
                 TensorView<L, 3, CudaMemory> lse_remainder) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::normalise(stream_, extents_of(state.accumulator), strided_state(state), cuda::detail::strided(sinks),
                            sinks.data() ? sinks.extent(1) : Index{0}, cuda::detail::strided(output),
                            cuda::detail::strided(lse), cuda::detail::strided(lse_remainder));
  }
  /// HostOperations::row_delta.
  template <class T, class A>
  void row_delta(TensorView<T const, 4, CudaMemory> dout, TensorView<T const, 4, CudaMemory> output,
                 TensorView<A, 3, CudaMemory> delta) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::row_delta(stream_, extents_of(output), cuda::detail::strided(dout), cuda::detail::strided(output),
                            cuda::detail::strided(delta));
  }
  /// HostOperations::sink_gradients, in a fixed order.
  template <class L, class A>
  void sink_gradients(TensorView<L const, 3, CudaMemory> lse, TensorView<L const, 3, CudaMemory> lse_remainder,
                      TensorView<A const, 3, CudaMemory> delta, TensorView<L const, 2, CudaMemory> sinks,
                      TensorView<A, 2, CudaMemory> dsinks) {
    cuda::detail::CurrentDevice const current(device_);
    cuda::detail::sink_gradients(stream_, {lse.extent(0), lse.extent(2), lse.extent(1), 0}, sinks.extent(1),
                                 cuda::detail::strided(lse), cuda::detail::strided(lse_remainder),
                                 cuda::detail::strided(delta), cuda::detail::strided(sinks),
                                 cuda::detail::strided(dsinks));
  }

  /// True if fold() reads the key rows of tiles alone, in a step of such rules and so many queries and key rows, so that
  /// other rows between them cost nothing. Other steps need tiles for all pairs that are visible by position and document.
  template <class T, class Predicate>
  static bool reads_tiles_alone(Step<T, Predicate, CudaMemory> const& step, Index queries, Index keys) {
    return cuda::detail::DecodePath::takes(step, queries, keys);
  }

  /// Adds the keys of a step to the rows that see them.
  template <class T, class Predicate>
  void fold(Step<T, Predicate, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
            RunningState<Accumulator<T>, CudaMemory> state,
            ForwardResults<T, Accumulator<T>, CudaMemory> const& results = {}) {
    cuda::detail::CurrentDevice const current(device_);
    if constexpr (std::same_as<Predicate, EveryPair>)
      if (cuda::detail::DecodePath::takes(step, operands)) return fold_few_queries(step, operands, state, results);
    if constexpr (cuda::detail::may_be_fast<T, Predicate>)
      if (fold_fast(step, operands, state, results)) return;
    detail::open_sums(*this, step.opens, state);
    if (!step.tiles.empty())
      cuda::detail::CompletePath<Element<T>, Predicate>::fold(stream_, pairs_of(step, operands), strided_state(state),
                                                              *step.predicate);
    detail::close_sums(*this, step.closes, state, results);
  }

  /// Adds the share of a step to the gradients.
  template <class T, class Predicate, class G = T>
  void add_gradients(Step<T, Predicate, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
                     BackwardOperands<T, Accumulator<T>, Accumulator<T>, CudaMemory> const& backward,
                     StepGradients<Accumulator<T>, CudaMemory> gradients,
                     GradientResults<G, CudaMemory> const& results = {}) {
    cuda::detail::CurrentDevice const current(device_);
    if constexpr (cuda::detail::may_be_fast<T, Predicate>)
      if (add_gradients_fast(step, operands, backward, gradients, results)) return;
    detail::open_sums(*this, step.opens, gradients);
    bool const writes_bias = has(step.closes, Sums::pairs) && results.dbias.data();
    if (!step.tiles.empty() || writes_bias) {
      auto const pairs = pairs_of(step, operands);
      Known<T> const known = known_of(backward);
      if (writes_bias) clear_pairs(pairs, results.dbias);
      if (!step.tiles.empty()) add_pairs(step, pairs, known, gradients, writes_bias ? results.dbias : no_bias<G>);
    }
    detail::close_sums(*this, step.closes, gradients, results);
  }

 private:
  template <class T>
  using Element = cuda::detail::DeviceElementOf<T>;
  template <class T>
  using Pairs = cuda::detail::StepPairs<Element<T>>;
  template <class T>
  using Known = cuda::detail::KnownResults<Element<T>, Accumulator<T>>;
  template <class G>
  static constexpr TensorView<G, 4, CudaMemory> no_bias{};

  static constexpr Index largest_dim = 512;

  static int current_device() {
    int device = 0;
    cuda::detail::check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }

  template <class T>
  static cuda::detail::StateExtents extents_of(TensorView<T, 4, CudaMemory> const& rows) {
    return {rows.extent(axis::batch), rows.extent(axis::sequence), rows.extent(axis::heads), rows.extent(axis::dim)};
  }
  template <class A>
  static cuda::detail::State<A> strided_state(RunningState<A, CudaMemory> const& state) {
    return {cuda::detail::strided(state.accumulator), cuda::detail::strided(state.maximum),
            cuda::detail::strided(state.sum)};
  }
  template <class R>
  static cuda::detail::BiasGradient<Element<R>> bias_gradient(TensorView<R, 4, CudaMemory> const& dbias, bool adds) {
    // A shared axis has stride 0.
    return {cuda::detail::strided(dbias), dbias.stride(0) == 0 ? 1 : dbias.extent(0),
            dbias.stride(1) == 0 ? 1 : dbias.extent(1), adds};
  }

  template <class T>
  void fold_few_queries(Step<T, EveryPair, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
                        RunningState<Accumulator<T>, CudaMemory> const& state,
                        ForwardResults<T, Accumulator<T>, CudaMemory> const& results) {
    detail::open_sums(*this, step.opens, state);
    decode_.fold(stream_, step, operands, state);
    detail::close_sums(*this, step.closes, state, results);
  }

  /// Folds a step by the Hopper kernels; false: they do not take it, and nothing has been done.
  template <class T>
  bool fold_fast(Step<T, EveryPair, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
                 RunningState<float, CudaMemory> const& state, ForwardResults<T, float, CudaMemory> const& results) {
    if (step.tiles.empty()) return false;
    auto const visible = fast_.visible_keys(step, uploaded(step), operands.q.extent(axis::batch), stream_);
    if (!visible) return false;
    auto const part = visible->exact ? step.opening_and_closing(Sums::none, Sums::none) : step;
    auto const arguments = cuda::detail::fold_arguments(part, operands, state, results, *visible);
    if (!arguments || !cuda::detail::hopper::is_fast(*arguments)) return false;
    detail::open_sums(*this, without(step.opens, part.opens), state);
    fast_.fold(*arguments, stream_);
    if (visible->exact)  // the GPU decides which of the two computes the step
      cuda::detail::CompletePath<Element<T>, EveryPair>::fold(stream_, pairs_of(step, operands, visible->exact),
                                                              strided_state(state), *step.predicate);
    detail::close_sums(*this, without(step.closes, part.closes), state, results);
    return true;
  }

  /// The same for the gradients of a step.
  template <class T, class G>
  bool add_gradients_fast(Step<T, EveryPair, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
                          BackwardOperands<T, float, float, CudaMemory> const& backward,
                          StepGradients<float, CudaMemory> const& gradients,
                          GradientResults<G, CudaMemory> const& results) {
    if (step.tiles.empty()) return false;
    auto const visible = fast_.visible_keys(step, uploaded(step), operands.q.extent(axis::batch), stream_);
    if (!visible) return false;
    GradientResults<T, CudaMemory> written{};
    if constexpr (std::same_as<G, T>) written = results;
    auto const part = step.opening_and_closing(visible->exact ? Sums::none : step.opens,
                                               visible->exact || !std::same_as<G, T> ? Sums::none : step.closes);
    auto const arguments = cuda::detail::gradient_arguments(part, operands, backward, gradients, written, *visible);
    if (!arguments || !cuda::detail::hopper::is_fast(*arguments)) return false;
    detail::open_sums(*this, without(step.opens, part.opens), gradients);
    fast_.add_gradients(*arguments, stream_);
    if (visible->exact)
      add_pairs(step, pairs_of(step, operands, visible->exact), known_of(backward), gradients, no_bias<G>);
    detail::close_sums(*this, without(step.closes, part.closes), gradients, results);
    return true;
  }

  template <class T, class Predicate>
  cuda::detail::UploadedStep const& uploaded(Step<T, Predicate, CudaMemory> const& step) {
    AttentionRules const& rules = step.rules;
    return steps_.find({step.tiles, step.query_positions, step.key_positions, rules.mask, rules.block_mask}, stream_);
  }

  /// done: see StepPairs.
  template <class T, class Predicate>
  Pairs<T> pairs_of(Step<T, Predicate, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
                    int const* done = nullptr) {
    AttentionRules const& rules = step.rules;
    cuda::detail::UploadedStep const& uploaded = this->uploaded(step);
    auto const &q = operands.q, &k = operands.k;
    return {.batch = q.extent(axis::batch),
            .queries = q.extent(axis::sequence),
            .keys = k.extent(axis::sequence),
            .query_heads = q.extent(axis::heads),
            .kv_heads = k.extent(axis::heads),
            .head_dim = q.extent(axis::dim),
            .value_dim = operands.v.extent(axis::dim),
            .softmax_scale = step.softmax_scale(),
            .logit_softcap = rules.logit_softcap,
            .of_queries = uploaded.of_queries,
            .of_keys = uploaded.of_keys,
            .query_positions = uploaded.query_positions,
            .key_positions = uploaded.key_positions,
            .mask = rules.mask,
            .blocks = uploaded.blocks,
            .dropout = rules.dropout,
            .first_batch = step.first_batch,
            .first_head = step.first_head,
            .done = done,
            .q = cuda::detail::strided(q),
            .k = cuda::detail::strided(k),
            .v = cuda::detail::strided(operands.v),
            .bias = cuda::detail::strided(step.bias),
            .boolean_mask = cuda::detail::strided(step.boolean_mask),
            .query_documents = cuda::detail::strided(step.query_documents),
            .key_documents = cuda::detail::strided(step.key_documents)};
  }

  template <class T>
  static Known<T> known_of(BackwardOperands<T, Accumulator<T>, Accumulator<T>, CudaMemory> const& backward) {
    return {cuda::detail::strided(backward.dout), cuda::detail::strided(backward.lse),
            cuda::detail::strided(backward.lse_remainder), cuda::detail::strided(backward.delta)};
  }

  /// Adds the gradients of a step that has tiles. written_dbias: where those of the bias are written.
  template <class T, class Predicate, class G>
  void add_pairs(Step<T, Predicate, CudaMemory> const& step, Pairs<T> const& pairs, Known<T> const& known,
                 StepGradients<Accumulator<T>, CudaMemory> const& gradients,
                 TensorView<G, 4, CudaMemory> const& written_dbias) {
    using Kernels = cuda::detail::CompletePath<Element<T>, Predicate>;
    Kernels::add_gradients(
        stream_, pairs, known,
        {cuda::detail::strided(gradients.dq), cuda::detail::strided(gradients.dk), cuda::detail::strided(gradients.dv)},
        *step.predicate);
    if (gradients.dbias.data())
      Kernels::add_bias_gradient(stream_, pairs, known, bias_gradient(gradients.dbias, true), *step.predicate);
    if (!written_dbias.data()) return;
    if constexpr (std::same_as<G, T>)
      Kernels::write_bias_gradient(stream_, pairs, known, bias_gradient(written_dbias, false), *step.predicate);
    else
      throw Error("CudaBackend: a step that closes dbias requires results of the operands' type");
  }

  /// Sets the gradient of the bias to 0 for the keys of a step.
  template <class StepPairs, class G>
  void clear_pairs(StepPairs const& pairs, TensorView<G, 4, CudaMemory> const& dbias) {
    cuda::detail::clear_keys(stream_, {{dbias.extent(0), dbias.extent(1), dbias.extent(2), pairs.keys}},
                             cuda::detail::strided(dbias), pairs.key_positions);
  }

  int device_;
  cuda::detail::Stream own_stream_;
  cudaStream_t stream_ = nullptr;
  cuda::detail::UploadedSteps steps_;
  cuda::detail::FastPath fast_;
  cuda::detail::DecodePath decode_;
};

static_assert(ClosingBackend<CudaBackend>);

}  // namespace annulus
