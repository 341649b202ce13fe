// Backward cases of the vendor's tests of its ring kernels, at an eighth of the sequence; at full size with the tag
// [.long].

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "nki/kernels/vendor_problem.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus_test;
using annulus::RowRange;
namespace nki = annulus::nki;

/// The vendor's tables give the number of tokens of all ranks together.
std::vector<VendorCase> causal_and_not() {
  std::vector<VendorCase> cases;
  for (Order order : {full, contiguous}) {
    cases.push_back({order, 1, 2, 8192 / 4, 128, 4, 2, fp16});
    cases.push_back({order, 2, 2, 8192 / 4, 128, 4, 2, fp16});
    cases.push_back({order, 3, 3, 4096 / 4, 128, 4, 2, fp16});
  }
  cases.push_back({contiguous, 3, 1, 8192 / 4, 128, 4, 2, fp16});
  cases.push_back({contiguous, 3, 1, 8192 / 4, 128, 4, 2, bf16});
  return cases;
}

std::vector<VendorCase> striped_and_packed() {
  return {{striped, 1, 2, 8192 / 4, 128, 4, 2, fp16},
          {striped, 1, 2, 8192 / 4, 128, 4, 2, bf16},
          {striped, 1, 2, 16384 / 4, 128, 4, 2, fp16},
          {striped, 1, 2, 16384 / 4, 128, 4, 2, fp16, {0, 1024, 4096, 6144, 10240, 12288, 15360, 16384}},
          {striped, 1, 2, 16384 / 4, 128, 4, 2, bf16, {0, 1024, 4096, 6144, 10240, 12288, 15360, 16384}}};
}

std::vector<VendorCase> longest() {
  return {{striped, 1, 2, 32768 / 4, 128, 4, 2, fp16},
          {striped, 1, 2, 32768 / 4, 128, 4, 2, fp16, {0, 2048, 8192, 12288, 20480, 24576, 30720, 32768}},
          {full, 1, 2, 32768 / 4, 128, 4, 2, fp16}};
}

/// Gradients of one head, in Scalar. As in the kernels, `narrow` rounds the weights that multiply dout, the logit
/// gradients that multiply q and k, and the output used for delta, but not the results.
template <class Scalar>
struct HeadGradients {
  Rows<Scalar> dq, dk, dv;

  template <class Narrow>
  HeadGradients(VendorProblem const& problem, VendorProblem::Head const& head, Narrow&& narrow) {
    Rows<Scalar> const q = head.q.cast<Scalar>(), k = head.k.cast<Scalar>(), v = head.v.cast<Scalar>(),
                       dout = head.dout.cast<Scalar>();
    auto const scale = static_cast<Scalar>(problem.scale());
    for (Rows<Scalar>* gradient : {&dq, &dk, &dv}) gradient->setZero(q.rows(), q.cols());
    constexpr Index block = 128;
    for (Index begin = 0; begin < q.rows(); begin += block) {
      Index const count = std::min(block, q.rows() - begin);
      std::vector<RowRange> seen;
      RowRange all{q.rows(), 0};
      for (Index row = begin; row < begin + count; ++row) {
        seen.push_back(problem.seen(row));
        all = {std::min(all.begin, seen.back().begin), std::max(all.end, seen.back().end)};
      }
      auto const rows = Eigen::seqN(begin, count);
      auto const keys = Eigen::seqN(all.begin, all.size());
      Rows<Scalar> weights = scale * (q(rows, Eigen::all) * k(keys, Eigen::all).transpose());
      for (Index row = 0; row < count; ++row) {
        RowRange const range = seen[static_cast<std::size_t>(row)];
        auto line = weights.row(row).array();
        Scalar const highest = line.segment(range.begin - all.begin, range.size()).maxCoeff();
        line = (line - highest).exp();
        line.head(range.begin - all.begin) = 0;
        line.tail(all.end - range.end) = 0;
        line /= line.sum();
      }
      Rows<Scalar> narrowed = weights;
      narrow(narrowed.data(), narrowed.size());
      Rows<Scalar> output = narrowed * v(keys, Eigen::all);
      narrow(output.data(), output.size());
      Eigen::Array<Scalar, Eigen::Dynamic, 1> const delta =
          (output.array() * dout(rows, Eigen::all).array()).rowwise().sum();
      Rows<Scalar> dlogits = dout(rows, Eigen::all) * v(keys, Eigen::all).transpose();
      dlogits = weights.array() * (dlogits.array().colwise() - delta);
      narrow(dlogits.data(), dlogits.size());
      dq(rows, Eigen::all) = scale * (dlogits * k(keys, Eigen::all));
      dk(keys, Eigen::all) += scale * (dlogits.transpose() * q(rows, Eigen::all));
      dv(keys, Eigen::all) += narrowed.transpose() * dout(rows, Eigen::all);
    }
  }
};

