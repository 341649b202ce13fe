// Forward cases of the vendor's tests of its ring kernels, at an eighth of the sequence; at full size with the tag
// [.long].

#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "nki/kernels/vendor_problem.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"
#include "support/larger_error.hpp"

namespace {

using namespace annulus_test;
using annulus::RowRange;
namespace nki = annulus::nki;

std::vector<VendorCase> whole_rows() {
  std::vector<VendorCase> cases;
  for (Order order : {full, contiguous, striped}) {
    for (int cores : {1, 2}) cases.push_back({order, 2, 2, 4096, 128, 2, cores});
    cases.push_back({order, 1, 1, 10240, 128, 4, 1});
    cases.push_back({order, 1, 2, 10240, 128, 4, 2});
  }
  cases.push_back({striped, 1, 2, 512, 128, 4, 2});
  cases.push_back({full, 3, 1, 4096, 128, 2, 2});
  cases.push_back({contiguous, 1, 3, 4096, 128, 2, 2});
  return cases;
}

std::vector<VendorCase> packed() {
  return {{striped, 1, 2, 4096, 128, 4, 2},
          {striped, 1, 2, 4096, 128, 4, 2, bf16, {0, 1024, 4096, 6144, 10240, 12288, 15360, 16384}},
          {striped, 1, 2, 8192, 128, 4, 2},
          {striped, 1, 2, 8192, 128, 4, 2, bf16, {0, 2048, 8192, 12288, 20480, 24576, 30720, 32768}}};
}

std::vector<VendorCase> ragged() {
  std::vector<VendorCase> cases;
  for (Order order : {full, contiguous, striped}) {
    for (Index heads : {1, 2})
      for (int cores : {1, 2}) cases.push_back({order, 1, heads, 4160, 128, 2, cores});
    cases.push_back({order, 1, 1, 576, 128, 2, 2});
  }
  return cases;
}

/// Masked rows: padding before, between and after documents, and queries at positions before all keys.
std::vector<VendorCase> masked_rows() {
  std::vector<VendorCase> cases;
  for (VendorCase base : {VendorCase{contiguous, 1, 2, 512, 128, 4, 2}, VendorCase{contiguous, 1, 2, 256, 128, 4, 2},
                          VendorCase{contiguous, 1, 2, 512, 16, 4, 2}, VendorCase{striped, 1, 2, 512, 128, 4, 2}}) {
    Index const tokens = base.ranks * base.rows;
    base.query_offset = -(base.rows + 100);
    cases.push_back(base);
    base.query_offset = 0;
    base.boundaries = {0, 200, tokens / 2 - 72, tokens / 2 + 44, tokens - 300, tokens};
    base.ids = {0, 1, 0, 2, -1};
    cases.push_back(base);
  }
  return cases;
}

/// softmax(q k^T) v for one row, in Scalar; `narrow` rounds the weights that multiply v, and the output.
template <class Scalar>
struct RowResult {
  Eigen::Matrix<Scalar, 1, Eigen::Dynamic> output;
  Scalar lse = 0;

