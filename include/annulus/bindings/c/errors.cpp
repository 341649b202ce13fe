// The last failure of each thread.

#include "annulus/bindings/c/errors.hpp"

#include "annulus/core/version.hpp"

namespace {

struct LastError {
  annulus_error error{ANNULUS_SUCCESS, -1, -1, -1, ""};
  std::string message;
};
thread_local LastError last;

}  // namespace

char const* annulus_version(void) { return annulus::version().data(); }

annulus_error annulus_last_error(void) { return last.error; }

annulus_status annulus_set_error(annulus_error const* error) {
  if (!error) return ANNULUS_SUCCESS;
  last.error = *error;
  try {
    // Copied first, as the message may be the last one.
    std::string message(error->message ? error->message : "");
    last.message.swap(message);
    last.error.message = last.message.c_str();
  } catch (std::bad_alloc const&) {
    last.error.message = "not enough memory for the message";
  }
  return last.error.status;
}

char const* annulus_status_name(annulus_status status) {
  switch (status) {
    case ANNULUS_SUCCESS:
      return "ANNULUS_SUCCESS";
    case ANNULUS_ERROR:
      return "ANNULUS_ERROR";
    case ANNULUS_SHAPE_ERROR:
      return "ANNULUS_SHAPE_ERROR";
    case ANNULUS_UNSUPPORTED_ERROR:
      return "ANNULUS_UNSUPPORTED_ERROR";
    case ANNULUS_COMMUNICATION_ERROR:
      return "ANNULUS_COMMUNICATION_ERROR";
    case ANNULUS_OUT_OF_MEMORY:
      return "ANNULUS_OUT_OF_MEMORY";
    case ANNULUS_OTHER_ERROR:
      return "ANNULUS_OTHER_ERROR";
  }
  return "not a status of annulus";
}
