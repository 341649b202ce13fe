#pragma once
// Validator of tile programs: checks a program against the rules of the hardware and of NKI before it is run.

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/validate/findings.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/validate/shadow_pass.hpp"
#include "annulus/nki/validate/text_pass.hpp"
#endif

namespace annulus::nki {

/// Up to `most` faults of a program, in text order; empty if the program is valid. A fault of an instruction that runs
/// several times is reported once, for the first time.
///
/// Three stages, each run only if the previous ones found nothing: the declarations; every instruction of the text,
/// with indices bounded by loops and cores; a symbolic run on all cores without data, which finds reads of elements
/// never written, accumulation onto elements that no matmul wrote, broken reduction chains and races between two cores.
/// A register is assumed to hold any rank of the ring. Input domains of ScalarE's functions depend on data and are not
/// checked here.
///
/// Time: some 0.1 to 0.2 microseconds per executed instruction; memory: at most five bits per element of HBM tensors.
/// Throws Error if that memory cannot be allocated.
std::vector<Finding> findings(Program const& program, Hardware const& hardware, std::size_t most = 20,
                              Assumptions const& assumptions = {});

/// Throws for the first fault: UnsupportedError if the hardware generation lacks a feature (R18), else ShapeError.
/// Throws Error if the memory that `findings` needs cannot be allocated.
void validate(Program const& program, Hardware const& hardware, Assumptions const& assumptions = {});

/// A program that has been validated. The simulator requires one, and checks nothing that validation has checked.
class ValidatedProgram {
 public:
  /// Skips validation, for a program that is known to be valid. Simulating any other program is undefined behaviour.
  static ValidatedProgram assume_valid(Program program) { return ValidatedProgram(std::move(program)); }

  Program const& program() const { return program_; }  ///< the program

 private:
  friend ValidatedProgram validated(Program program, Hardware const& hardware, Assumptions const& assumptions);
  explicit ValidatedProgram(Program program) : program_(std::move(program)) {}

  Program program_;
};

/// Validates the program and returns it. Throws as validate() does.
inline ValidatedProgram validated(Program program, Hardware const& hardware, Assumptions const& assumptions = {}) {
  validate(program, hardware, assumptions);
  return ValidatedProgram(std::move(program));
}

#if defined(ANNULUS_NKI_DEFINITIONS)

ANNULUS_NKI_INLINE std::vector<Finding> findings(Program const& program, Hardware const& hardware, std::size_t most,
                                                 Assumptions const& assumptions) {
  validate_detail::FaultList faults(most);
  bool const sound = validate_detail::Declarations(program, hardware, faults).check();
  if (sound) validate_detail::TextPass(program, hardware, faults).run();
  try {
    if (sound && faults.empty()) validate_detail::ShadowPass(program, hardware, assumptions, faults).run();
  } catch (std::bad_alloc const&) {
    throw Error(detail::message_of("validation of program ", program.name,
                                   " needs five bits per element of its tensors in HBM; ",
                                   "that is more memory than this machine has available"));
  }
  return std::move(faults).take();
}

ANNULUS_NKI_INLINE void validate(Program const& program, Hardware const& hardware, Assumptions const& assumptions) {
  std::vector<Finding> const found = findings(program, hardware, 1, assumptions);
  if (found.empty()) return;
  std::string const message = detail::message_of("nki program ", program.name, ": ", text_of(found.front()));
  if (found.front().rule == Rule::generation) throw UnsupportedError(message);
  throw ShapeError(message);
}

#endif

}  // namespace annulus::nki
