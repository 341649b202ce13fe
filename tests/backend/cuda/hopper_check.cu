// hopper_check [TEXT]: every instance of the Hopper kernels against arithmetic in double, on ragged extents, bands,
// ranges, GQA, batches, padded strides, one call and rings of folds. Prints a line a case, those that failed again at
// the end, and exits with 1 if one did. With TEXT, only instances whose name ("bf16 128/128") contains it.

#include <chrono>

#include "hopper_backward_check.cuh"

namespace hopper_check {
namespace {

Case const cases[] = {
    // Tile borders, and extents of 0, 1 and primes.
    {1, 1, 1, 1, 1},
    {1, 5000, 1, 1, 1},
    {127, 129, 2, 1, 1},
    {128, 128, 1, 1, 1},
    {129, 127, 1, 1, 2},
    {191, 113, 2, 2, 1},
    {192, 112, 1, 1, 1},
    {193, 111, 1, 1, 1},
    {65, 81, 2, 1, 3},
    {64, 80, 2, 1, 1},
    {63, 79, 2, 1, 1},
    {0, 100, 2, 1, 1},
    {100, 0, 2, 1, 1},
    {1009, 787, 4, 2, 1},
    // Bands: causal, with an offset, windows, rows and keys that see nothing.
    {1024, 1024, 2, 2, 2, Rows::band, -far, 0},
    {333, 1111, 4, 1, 1, Rows::band, -far, 778},
    {1500, 1300, 2, 1, 1, Rows::band, -200, 0},
    {700, 900, 2, 2, 1, Rows::band, -100, 100},
    {640, 640, 2, 2, 1, Rows::band, -far, -1},
    {500, 300, 2, 2, 1, Rows::band, -far, -350},
    {300, 500, 1, 1, 1, Rows::band, 600, far},
    {1300, 1300, 2, 1, 1, Rows::band, 5, 3},
    {200, 1000, 1, 1, 1, Rows::band, -40, 20},
    {700, 700, 24, 24, 1, Rows::band, -far, 0},
    // Ranges.
    {1000, 1000, 2, 1, 2, Rows::documents},
    {1000, 1000, 4, 2, 1, Rows::causal_documents},
    {700, 900, 2, 1, 2, Rows::scattered},
    {600, 800, 2, 2, 1, Rows::backwards},
    {300, 40, 2, 2, 1, Rows::scattered},
    // Logits that run away, after the first block too; negative scale; sink logits; another layout.
    {777, 1555, 4, 2, 1, Rows::band, -far, 700, 30},
    {500, 3000, 2, 2, 1, Rows::band, -far, far, 200},
    {900, 2500, 2, 1, 1, Rows::band, -300, 900, 60},
    {400, 700, 2, 1, 1, Rows::band, -far, 300, 8, -1},
    {640, 640, 2, 1, 1, Rows::band, -far, 0, 1, 1, 3},
    {300, 300, 2, 1, 1, Rows::band, -far, -100, 1, 1, 1},
    {500, 600, 4, 2, 2, Rows::band, -far, 100, 1, 1, 0, false, true},
    {256, 1000, 1, 1, 1, Rows::band, -far, far, 500, 1000, 0, true},
};

template <class T>
constexpr bool is_half = std::is_same_v<T, __half>;

/// Runs a case; returns what failed.
template <class T>
std::string run_case(Case const& c, hopper::HeadShape const& shape, bool backward, std::string& text) {
  double const rounding = is_half<T> ? 1. / 8 : 1;
  std::string failures;
  try {
    Problem<T> const problem(c, shape);
    ForwardCheck<T> forward(problem);
    text = "output " + forward.run(6e-3 * rounding, failures);
    if (backward && (c.amplitude <= 10 || c.same_keys)) {
      BackwardCheck<T> gradients(problem, forward);
      text += "; " + gradients.run((c.amplitude > 1 && !c.same_keys ? 5e-2 : 1e-2) * rounding, failures);
    }
  } catch (std::exception const& e) {
    failures += std::string(" ") + e.what();
  }
  return failures;
}

template <class T>
void run_instance(hopper::HeadShape const& shape, char const* filter, std::vector<std::string>& failed) {
  std::string const name = std::string(is_half<T> ? "half " : "bf16 ") + std::to_string(shape.head_dim) + "/" +
                           std::to_string(shape.value_dim);
  if (filter && name.find(filter) == std::string::npos) return;
  bool const backward =
      std::find(hopper::gradient_shapes.begin(), hopper::gradient_shapes.end(), shape) != hopper::gradient_shapes.end();
  auto const start = std::chrono::steady_clock::now();
  for (Case const& c : cases) {
    std::string text;
    std::printf("%s: %s", name.c_str(), c.text().c_str());
    std::fflush(stdout);
    std::string const failures = run_case<T>(c, shape, backward, text);
    std::printf(": %s%s%s\n", text.c_str(), failures.empty() ? "" : " FAILED", failures.c_str());
    std::fflush(stdout);
    if (!failures.empty()) failed.push_back(name + ": " + c.text() + ":" + failures);
  }
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s: %.1f s\n", name.c_str(), seconds.count());
}

}  // namespace
}  // namespace hopper_check

int main(int argc, char** argv) {
  using namespace hopper_check;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0 || !hopper::is_hopper()) {
    std::puts("skipped: the current GPU is not a Hopper GPU");
    return 0;
  }
  char const* const filter = argc > 1 ? argv[1] : nullptr;
  std::vector<std::string> failed;
  for (hopper::HeadShape const& shape : hopper::fold_shapes) {
    run_instance<__nv_bfloat16>(shape, filter, failed);
    run_instance<__half>(shape, filter, failed);
  }
  for (std::string const& line : failed) std::printf("FAILED %s\n", line.c_str());
  std::printf("%s: %zu failed\n", failed.empty() ? "passed" : "FAILED", failed.size());
  return failed.empty() ? 0 : 1;
}
