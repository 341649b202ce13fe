#pragma once
// Output folder of `annulus nki --emit`: kernels, mask tables and a README.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nki_kernels.hpp"
#include "npy.hpp"
#include "output_folder.hpp"
#include "pending_file.hpp"

namespace annulus_command {

/// Mask tables above this size, over all ranks of a ring, are not written but described in the README.
inline constexpr std::size_t most_mask_bytes = std::size_t{256} << 20;

/// Files that --emit writes for the mask of one kernel.
struct NkiMaskFiles {
  std::string input;                 ///< mask_offsets or mask_ranges; empty: the kernel has none
  std::vector<std::size_t> shape{};  ///< of one rank
  std::size_t bytes = 0;             ///< of all ranks of the ring
  bool written = false;
  std::vector<std::string> names{};  ///< one file, whose first axis is the rank in its ring, or one for each rank
};
NkiMaskFiles nki_mask_files(NkiProblem const& problem, NkiKernel const& kernel);

/// The output folder, created before anything is computed so that one that cannot be written ends the command at once.
class NkiFolder {
 public:
  NkiFolder(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

  /// All files that write() writes.
  std::vector<std::filesystem::path> const& paths() const { return paths_; }

  /// Writes all files under temporary names, then renames them; README.md, deleted first, is renamed last: if it
  /// exists, the set is complete. Lists the files on stdout.
  void write(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

 private:
  OutputFolder folder_;
  std::vector<std::filesystem::path> paths_;
};

}  // namespace annulus_command
