#pragma once
// The passes of the C interface on a ring of type Ring.

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "annulus/attention/compiled.hpp"
#include "annulus/bindings/c/errors.hpp"
#include "annulus/bindings/c/handles.hpp"
#include "annulus/bindings/c/tensors.hpp"

namespace annulus::bindings {

template <class Ring>
class PassesOn final : public Passes {
 public:
  PassesOn(Ring& ring, Options options, int threads)
      : backend_{.threads = threads}, attention_(ring, backend_, std::move(options)) {}

  annulus_status forward(ForwardArguments const& given) noexcept override {
    return guarded([&] { run(given); });
  }

  annulus_status backward(BackwardArguments const& given) noexcept override {
    return guarded([&] { run(given); });
  }

  std::optional<RingPlan> const& plan(Pass pass) const noexcept override { return attention_.plan(pass); }

 private:
  template <class T>
  using Elements = TensorView<T const, 4>;

  template <class T>
  struct QueriesAndKeys {
    explicit QueriesAndKeys(auto const& given)
        : q(view_of_type<T const, 4>(require_given(given.q, "q"), "q", "q")),
          k(view_of_type<T const, 4>(require_given(given.k, "k"), "k", "q")),
          v(view_of_type<T const, 4>(require_given(given.v, "v"), "v", "q")),
          operands(operands_of<T>(given.operands)) {}

    Elements<T> q, k, v;
    Operands<T> operands;
  };

  template <class T>
  struct ForwardViews : QueriesAndKeys<T> {
    explicit ForwardViews(ForwardArguments const& given)
        : QueriesAndKeys<T>(given),
          output(view_of_type<T, 4>(require_given(given.output, "output"), "output", "q")),
          lse(view_of_type<Sum, 3>(require_given(given.lse, "lse"), "lse", "sums")),
          lse_remainder(view_if_given<Sum, 3>(given.lse_remainder, "lse_remainder", "sums")) {}

    using Sum = Accumulator<T>;
    TensorView<T, 4> output;
    TensorView<Sum, 3> lse, lse_remainder;
  };

  /// G: element type of the gradients.
  template <class T, class G>
  struct BackwardViews : QueriesAndKeys<T> {
    explicit BackwardViews(BackwardArguments const& given)
        : QueriesAndKeys<T>(given),
          dout(view_of_type<T const, 4>(require_given(given.dout, "dout"), "dout", "q")),
          output(view_of_type<T const, 4>(require_given(given.output, "output"), "output", "q")),
          lse(view_of_type<Sum const, 3>(require_given(given.lse, "lse"), "lse", "sums")),
          lse_remainder(view_if_given<Sum const, 3>(given.lse_remainder, "lse_remainder", "sums")) {
      annulus_gradients const& results = require_given(given.gradients, "gradients");
      gradients.dq = view_of_type<G, 4>(results.dq, "dq", "q");
      gradients.dk = view_of_type<G, 4>(results.dk, "dk", "dq");
      gradients.dv = view_of_type<G, 4>(results.dv, "dv", "dq");
      gradients.dbias = view_if_given<G, 4>(&results.dbias, "dbias", "dq");
      gradients.d_joint_keys = view_if_given<G, 4>(&results.d_joint_keys, "d_joint_keys", "dq");
      gradients.d_joint_values = view_if_given<G, 4>(&results.d_joint_values, "d_joint_values", "dq");
      if (is_given(results.dsinks)) gradients.dsinks = sinks_view<Sum>(results.dsinks, "dsinks");
      this->operands.bias_gradient = is_given(results.dbias);
      if (given.operands)
        detail::require_operands_of_forward(given_to_forward(given.operands->forward_given),
                                            detail::given_operands(this->operands));
    }

    using Sum = Accumulator<T>;
    Elements<T> dout, output;
    TensorView<Sum const, 3> lse, lse_remainder;
    GradientViews<G, HostMemory> gradients;
  };

  /// The operands that a sum of annulus_given names; 0: unset.
  static std::optional<GivenOperands> given_to_forward(int sum) {
    if (sum == 0) return std::nullopt;
    detail::check<UnsupportedError>(sum > 0 && sum < 2 * ANNULUS_GIVEN_JOINT && (sum & ANNULUS_GIVEN_QKV) != 0,
                                    "forward_given is ", sum, "; accepted: 0, or a result of annulus_given_operands()");
    return GivenOperands{(sum & ANNULUS_GIVEN_BIAS) != 0, (sum & ANNULUS_GIVEN_MASK) != 0,
                         (sum & ANNULUS_GIVEN_DOCUMENTS) != 0, (sum & ANNULUS_GIVEN_SINKS) != 0,
                         (sum & ANNULUS_GIVEN_JOINT) != 0};
  }

  void run(ForwardArguments const& given) {
    with_element_type(Pass::forward, given.q, given.operands,
                      [&]<class T>(std::type_identity<T>) { run_forward<T>(given); });
  }

  void run(BackwardArguments const& given) {
    with_element_type(Pass::backward, given.q, given.operands, [&]<class T>(std::type_identity<T>) {
      using Sum = Accumulator<T>;
      if (given.gradients && given.gradients->dq.dtype == dtype_of<Sum>)
        run_backward<T, Sum>(given);
      else
        run_backward<T, T>(given);
    });
  }

  template <class T>
  void run_forward(ForwardArguments const& given) {
    auto views = together(Pass::forward, given.operands, [&] { return ForwardViews<T>(given); });
    attention_.forward_into(views.q, views.k, views.v, views.output, views.lse, views.operands, views.lse_remainder);
  }

  template <class T, class G>
  void run_backward(BackwardArguments const& given) {
    auto views = together(Pass::backward, given.operands, [&] { return BackwardViews<T, G>(given); });
    attention_.backward_into(views.dout, views.output, views.lse, views.q, views.k, views.v, views.gradients,
                             views.operands, views.lse_remainder);
  }

  /// Calls run(std::type_identity<T>{}) with the element type of q.
  template <class Run>
  void with_element_type(Pass pass, annulus_tensor const* q, annulus_operands const* operands, Run&& run) {
    with_scalar(together(pass, operands, [&] { return element_type_of_queries(q); }), "q", run);
  }

  /// Throws unless q is given, with an element type that it may have.
  static annulus_dtype element_type_of_queries(annulus_tensor const* q) {
    return with_scalar(require_given(q, "q").dtype, "q", [&](auto) { return q->dtype; });
  }

  /// make(), which does not communicate. What it throws, all ranks throw.
  template <class Make>
  auto together(Pass pass, annulus_operands const* operands, Make&& make) {
    try {
      return make();
    } catch (...) {
      bool const numbered = operands && operands->has_call;
      attention_.refuse(pass, std::current_exception(), numbered ? std::optional<Index>(operands->call) : std::nullopt);
      throw;
    }
  }

  CpuBackend backend_;
  RingAttention<Ring, CpuBackend> attention_;
};

}  // namespace annulus::bindings
