#pragma once
// Checks of the backward pass of a case: gradients in T from one call, the same bits again, a ring of two steps that
// opens and closes dq, and sums that hold something already.

#include "hopper_forward_check.cuh"

namespace hopper_check {

template <class T>
class BackwardCheck {
 public:
  BackwardCheck(Problem<T> const& problem, ForwardCheck<T> const& forward)
      : problem_(problem),
        forward_(forward),
        dq_(like(problem.q)),
        dk_(like(problem.k)),
        dv_(like(problem.v)),
        dq_result_(like_result(problem.q)),
        dk_result_(like_result(problem.k)),
        dv_result_(like_result(problem.v)),
        delta_(static_cast<long long>(problem.lse.count())),
        want_dq_(static_cast<long long>(problem.q.dense_count())),
        want_dk_(static_cast<long long>(problem.k.dense_count())),
        want_dv_(static_cast<long long>(problem.v.dense_count())),
        memory_(hopper::workspace_size(arguments(0, problem.c.keys, problem.ranges.data()))) {
    reference();
  }

  std::string run(double bound, std::string& failures) {
    int const keys = problem_.c.keys, part = (keys + 1) / 3;
    poison();
    add(0, keys, true, true, true);
    std::string text = judge("one call", bound, failures, dq_result_, dk_result_, dv_result_, 0);
    auto const bits = [&] {
      return std::array{dq_result_.device.get(), dk_result_.device.get(), dv_result_.device.get()};
    };
    auto const first = bits();
    poison();
    add(0, keys, true, true, true);
    auto const second = bits();
    for (std::size_t i = 0; i < first.size(); ++i)
      if (std::memcmp(first[i].data(), second[i].data(), first[i].size() * sizeof(T)) != 0)
        failures += " NOT THE SAME BITS TWICE";
    if (part > 0) {
      poison();
      add(0, part, true, false, true);
      add(part, keys, false, true, true);
      judge("two steps", bound, failures, dq_result_, dk_result_, dv_result_, 0);
    }
    hold(3);
    for (int from = 0, to = part; from < keys; from = to, to = keys)
      if (to > from) add(from, to, false, false, false);
    judge("added to sums", bound, failures, dq_, dk_, dv_, 3);
    if (!memory_.is_clean()) failures += " COUNTERS LEFT";
    return text;
  }

 private:
  template <class U = float>
  Padded<float> like(Padded<T> const& x) const {
    return {x.batch, x.rows, x.heads, x.dim, problem_.c.heads_outer};
  }
  Padded<T> like_result(Padded<T> const& x) const { return {x.batch, x.rows, x.heads, x.dim, problem_.c.heads_outer}; }

  void reference() {
    Case const& c = problem_.c;
    ReferenceStep const step = problem_.reference();
    int const rows = static_cast<int>(problem_.lse.count());
    for (auto* x : {&want_dq_, &want_dk_, &want_dv_}) x->fill(0);
    if (rows == 0 || c.keys == 0) return;
    reference_delta<<<(rows + 127) / 128, 128>>>(step, problem_.output.data(), rows, delta_.data());
    reference_dq<<<dim3(c.queries, c.query_heads, c.batch), 256, reference_bytes(c.keys)>>>(
        step, problem_.lse.data(), delta_.data(), want_dq_.data());
    reference_dkv<<<dim3(c.keys, c.kv_heads, c.batch), 256, reference_bytes(2 * c.queries)>>>(
        step, problem_.lse.data(), delta_.data(), want_dk_.data(), want_dv_.data());
    check(cudaGetLastError(), "reference of the backward pass");
  }

  cuda::GradientArguments<T> arguments(int from, int to, int2 const* ranges) const {
    cuda::GradientArguments<T> a{problem_.step_arguments(from, to, ranges)};
    a.dout = problem_.dout.template view<T const>();
    auto const constant = [&](DeviceArray<float> const& x) {
      auto const s = problem_.statistic(x);
      return cuda::StridedStatistic<float const>{s.data, s.batch, s.head, s.row};
    };
    a.lse = constant(forward_.lse);
    a.lse_remainder = constant(forward_.remainder);
    a.delta = constant(delta_);
    a.dq = dq_.view();
    a.dk = dk_.view(from);
    a.dv = dv_.view(from);
    a.dq_result = dq_result_.view();
    a.dk_result = dk_result_.view(from);
    a.dv_result = dv_result_.view(from);
    return a;
  }
  void add(int from, int to, bool opens_queries, bool closes_queries, bool opens_and_closes_keys) {
    DeviceArray<int2> const ranges(problem_.ranges_from(from));
    cuda::GradientArguments<T> a = arguments(from, to, ranges.data());
    a.opens_queries = opens_queries;
    a.closes_queries = closes_queries;
    a.opens_keys = a.closes_keys = opens_and_closes_keys;
    if (!hopper::is_fast(a)) throw annulus::Error("is_fast() refuses this step");
    hopper::add_gradients(a, memory_.view(), nullptr);
    finish("a backward kernel");
  }
  void poison() {
    for (Padded<float>* x : {&dq_, &dk_, &dv_}) x->device.fill(0xFF);
    for (Padded<T>* x : {&dq_result_, &dk_result_, &dv_result_}) x->device.fill(0xFF);
  }
  /// Sums that hold a number.
  void hold(float value) {
    for (Padded<float>* x : {&dq_, &dk_, &dv_}) {
      x->device.fill(0xFF);
      std::vector<float> values = x->device.get();
      x->for_each([&](std::size_t padded, std::size_t) { values[padded] = value; });
      x->device.put(values);
    }
  }

  template <class U>
  Difference difference(Padded<U> const& got, DeviceArray<double> const& want, double held) const {
    std::vector<U> const values = got.device.get();
    std::vector<double> const right = want.get();
    std::vector<std::size_t> place(right.size());
    got.for_each([&](std::size_t padded, std::size_t dense) { place[dense] = padded; });
    auto const dim = static_cast<std::size_t>(got.dim);
    Difference d = compare(
        right.size() / dim, got.dim, false,
        [&](std::size_t row, int e) {
          return static_cast<double>(static_cast<float>(values[place[row * dim + e]])) - held;
        },
        [&](std::size_t row, int e) { return right[row * dim + e]; });
    if (!got.padding_is_untouched(values)) d.wrong = true;
    return d;
  }
  template <class U>
  std::string judge(char const* name, double bound, std::string& failures, Padded<U> const& dq, Padded<U> const& dk,
                    Padded<U> const& dv, double held) const {
    Difference const q = difference(dq, want_dq_, held), k = difference(dk, want_dk_, held),
                     v = difference(dv, want_dv_, held);
    // Gradients of equal keys, and of rows that see one key, cancel: what is left is rounding.
    auto const good = [&](Difference const& d) { return problem_.c.same_keys ? !d.wrong : d.within(bound); };
    bool const tiny = q.reference < 1e-6 * v.reference;
    if (!v.within(bound) || !(good(q) || (tiny && !q.wrong)) || !(good(k) || (tiny && !k.wrong)))
      failures += std::string(" ") + name + ": dq " + q.text() + ", dk " + k.text() + ", dv " + v.text() + ";";
    return "dq " + q.text() + ", dk " + k.text() + ", dv " + v.text();
  }

  Problem<T> const& problem_;
  ForwardCheck<T> const& forward_;
  Padded<float> dq_, dk_, dv_;
  Padded<T> dq_result_, dk_result_, dv_result_;
  DeviceArray<float> delta_;
  DeviceArray<double> want_dq_, want_dk_, want_dv_;
  StepMemory memory_;
};

}  // namespace hopper_check