  template <class Narrow>
  RowResult(Rows<Scalar> const& q, Rows<Scalar> const& k, Rows<Scalar> const& v, RowRange keys, Index row, double scale,
            Narrow&& narrow) {
    output.setZero(v.cols());
    if (keys.empty()) return;
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> weights =
        static_cast<Scalar>(scale) * (k.middleRows(keys.begin, keys.size()) * q.row(row).transpose());
    Scalar const highest = weights.maxCoeff();
    weights = (weights.array() - highest).exp();
    Scalar const sum = weights.sum();
    weights /= sum;
    narrow(weights.data(), weights.size());
    output = weights.transpose() * v.middleRows(keys.begin, keys.size());
    narrow(output.data(), output.size());
    lse = highest + std::log(sum);
  }
};

/// A sample of the tokens: the first and last ones, and a random one of each of `count` equal parts.
std::vector<Index> sampled(Index tokens, Index count) {
  std::mt19937 generator(3);
  std::vector<Index> rows{0, 1, 2, tokens - 2, tokens - 1};
  for (Index part = 0; part < count; ++part)
    rows.push_back(tokens * part / count +
                   static_cast<Index>(generator() % static_cast<std::uint32_t>(std::max<Index>(1, tokens / count))));
  return rows;
}

void check_forward(VendorCase const& vendor_case, Index samples) {
  CAPTURE(vendor_case.text());
  VendorProblem const problem(vendor_case);
  nki::RingMask const mask = problem.mask();
  nki::ValidatedProgram const program = valid(nki::ForwardKernel(problem.spec(), mask).ring());
  std::vector<nki::Tensors> inputs = problem.inputs(mask);
  for (nki::Tensors& tensors : inputs) tensors.erase("dout");
  // A ring order other than 0, 1, 2, ...: the even ranks, then the odd ones.
  std::vector<int> ring;
  for (int offset : {0, 1})
    for (int rank = offset; rank < vendor_case.ranks; rank += 2) ring.push_back(rank);
  std::vector<nki::Tensors> const results = launch(program, inputs, {.ring = ring});

  double error = 0, dense_error = 0, worst = 0, worst_lse = 0;
  Index masked = 0;
  bool finite = true, masked_is_zero = true;
  for (Index h = 0; h < static_cast<Index>(problem.heads().size()); ++h) {
    Rows<float> const output = problem.gathered(results, "output", h);
    std::vector<float> const lse = problem.gathered_lse(results, h);
    finite = finite && output.allFinite() && std::ranges::all_of(lse, [](float value) { return std::isfinite(value); });
    for (Index row = 0; row < problem.tokens(); ++row) {
      if (!problem.seen(row).empty()) continue;
      ++masked;
      masked_is_zero =
          masked_is_zero && lse[static_cast<std::size_t>(row)] == 0 && (output.row(row).array() == 0).all();
    }
    VendorProblem::Head const& head = problem.heads()[static_cast<std::size_t>(h)];
    Rows<double> const q = head.q.cast<double>(), k = head.k.cast<double>(), v = head.v.cast<double>();
    auto const as_it_is = [](double*, Index) {};
    auto const narrow = [&](float* values, Index n) { nki::simulator::round_to(vendor_case.type, values, n); };
    for (Index row : sampled(problem.tokens(), samples)) {
      RowRange const keys = problem.seen(row);
      if (keys.empty()) continue;
      RowResult<double> const exact(q, k, v, keys, row, problem.scale(), as_it_is);
      RowResult<float> const dense(head.q, head.k, head.v, keys, row, problem.scale(), narrow);
      Eigen::ArrayXXd const difference = (output.row(row).cast<double>() - exact.output).array();
      error += difference.square().sum();
      dense_error += (dense.output.cast<double>() - exact.output).squaredNorm();
      // The vendor's tolerance of 1e-3, plus the rounding of the exact output to bfloat16.
      Eigen::ArrayXXd const shares = difference.abs() / (1e-3 + 0x1p-8 * exact.output.array().abs());
      worst = larger_error(worst, shares.maxCoeff<Eigen::PropagateNaN>());
      worst_lse =
          larger_error(worst_lse, std::abs(static_cast<double>(lse[static_cast<std::size_t>(row)]) - exact.lse));
    }
  }
  CHECK(finite);
  CHECK(masked_is_zero);
  CHECK((masked > 0) == (!vendor_case.ids.empty() || vendor_case.query_offset < 0));
  CHECK(worst <= 1);
  CHECK(worst_lse <= 1e-5);
  CHECK(std::sqrt(error) <= 1.5 * std::sqrt(dense_error));
}

auto const some_rows = [](VendorCase const& vendor_case) { check_forward(vendor_case, 192); };
auto const few_rows = [](VendorCase const& vendor_case) { check_forward(vendor_case, 64); };

}  // namespace

TEST_CASE("the vendor's forward cases, whole tiles") { at_an_eighth(whole_rows(), some_rows); }
TEST_CASE("the vendor's forward cases, packed documents") { at_an_eighth(packed(), some_rows); }
TEST_CASE("the vendor's forward cases, ragged lengths") { at_an_eighth(ragged(), some_rows); }
TEST_CASE("the vendor's forward cases, masked rows") { at_an_eighth(masked_rows(), some_rows); }

TEST_CASE("the vendor's forward cases at full size, whole tiles", "[.long]") { at_full_size(whole_rows(), few_rows); }
TEST_CASE("the vendor's forward cases at full size, packed documents", "[.long]") { at_full_size(packed(), few_rows); }
TEST_CASE("the vendor's forward cases at full size, ragged lengths", "[.long]") { at_full_size(ragged(), few_rows); }
