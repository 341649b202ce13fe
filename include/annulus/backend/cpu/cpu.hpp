#pragma once
// Fast CPU backend: fused, blocked SIMD kernels for the processor that runs the program (with annulus::cpu), or for the
// instruction set of the compiler's flags.

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <string>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/cpu/kernels.hpp"
#include "annulus/backend/cpu/threads/thread_pool.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/open_close.hpp"

namespace annulus {
namespace cpu {
inline namespace ANNULUS_CPU_KERNELS {

/// Backend (see the concept in backend/backend.hpp) that computes on the thread pool of the process; sums in float, in
/// double for double operands. Results have the same bits for any number of threads. Each rank needs its own object.
/// Predicates of the mask are called concurrently from several threads, with denormals flushed to zero.
struct CpuBackend {
  /// Number of threads for one call. 0: up to default_threads() (core/default_threads.hpp), which the calls that are in
  /// progress in this process share.
  int threads = 0;
  /// Key ranges of packed documents, in storage reused from call to call.
  annulus::detail::StepDocuments documents{};
  /// Runs of documents that do not see each other, in storage reused from call to call.
  detail::DocumentSections sections{};

  using memory_space = HostMemory;
  using Buffer = annulus::detail::HostBuffer;  ///< 64-byte aligned
  /// Type of sums over operands of type T.
  template <class T>
  using accumulator = Accumulator<T>;

  /// The largest number of threads of a call: `threads`, or what 0 stands for in this process.
  int max_threads() const { return threads == 0 ? detail::ThreadPool::shared().cores() : threads; }

  /// A buffer of unspecified contents. Throws std::bad_alloc.
  Buffer allocate(Index bytes) { return annulus::detail::HostBuffer(bytes); }
  /// Accepts every problem; refuses a negative number of threads and an ANNULUS_CPU_TARGET that this machine lacks.
  Support supports(Problem const&) const {
    if (threads < 0)
      return Support::no("CPU backend: threads is " + std::to_string(threads) +
                         "; a positive number is accepted, or 0 for the default");
    if (std::string const refusal = detail::target_refusal(); !refusal.empty())
      return Support::no("CPU backend: " + refusal);
    return Support::yes();
  }
  /// Does nothing: every operation is complete when its call returns.
  void synchronize() {}

  /// HostOperations::copy, on several threads, as the following ones.
  template <class T, std::size_t N>
  void copy(TensorView<T const, N> from, TensorView<T, N> to) {
    share(to, [&](auto const& rows) { HostOperations().copy(rows(from), rows(to)); });
  }
  /// HostOperations::convert.
  template <class A, class T, std::size_t N>
  void convert(TensorView<A const, N> from, TensorView<T, N> to) {
    share(to, [&](auto const& rows) {
      if constexpr (N == 4 && std::same_as<A, Accumulator<T>>)
        if (from.stride(axis::dim) == 1 && to.stride(axis::dim) == 1) return convert_rows<T>(rows(from), rows(to));
      HostOperations().convert(rows(from), rows(to));
    });
  }
  /// HostOperations::add.
  template <class A, std::size_t N>
  void add(TensorView<A, N> into, TensorView<A const, N> from) {
    share(into, [&](auto const& rows) { HostOperations().add(rows(into), rows(from)); });
  }
  /// HostOperations::clear.
  template <class A, std::size_t N>
  void clear(TensorView<A, N> view) {
    share(view, [&](auto const& rows) { HostOperations().clear(rows(view)); });
  }
  /// HostOperations::reset.
  template <class A>
  void reset(RunningState<A, HostMemory> state) {
    share(state.accumulator, [&](auto const& rows) { HostOperations().reset(rows(state)); });
  }
  /// HostOperations::merge.
  template <class A>
  void merge(RunningState<A, HostMemory> into, RunningState<A, HostMemory> from) {
    share(into.accumulator, [&](auto const& rows) { HostOperations().merge(rows(into), rows(from)); });
  }
  /// HostOperations::normalise.
  template <class A, class L, class T>
  void normalise(RunningState<A, HostMemory> state, TensorView<L const, 2> sinks, TensorView<T, 4> output,
                 TensorView<L, 3> lse, TensorView<L, 3> lse_remainder) {
    auto const scale_row = [](A const* from, A scale, T* to, Index stride, Index count) {
      if constexpr (std::same_as<A, Accumulator<T>>)
        if (stride == 1) return detail::kernels<T>().scale_row(from, scale, to, count);
      HostOperations::scale_row(from, scale, to, stride, count);
    };
    share(output, [&](auto const& rows) {
      HostOperations().normalise_rows(rows(state), sinks, rows(output), rows(lse), rows(lse_remainder), scale_row);
    });
  }
  /// HostOperations::row_delta.
  template <class T, class A>
  void row_delta(TensorView<T const, 4> dout, TensorView<T const, 4> output, TensorView<A, 3> delta) {
    share(output, [&](auto const& rows) {
      if constexpr (std::same_as<A, Accumulator<T>>)
        multiply_output<T>(rows(dout), rows(output), rows(delta));
      else
        HostOperations().row_delta(rows(dout), rows(output), rows(delta));
    });
  }
  /// HostOperations::sink_gradients.
  template <class L, class A>
  void sink_gradients(TensorView<L const, 3> lse, TensorView<L const, 3> lse_remainder, TensorView<A const, 3> delta,
                      TensorView<L const, 2> sinks, TensorView<A, 2> dsinks) {
    HostOperations().sink_gradients(lse, lse_remainder, delta, sinks, dsinks);
  }

  /// Adds the keys of a step to the rows that see them. The predicate is called concurrently. A step that opens and
  /// closes the state, without sink logits, uses it only where rows are few.
  template <class T, class Predicate>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<Accumulator<T>, HostMemory> state,
            ForwardResults<T, Accumulator<T>, HostMemory> const& results = {}) {
    // Sections depend on the other rows of the step, and key blocks, with them the bits of a row, begin at a section.
    find_documents(step, operands, !step.rules.reproducible);
    detail::AnyPredicate const any = detail::AnyPredicate::of(*step.predicate);
    auto const erased = step.with_predicate(any);
    bool const is_only_step =
        has(step.opens, Sums::queries) && has(step.closes, Sums::queries) && !results.sinks.data();
    if (is_only_step && detail::kernels<T>().fold({erased, operands, state, documents, sections, threads, &results}))
      return;
    annulus::detail::open_sums(*this, step.opens, state);
    detail::kernels<T>().fold({erased, operands, state, documents, sections, threads});
    annulus::detail::close_sums(*this, step.closes, state, results);
  }
  /// Adds the share of a step to the gradients. The predicate is called concurrently. A step that opens and closes all
  /// sums of queries and keys uses dk and dv only if results have another type than the operands, or no unit stride
  /// along dim.
  template <class T, class Predicate, class G = T>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                     StepGradients<Accumulator<T>, HostMemory> gradients,
                     GradientResults<G, HostMemory> const& results = {}) {
    bool const is_empty = step.tiles.empty() || operands.q.size() == 0;
    auto const taken = is_empty ? TakenByKernels<T>() : TakenByKernels<T>::of(step, results);
    annulus::detail::open_sums(*this, without(step.opens, taken.opens), gradients);
    if (!is_empty) {
      // All elements of a written gradient of the bias are set, also of pairs that would be in different sections.
      find_documents(step, operands, !taken.written.dbias.data());
      detail::AnyPredicate const any = detail::AnyPredicate::of(*step.predicate);
      detail::kernels<T>().add_gradients({step.with_predicate(any), operands, backward, gradients, taken.written,
                                          has(taken.opens, Sums::keys), documents, sections, threads});
    } else if (has(step.closes, Sums::pairs) && results.dbias.data()) {
      annulus::detail::clear_pairs(*this, step.key_positions, results.dbias);
    }
    annulus::detail::close_sums(*this, without(step.closes, taken.closes), gradients, results);
  }

