#pragma once
// Files that appear under their name only when they are complete.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "descriptor_buffer.hpp"
#include "input_error.hpp"
#include "removed_unless_kept.hpp"

namespace annulus_command {

namespace detail {

inline std::string file_message(std::filesystem::path const& path, std::string const& reason) {
  return path.string() + ": cannot be written (" + reason +
         "); accepted is a name in an existing folder that can be written, on a disk with free space";
}

inline std::string reason_of(int error) { return std::generic_category().message(error); }

/// fsync. Returns 0 or an errno; 0 on file systems without fsync.
inline int synchronize(int descriptor) {
  if (::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP) return 0;
  return errno;
}

/// Makes renames and removals in a folder durable. Returns 0 or an errno; 0 if the folder cannot be opened.
inline int synchronize_folder(std::filesystem::path const& folder) {
  int const descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  int const error = synchronize(descriptor);
  ::close(descriptor);
  return error;
}

}  // namespace detail

/// A file under a temporary name in the folder of its final path. commit() renames it; otherwise it is removed, also if
/// a signal ends the command. Write all results of a run before committing them, so that a full disk leaves none.
class PendingFile {
 public:
  /// Creates the temporary file; an existing file is never written into. Throws InputError if `path` cannot be written,
  /// or exists and is not a regular file.
  explicit PendingFile(std::filesystem::path path) : path_(std::move(path)) {
    require_regular_file();
    open();
    buffer_ = std::make_unique<DescriptorBuffer>(descriptor_.value);
    stream_ = std::make_unique<std::ostream>(buffer_.get());
  }
  PendingFile(PendingFile&&) noexcept = default;
  PendingFile& operator=(PendingFile&&) noexcept = default;

  /// Valid until close().
  std::ostream& stream() { return *stream_; }

  /// Throws std::runtime_error with the system's reason.
  void write(void const* data, std::size_t bytes) {
    if (!buffer_->write(static_cast<char const*>(data), bytes)) fail(detail::reason_of(buffer_->error()));
  }

  /// Flushes the file to the disk and closes it. Throws std::runtime_error with the system's reason.
  void close() {
    write(nullptr, 0);
    stream_.reset();
    buffer_.reset();
    int error = detail::synchronize(descriptor_.value);
    if (::close(std::exchange(descriptor_.value, -1)) != 0 && error == 0) error = errno;
    if (error != 0) fail(detail::reason_of(error));
  }

  /// Renames the closed file to its final path, replacing an existing file atomically. Throws std::runtime_error;
  /// std::logic_error if it is open, moved from or committed.
  void commit() {
    if (!temporary_ || descriptor_.value >= 0)
      throw std::logic_error("commit() of a file that is open, was moved away or is committed");
    if (::rename(temporary_.path().c_str(), path_.c_str()) != 0) fail(detail::reason_of(errno));
    temporary_.keep();
    if (int const error = detail::synchronize_folder(path_.parent_path())) fail(detail::reason_of(error));
  }

  std::filesystem::path const& path() const { return path_; }

 private:
  struct Descriptor {
    int value = -1;

    Descriptor() = default;
    Descriptor(Descriptor&& other) noexcept : value(std::exchange(other.value, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(value, other.value);
      return *this;
    }
    ~Descriptor() {
      if (value >= 0) ::close(value);
    }
  };

  [[noreturn]] void fail(std::string const& reason) const {
    throw std::runtime_error(detail::file_message(path_, reason));
  }

  [[noreturn]] void refuse(std::string const& reason) const { throw InputError(detail::file_message(path_, reason)); }

  /// Refuses other paths, because a rename would replace a device or a pipe.
  void require_regular_file() const {
    if (!path_.has_filename()) refuse("it is not the name of a file");
    std::error_code error;
    auto const status = std::filesystem::status(path_, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_regular_file(status))
      refuse(std::filesystem::is_directory(status) ? "it is a folder" : "it exists and is not a regular file");
  }

  void open() {
    std::random_device device;
    for (int attempt = 0; attempt < 16; ++attempt) {
      char name[48];
      std::snprintf(name, sizeof name, ".annulus-%08x%08x.partial", device(), device());
      temporary_ = RemovedUnlessKept(
          (path_.parent_path() / name).string(), RemovedUnlessKept::Kind::file, [&](char const* candidate) {
            descriptor_.value = ::open(candidate, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            return descriptor_.value >= 0;
          });
      if (temporary_) return;
      if (errno != EEXIST) break;
    }
    refuse(detail::reason_of(errno));
  }

  std::filesystem::path path_;
  RemovedUnlessKept temporary_;
  Descriptor descriptor_;
  std::unique_ptr<DescriptorBuffer> buffer_;
  std::unique_ptr<std::ostream> stream_;
};

/// Commits a set of closed files. The last one marks the set as complete: an older file of its name is removed before
/// any other is replaced, and it is renamed last. Signals are deferred meanwhile. Throws std::runtime_error.
inline void commit_together(std::span<PendingFile> files) {
  if (files.empty()) return;
  SignalsDeferred const deferred;
  std::filesystem::path const& last = files.back().path();
  if (::unlink(last.c_str()) != 0 && errno != ENOENT)
    throw std::runtime_error(detail::file_message(last, detail::reason_of(errno)));
  if (int const error = detail::synchronize_folder(last.parent_path()))
    throw std::runtime_error(detail::file_message(last, detail::reason_of(error)));
  for (PendingFile& file : files) file.commit();
}

}  // namespace annulus_command