void check_backward(VendorCase const& vendor_case, nki::RotatingSide travels) {
  CAPTURE(vendor_case.text(), static_cast<int>(travels));
  VendorProblem const problem(vendor_case);
  nki::RingMask const mask = problem.mask();
  nki::KernelSpec spec = problem.spec();
  spec.travels = travels;
  bool const queries_rotate = travels == nki::RotatingSide::queries;
  std::vector<nki::Tensors> inputs = problem.inputs(mask);
  std::vector<nki::Tensors> backward_inputs = inputs;
  for (nki::Tensors& tensors : inputs) tensors.erase("dout");
  std::vector<nki::Tensors> const forward =
      launch(valid(nki::ForwardKernel(spec, mask).ring()), inputs, {.ring = {2, 0, 3, 1}});
  nki::ValidatedProgram const program = valid(nki::BackwardKernel(spec, mask).ring());
  for (std::size_t rank = 0; rank < forward.size(); ++rank) {
    nki::Tensors& tensors = backward_inputs[rank];
    tensors.insert(forward[rank].begin(), forward[rank].end());
    if (mask.form() == nki::BoundsForm::band)
      tensors["mask_offsets"] = mask.offsets(static_cast<int>(rank), 1, queries_rotate);
    if (mask.form() == nki::BoundsForm::ranges)
      tensors["mask_ranges"] = mask.ranges(static_cast<int>(rank), 1, queries_rotate);
  }
  std::vector<nki::Tensors> const results = launch(program, backward_inputs, {.ring = {1, 3, 0, 2}});

  // Checks the first head, which belongs to one core, and the last, which both cores share if the number is odd.
  auto const heads = static_cast<Index>(problem.heads().size());
  std::vector<Index> checked{heads - 1};
  if (heads > 1 && problem.tokens() < 4096) checked.push_back(0);
  for (Index h : checked) {
    VendorProblem::Head const& head = problem.heads()[static_cast<std::size_t>(h)];
    HeadGradients<double> const exact(problem, head, [](double*, Index) {});
    HeadGradients<float> const dense(
        problem, head, [&](float* values, Index n) { nki::simulator::round_to(vendor_case.type, values, n); });
    auto const check = [&](char const* name, Rows<double> const& wanted, Rows<float> const& yardstick) {
      CAPTURE(name, h);
      Rows<double> const seen = problem.gathered(results, name, h).cast<double>();
      double const error = (seen - wanted).norm(), dense_error = (yardstick.cast<double>() - wanted).norm();
      CHECK(error <= 2 * dense_error);
      // The vendor's tolerances.
      CHECK(((seen - wanted).array().abs() / (1e-2 + 1e-2 * wanted.array().abs())).maxCoeff<Eigen::PropagateNaN>() <=
            1);
    };
    check("dq", exact.dq, dense.dq);
    check("dk", exact.dk, dense.dk);
    check("dv", exact.dv, dense.dv);
  }
}

auto const with_rotating_queries = [](VendorCase const& vendor_case) {
  check_backward(vendor_case, nki::RotatingSide::queries);
};

}  // namespace

TEST_CASE("the vendor's backward cases, causal and full") { at_an_eighth(causal_and_not(), with_rotating_queries); }
TEST_CASE("the vendor's backward cases, striped and packed") {
  at_an_eighth(striped_and_packed(), with_rotating_queries);
}
TEST_CASE("the vendor's backward cases, longest sequences") { at_an_eighth(longest(), with_rotating_queries); }
TEST_CASE("the vendor's backward cases with rotating keys") {
  check_backward(VendorCase{contiguous, 3, 1, 8192 / 4, 128, 4, 2, bf16}.eighth(), nki::RotatingSide::keys);
  check_backward(
      VendorCase{striped, 1, 2, 16384 / 4, 128, 4, 2, bf16, {0, 1024, 4096, 6144, 10240, 12288, 15360, 16384}}.eighth(),
      nki::RotatingSide::keys);
}

TEST_CASE("the vendor's backward cases at full size, causal and full", "[.long]") {
  at_full_size(causal_and_not(), with_rotating_queries);
}
TEST_CASE("the vendor's backward cases at full size, striped and packed", "[.long]") {
  at_full_size(striped_and_packed(), with_rotating_queries);
}
TEST_CASE("the vendor's backward cases at full size, longest sequences", "[.long]") {
  at_full_size(longest(), with_rotating_queries);
}
