#pragma once
// Exceptions as status codes: no exception leaves a function of the C interface.

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "annulus/annulus.h"
#include "annulus/core/error.hpp"

namespace annulus::bindings {

/// Failure of one rank of annulus_run_ring.
class RankFailure : public std::exception {
 public:
  explicit RankFailure(annulus_error const& error) : error_(error), message_(error.message) {
    error_.message = message_.c_str();
  }
  RankFailure(RankFailure const& other) : RankFailure(other.error_) {}
  RankFailure& operator=(RankFailure const&) = delete;

  char const* what() const noexcept override { return message_.c_str(); }
  annulus_error const& error() const { return error_; }

 private:
  annulus_error error_;
  std::string message_;
};

/// Makes the exception that is being handled the last failure of this thread.
inline annulus_status record_failure() noexcept {
  auto const fail = [](annulus_status status, char const* message, int rank = -1, int step = -1, int neighbour = -1) {
    annulus_error const error{status, rank, step, neighbour, message};
    return annulus_set_error(&error);
  };
  try {
    throw;
  } catch (RankFailure const& failure) {
    return annulus_set_error(&failure.error());
  } catch (CommunicationError const& error) {
    return fail(ANNULUS_COMMUNICATION_ERROR, error.what(), error.rank(), error.step(), error.neighbour());
  } catch (ShapeError const& error) {
    return fail(ANNULUS_SHAPE_ERROR, error.what());
  } catch (UnsupportedError const& error) {
    return fail(ANNULUS_UNSUPPORTED_ERROR, error.what());
  } catch (Error const& error) {
    return fail(ANNULUS_ERROR, error.what());
  } catch (std::bad_alloc const&) {
    return fail(ANNULUS_OUT_OF_MEMORY, "not enough memory");
  } catch (std::exception const& error) {
    return fail(ANNULUS_OTHER_ERROR, error.what());
  } catch (...) {
    return fail(ANNULUS_OTHER_ERROR, "an exception of unknown type");
  }
}

/// Calls function(), and returns the status of what it throws.
template <class Function>
annulus_status guarded(Function&& function) noexcept {
  try {
    function();
    return ANNULUS_SUCCESS;
  } catch (...) {
    return record_failure();
  }
}

/// The object that an argument points to. Throws UnsupportedError for NULL.
template <class T>
T& require_given(T* argument, std::string_view name) {
  detail::check<UnsupportedError>(argument != nullptr, name, " is NULL; a pointer to an object is required");
  return *argument;
}

}  // namespace annulus::bindings
