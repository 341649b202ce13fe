#pragma once
// Writing a text file so that a file of the given name is either complete or not there.

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>

namespace annulus_command {

/// A text file that is opened before anything is computed, and has its name only once it is complete. Without commit()
/// nothing is left of it.
class PendingText {
 public:
  /// Throws InputError where `path` cannot be written.
  explicit PendingText(std::filesystem::path path);
  PendingText(PendingText&& other) noexcept;
  PendingText& operator=(PendingText&&) = delete;
  ~PendingText();

  std::ostream& stream() { return stream_; }

  /// No more is written. Throws InputError where the disk did not take all of it.
  void close();
  /// Replaces a file of the final name, in one step; closed before.
  void commit();

  std::filesystem::path const& path() const { return path_; }

 private:
  [[noreturn]] void fail(std::string const& reason) const;

  std::filesystem::path path_, temporary_;  ///< an empty temporary_: nothing to remove
  std::ofstream stream_;
};

}  // namespace annulus_command