 private:
  /// The sums of gradients that the kernels open and close themselves.
  template <class T>
  struct TakenByKernels {
    Sums opens = Sums::none, closes = Sums::none;
    GradientResults<T, HostMemory> written{};  ///< results of the closed sums

    template <class Predicate, class G>
    static TakenByKernels of(Step<T, Predicate, HostMemory> const& step,
                             GradientResults<G, HostMemory> const& results) {
      constexpr Sums rows = Sums::queries | Sums::keys;
      TakenByKernels taken;
      if (has(step.opens, Sums::keys)) taken.opens = Sums::keys;
      if constexpr (std::same_as<G, T>) {
        auto const is_contiguous = [](auto const& view) { return view.stride(axis::dim) == 1; };
        if (has(step.opens, rows) && has(step.closes, rows) && is_contiguous(results.dq) && is_contiguous(results.dk) &&
            is_contiguous(results.dv))
          taken = {rows, rows, {results.dq, results.dk, results.dv}};
        if (has(step.closes, Sums::pairs)) taken.written.dbias = results.dbias;
      } else {
        annulus::detail::check<Error>(!has(step.closes, Sums::pairs) || !results.dbias.data(),
                                      "CpuBackend: a step that closes dbias requires results of the operands' type");
      }
      return taken;
    }
  };

