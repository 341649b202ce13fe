// The text of the training example: its files, its two parts, and windows of it.

#include "train_bytes/text.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "command/errors.hpp"
#include "support/catch.hpp"

using namespace train_bytes;
namespace fs = std::filesystem;

namespace {

/// A folder of its own, removed at the end.
struct Folder {
  Folder() : path(fs::temp_directory_path() / ("train-bytes-text-" + std::to_string(::getpid()))) {
    fs::create_directory(path);
  }
  ~Folder() { fs::remove_all(path); }

  void write(fs::path const& name, std::string const& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
  }

  fs::path path;
};

std::string whole(Text const& text) {
  return std::string(text.training.begin(), text.training.end()) +
         std::string(text.validation.begin(), text.validation.end());
}

Bytes counting_bytes(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 % 251);
  return bytes;
}

}  // namespace

TEST_CASE("a folder is read in the order of its paths, without hidden folders, builds and other files",
          "[train_bytes]") {
  Folder const folder;
  folder.write("b.md", "two ");
  folder.write("a/x.hpp", "one ");
  folder.write("c.txt", "three");
  folder.write("c.png", "picture");
  folder.write(".git/x.txt", "hidden");
  folder.write("build/x.cpp", "build");
  CHECK(whole(read_text(folder.path)) == "one two three");
  CHECK(whole(read_text(folder.path / "c.png")) == "picture");
}

TEST_CASE("the last tenth is for validation", "[train_bytes]") {
  Folder const folder;
  folder.write("x.txt", std::string(90, 'a') + std::string(10, 'b'));
  Text const text = read_text(folder.path / "x.txt");
  CHECK(text.training == Bytes(90, 'a'));
  CHECK(text.validation == Bytes(10, 'b'));
  CHECK(fingerprint(text) != fingerprint({text.training, Bytes(10, 'c')}));
}

TEST_CASE("there must be a text", "[train_bytes]") {
  Folder const folder;
  CHECK_THROWS_AS(read_text(folder.path), annulus_command::InputError);
  CHECK_THROWS_AS(read_text(folder.path / "absent"), annulus_command::InputError);
  folder.write("empty.txt", "");
  CHECK_THROWS_AS(read_text(folder.path), annulus_command::InputError);
}

TEST_CASE("the text must be as long as a batch of windows", "[train_bytes]") {
  Text const text{Bytes(100), Bytes(12)};
  CHECK_NOTHROW(require_long_enough(text, 3, 4));
  CHECK_THROWS_AS(require_long_enough(text, 1, 13), annulus_command::InputError);
}

TEST_CASE("random windows are pieces of the text, equal for equal seeds", "[train_bytes]") {
  Bytes const text = counting_bytes(300);
  RandomWindows one(text, 4, 9, 11), same(text, 4, 9, 11), other(text, 4, 9, 12);
  for (int i = 0; i < 50; ++i) {
    Windows const windows = one.next();
    CHECK(windows.bytes == same.next().bytes);
    CHECK(windows.bytes != other.next().bytes);
    for (Index w = 0; w < 4; ++w)
      CHECK(std::search(text.begin(), text.end(), windows.bytes.begin() + w * 9, windows.bytes.begin() + (w + 1) * 9) !=
            text.end());
  }
  // A text of one window has one place.
  CHECK(RandomWindows(text, 1, 300, 1).next().bytes == text);
}

TEST_CASE("even windows do not overlap", "[train_bytes]") {
  Bytes const text = counting_bytes(251);  // all windows of 5 differ
  auto const batches = even_windows(text, 3, 5);
  CHECK(batches.size() == 16);
  auto from = text.begin();
  for (Windows const& batch : batches)
    for (Index w = 0; w < 3; ++w) {
      auto const window = batch.bytes.begin() + w * 5;
      auto const found = std::search(from, text.end(), window, window + 5);
      REQUIRE(found != text.end());
      from = found + 5;
    }
  CHECK(even_windows(Bytes(1 << 20), 4, 512).size() == 32);
}
