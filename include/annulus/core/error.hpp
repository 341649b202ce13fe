#pragma once
// Exception types of the library. A message states what was requested, what was seen and what is accepted.

#include <stdexcept>
#include <string>

#include "annulus/core/index.hpp"

namespace annulus {

/// Base of all errors of the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Extents of operands do not match each other, the sharding, or the shapes of the first call.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// An option or operand has an invalid value, or one that the chosen backend or rotation does not support.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// A peer is lost, late, or was called with different arguments. Afterwards the ring of this communicator is closed.
class CommunicationError : public Error {
 public:
  static constexpr int unknown = -1;

  explicit CommunicationError(std::string const& message, Rank rank = unknown, int step = unknown,
                              Rank neighbour = unknown)
      : Error(message), rank_(rank), step_(step), neighbour_(neighbour) {}

  /// Rank that detected the error; `unknown` where all ranks detect it together.
  Rank rank() const { return rank_; }
  /// Step of the ring, counted from 0; `unknown` outside a step.
  int step() const { return step_; }
  /// Rank that was waited for, or that failed; `unknown` where it is not known.
  Rank neighbour() const { return neighbour_; }

 private:
  Rank rank_;
  int step_;
  Rank neighbour_;
};

}  // namespace annulus