  /// Finds the documents and sections of a step. `divides`: there may be more than one section.
  template <class T, class Predicate>
  void find_documents(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                      bool divides = true) {
    documents.assign(step);
    // VisibilityCache, which a boolean mask needs, has entries for panels and key blocks of the whole step.
    sections.assign(step, documents, operands, divides && !step.boolean_mask.data());
  }

  /// Selects rows [begin, begin + count) along the sequence axis of a view or a running state.
  struct SequenceRows {
    Index begin, count;

    template <class T>
    TensorView<T, 4> operator()(TensorView<T, 4> const& view) const {
      return view.slice(axis::sequence, begin, count);
    }
    template <class T>
    TensorView<T, 3> operator()(TensorView<T, 3> const& statistics) const {
      return statistics.slice(2, begin, count);
    }
    template <class A>
    RunningState<A, HostMemory> operator()(RunningState<A, HostMemory> const& state) const {
      return {(*this)(state.accumulator), (*this)(state.maximum), (*this)(state.sum)};
    }
  };

  /// Like HostOperations::convert, for rows of unit stride.
  template <class T>
  static void convert_rows(TensorView<Accumulator<T> const, 4> from, TensorView<T, 4> to) {
    auto const scale_row = detail::kernels<T>().scale_row;
    for (Index b = 0; b < to.extent(0); ++b)
      for (Index i = 0; i < to.extent(1); ++i)
        for (Index h = 0; h < to.extent(2); ++h)
          scale_row(from.data() + from.offset(b, i, h, 0), Accumulator<T>(1), to.data() + to.offset(b, i, h, 0),
                    to.extent(axis::dim));
  }

  /// `count` elements of a row, from `offset` on, as they are or, if they are not contiguous, as their copy.
  template <class T>
  static T const* contiguous(TensorView<T const, 4> const& view, Index offset, Index count, T* copy) {
    T const* const from = view.data() + offset;
    Index const stride = view.stride(axis::dim);
    if (stride == 1) return from;
    for (Index d = 0; d < count; ++d) copy[d] = from[d * stride];
    return copy;
  }

  /// HostOperations::row_delta. Rows of all strides are summed in the same order.
  template <class T>
  static void multiply_output(TensorView<T const, 4> dout, TensorView<T const, 4> output,
                              TensorView<Accumulator<T>, 3> delta) {
    auto const row_product = detail::kernels<T>().row_product;
    HostOperations::for_each_row(delta, [&](Index b, Index h, Index i) {
      constexpr Index block = 128;
      T copies[2][block];
      Accumulator<T> sum(0);
      for (Index begin = 0, dim = dout.extent(axis::dim); begin < dim; begin += block) {
        Index const count = std::min(block, dim - begin);
        T const* const outputs = contiguous(output, output.offset(b, i, h, begin), count, copies[0]);
        T const* const douts = contiguous(dout, dout.offset(b, i, h, begin), count, copies[1]);
        sum += row_product(outputs, douts, count);
      }
      delta(b, h, i) = sum;
    });
  }

  /// Calls work(select) until all rows of `view` are covered, in parallel if the view is large enough. `select`
  /// restricts a view or state to the rows of one work item; rows must be independent of each other.
  template <class T, std::size_t N, class Work>
  void share(TensorView<T, N> const& view, Work&& work) const {
    if constexpr (N == 4) {
      constexpr Index piece = Index{1} << 15;  // elements of one work item
      Index const rows = view.extent(axis::sequence), pieces = std::min(rows, view.size() / piece);
      if (threads != 1 && pieces > 1) {
        std::atomic<Index> next{0};
        detail::ThreadPool::Call(detail::ThreadPool::shared(), threads).run(pieces, [&](detail::Team const&, int) {
          for (Index i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;)
            work(SequenceRows{rows * i / pieces, rows * (i + 1) / pieces - rows * i / pieces});
        });
        return;
      }
    }
    work([](auto const& whole) { return whole; });
  }
};

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace cpu

using cpu::CpuBackend;
static_assert(ClosingBackend<CpuBackend>);

}  // namespace annulus
