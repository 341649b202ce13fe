#pragma once
// Interface and factories of the programs that are compared.

#include <memory>
#include <vector>

#include "attention/attention_case.hpp"
#include "attention/operands.hpp"

namespace annulus_bench {

enum class Quantity { output, lse, dq, dk, dv };

inline char const* name_of(Quantity quantity) {
  constexpr char const* names[] = {"output", "lse", "dq", "dk", "dv"};
  return names[static_cast<int>(quantity)];
}

/// One implementation of a case. Its constructor copies the operands to the layout and type that suit it best.
class AttentionProgram {
 public:
  AttentionProgram() = default;
  AttentionProgram(AttentionProgram const&) = delete;
  AttentionProgram& operator=(AttentionProgram const&) = delete;
  virtual ~AttentionProgram() = default;

  virtual void forward() = 0;
  /// Requires a preceding forward().
  virtual void backward() = 0;
  /// One row of a result of the last pass; for lse one value.
  virtual std::vector<double> row(Quantity quantity, Index head, Index row) const = 0;
};

/// The library on one rank with CpuBackend. T: float, double, Eigen::bfloat16, Eigen::half.
template <class T>
std::unique_ptr<AttentionProgram> cpu_program(AttentionCase const& c, Operands const& operands);

/// Three Eigen expressions per head; float; full and causal. All probabilities are stored, and kept for the backward
/// pass, which therefore needs four products; it is counted as five.
std::unique_ptr<AttentionProgram> plain_eigen_program(AttentionCase const& c, Operands const& operands);

/// Online softmax over blocks, Eigen products; float; full and causal. The backward pass recomputes the probabilities.
std::unique_ptr<AttentionProgram> blocked_eigen_program(AttentionCase const& c, Operands const& operands);

}  // namespace annulus_bench
