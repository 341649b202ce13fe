#include "text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "command/errors.hpp"

namespace train_bytes {

namespace {

using annulus_command::InputError;
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 9> text_extensions{".cmake", ".cpp", ".h",  ".hpp", ".md",
                                                          ".py",    ".rst", ".sh", ".txt"};

bool is_left_out(fs::path const& folder) {
  std::string const name = folder.filename().string();
  return name.starts_with('.') || name == "build";
}

std::vector<fs::path> text_files(fs::path const& folder) {
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory()) {
      if (is_left_out(entry->path())) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() &&
               std::ranges::find(text_extensions, entry->path().extension().string()) != text_extensions.end()) {
      files.push_back(entry->path());
    }
  }
  std::ranges::sort(files);
  return files;
}

void append_file(fs::path const& file, Bytes& bytes) {
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    throw InputError(file.string() + ": cannot be read (" + std::generic_category().message(errno) +
                     "); accepted: a text file or a folder of text files");
  bytes.insert(bytes.end(), std::istreambuf_iterator<char>(stream), {});
}

}  // namespace

Text read_text(fs::path const& path) {
  Bytes bytes;
  try {
    if (fs::is_directory(path))
      for (fs::path const& file : text_files(path)) append_file(file, bytes);
    else
      append_file(path, bytes);
  } catch (fs::filesystem_error const& error) {
    throw InputError(path.string() + ": cannot be read (" + error.code().message() +
                     "); accepted: a text file or a folder of text files");
  }
  if (bytes.empty()) {
    std::string extensions;
    for (std::string_view extension : text_extensions)
      extensions += (extensions.empty() ? "*" : " *") + std::string(extension);
    throw InputError(path.string() + ": has no text; accepted: a file with text, or a folder with files " + extensions);
  }
  auto const split = bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 10 * 9);
  return {Bytes(bytes.begin(), split), Bytes(split, bytes.end())};
}

std::uint64_t fingerprint(Text const& text) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (Bytes const* part : {&text.training, &text.validation})
    for (std::uint8_t const byte : *part) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

Windows RandomWindows::next() {
  Windows windows{batch_, length_, {}};
  for (Index i = 0; i < batch_; ++i) {
    auto const begin = static_cast<std::ptrdiff_t>(engine_() % (text_->size() - static_cast<std::size_t>(length_) + 1));
    windows.bytes.insert(windows.bytes.end(), text_->begin() + begin, text_->begin() + begin + length_);
  }
  return windows;
}

std::vector<Windows> even_windows(Bytes const& text, Index batch, Index length) {
  constexpr Index most_bytes = Index{1} << 16;
  auto const size = static_cast<Index>(text.size());
  Index const batches = std::max(Index{1}, std::min(size, most_bytes) / (batch * length));
  std::vector<Windows> result;
  for (Index b = 0; b < batches; ++b) {
    Windows windows{batch, length, {}};
    for (Index i = 0; i < batch; ++i) {
      // The last window ends at or before the end of the text, as size >= batches * batch * length.
      Index const begin = size / (batches * batch) * (b * batch + i);
      windows.bytes.insert(windows.bytes.end(), text.begin() + begin, text.begin() + begin + length);
    }
    result.push_back(std::move(windows));
  }
  return result;
}

void require_long_enough(Text const& text, Index batch, Index length) {
  auto const shortest = static_cast<Index>(std::min(text.training.size(), text.validation.size()));
  if (shortest >= batch * length) return;
  throw InputError("the text has " + std::to_string(text.training.size() + text.validation.size()) +
                   " bytes, of which a tenth is for validation; accepted: at least " +
                   std::to_string(10 * (batch * length + 1)) + " with this --batch and --context");
}

}  // namespace train_bytes
