#pragma once
// The text that the model learns, its two parts, and the windows of it that training and validation read.

#include <cstdint>
#include <filesystem>
#include <random>
#include <vector>

#include "matrix.hpp"

namespace train_bytes {

using Bytes = std::vector<std::uint8_t>;

/// The first nine tenths are for training; the last tenth, which training never reads, is for validation.
struct Text {
  Bytes training, validation;
};

/// Reads a file, or the text files of a folder and its subfolders, one after the other in the order of their paths.
/// Hidden folders and folders called build are left out. Throws InputError if there is nothing to read.
Text read_text(std::filesystem::path const& path);

/// Equal for equal texts, and different for different ones, save by an unlikely accident.
std::uint64_t fingerprint(Text const& text);

/// `batch` windows of equal length, one after the other. The model sees all bytes of a window but its last, and
/// predicts all but its first.
struct Windows {
  Index batch, length;
  Bytes bytes;

  std::uint8_t at(Index window, Index position) const {
    return bytes[static_cast<std::size_t>(window * length + position)];
  }
};

/// Training windows at random places. Equal seeds give equal windows, so every rank draws them for itself.
class RandomWindows {
 public:
  RandomWindows(Bytes const& text, Index batch, Index length, std::uint64_t seed)
      : text_(&text), batch_(batch), length_(length), engine_(seed) {}

  Windows next();

 private:
  Bytes const* text_;
  Index batch_, length_;
  std::mt19937_64 engine_;
};

/// Windows spread evenly over the text, without overlap, in whole batches: as many as fit, but no more than 64 KiB.
std::vector<Windows> even_windows(Bytes const& text, Index batch, Index length);

/// Throws InputError if either part of the text is shorter than a batch of windows.
void require_long_enough(Text const& text, Index batch, Index length);

}  // namespace train_bytes
