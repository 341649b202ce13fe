#pragma once
// Every error that the library throws. A message says what was asked, what was seen and what is accepted.

#include <stdexcept>
#include <string>

#include "annulus/core/index.hpp"

namespace annulus {

/// Base of all errors of the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Extents of operands do not fit each other, the sharding, or the shapes of the first call.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// An option or operand has a value that has no meaning, or one that the chosen backend or rotation cannot honour.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// A peer is lost, late, or was called with other arguments. After it the ring of this communicator is closed.
class CommunicationError : public Error {
 public:
  static constexpr int unknown = -1;

  explicit CommunicationError(std::string const& message, Rank rank = unknown, int step = unknown,
                              Rank neighbour = unknown)
      : Error(message), rank_(rank), step_(step), neighbour_(neighbour) {}

  /// Rank that noticed; `unknown` where all ranks notice together.
  Rank rank() const { return rank_; }
  /// Step of the ring, counted from 0; `unknown` outside a step.
  int step() const { return step_; }
  /// Rank that was waited for, or that failed.
  Rank neighbour() const { return neighbour_; }

 private:
  Rank rank_;
  int step_;
  Rank neighbour_;
};

}  // namespace annulus
