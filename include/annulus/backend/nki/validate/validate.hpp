#pragma once
// validate: may this program run on that hardware? Nothing is executed; faults are found before anything is.

#include <new>
#include <vector>

#include "annulus/backend/nki/validate/buffer_rules.hpp"
#include "annulus/backend/nki/validate/shadow_pass.hpp"
#include "annulus/backend/nki/validate/text_pass.hpp"

namespace annulus::nki {

using validate_detail::Assumptions;

/// Up to `most` faults of a program, in the order of the text; empty if it is valid. What is wrong with an instruction
/// that runs many times is one finding, that of the first time.
///
/// Three parts, each only if the one before found nothing: what the program declares; every instruction of its text,
/// with indices bounded by loops and cores; the course of the program on all its cores without data, which finds reads
/// of what was never written, accumulations onto what no matmul wrote, broken chains of sums and races of two cores.
/// Registers count as any rank of the ring. Domains of ScalarE's functions depend on data and are not seen here.
///
/// Time: some 0.1 to 0.2 microseconds per executed instruction; memory: at most five bits per element of HBM tensors.
/// Throws Error where that does not fit this machine.
inline std::vector<Finding> findings(Program const& program, Hardware const& hardware, std::size_t most = 20,
                                     Assumptions const& assumptions = {}) {
  validate_detail::FaultList faults(most);
  bool const sound = validate_detail::BufferRules(program, hardware, faults).check();
  if (sound) validate_detail::TextPass(program, hardware, faults).run();
  try {
    if (sound && faults.empty()) validate_detail::ShadowPass(program, hardware, assumptions, faults).run();
  } catch (std::bad_alloc const&) {
    throw Error(message_of("validation of program ", program.name,
                           " needs five bits per element of its tensors in HBM; ",
                           "that is more memory than this machine gives"));
  }
  return std::move(faults).take();
}

/// Throws for the first fault: UnsupportedError where the generation lacks what is asked (R18), else ShapeError.
inline void validate(Program const& program, Hardware const& hardware, Assumptions const& assumptions = {}) {
  std::vector<Finding> const found = findings(program, hardware, 1, assumptions);
  if (found.empty()) return;
  std::string const message = message_of("nki program ", program.name, ": ", text_of(found.front()));
  if (found.front().rule == "R18") throw UnsupportedError(message);
  throw ShapeError(message);
}

}  // namespace annulus::nki
