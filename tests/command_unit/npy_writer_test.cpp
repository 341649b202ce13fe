// write_npy: files read back bit for bit, and a failure leaves no file.

#include "command_unit/npy_file.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <sstream>

#include <sys/resource.h>
#include <sys/stat.h>

using namespace annulus_command;
using namespace annulus_test;

namespace {

std::string content_of(std::filesystem::path const& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

std::size_t files_in(std::filesystem::path const& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

/// Simulates a full disk for its lifetime: no file can grow beyond `bytes`.
class FullDisk {
 public:
  explicit FullDisk(std::size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("written values are read back bit for bit", "[npy]") {
  TemporaryFolder folder;
  using Shape = std::vector<std::size_t>;
  for (Shape const& shape : {Shape{}, Shape{1}, Shape{7}, Shape{2, 3}, Shape{3, 1, 2, 4}, Shape{0}, Shape{4, 0, 2}}) {
    std::size_t count = 1;
    for (std::size_t extent : shape) count *= extent;
    std::vector<double> doubles;
    std::vector<float> floats;
    for (std::size_t i = 0; i < count; ++i) {
      doubles.push_back(1.0 / (static_cast<double>(i) + 3.0));
      floats.push_back(-static_cast<float>(doubles.back()));
    }
    CAPTURE(shape_text(shape));
    write_npy(folder / "d.npy", shape, doubles);
    write_npy(folder / "f.npy", shape, floats);
    auto const read_doubles = read_npy(folder / "d.npy");
    auto const read_floats = read_npy(folder / "f.npy");
    CHECK(read_doubles.shape == shape);
    CHECK(read_doubles.type == NpyType::float64);
    CHECK(read_doubles.to<double>() == doubles);
    CHECK(read_floats.shape == shape);
    CHECK(read_floats.type == NpyType::float32);
    CHECK(read_floats.to<float>() == floats);
  }
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("infinities, NaN and -0 are kept", "[npy]") {
  TemporaryFolder folder;
  double const infinity = std::numeric_limits<double>::infinity();
  write_npy(folder / "n.npy", {3}, std::vector<double>{-infinity, std::numeric_limits<double>::quiet_NaN(), -0.0});
  auto const values = read_npy(folder / "n.npy").to<double>();
  CHECK(values[0] == -infinity);
  CHECK(std::isnan(values[1]));
  CHECK(std::signbit(values[2]));
}

TEST_CASE("the header is version 1.0, aligned to 64 bytes, with NumPy's own text", "[npy]") {
  TemporaryFolder folder;
  for (std::size_t axes = 0; axes < 40; ++axes) {
    write_npy(folder / "a.npy", std::vector<std::size_t>(axes, 1), std::vector<float>{1.0f});
    auto const content = content_of(folder / "a.npy");
    CHECK((content.size() - 4) % 64 == 0);
    CHECK(content[content.size() - 5] == '\n');
  }
  write_npy(folder / "b.npy", {2, 1}, std::vector<float>{1.0f, 2.0f});
  auto const content = content_of(folder / "b.npy");
  CHECK(content.substr(0, 10) == std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  CHECK(content.substr(10, 59) == "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }");
  CHECK(content.substr(69, 58) == std::string(58, ' '));
  CHECK(content.size() == 128 + 8);
}

TEST_CASE("an existing file is replaced as a whole", "[npy]") {
  TemporaryFolder folder;
  write_npy(folder / "r.npy", {100}, std::vector<double>(100, 1.0));
  write_npy(folder / "r.npy", {2}, std::vector<double>{5.0, 6.0});
  CHECK(read_npy(folder / "r.npy").to<double>() == std::vector<double>{5.0, 6.0});
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a file does not exist before it is committed", "[npy]") {
  TemporaryFolder folder;
  std::vector<float> const values{1.0f, 2.0f};
  {
    PendingFile const abandoned = pending_npy(folder / "a.npy", {2}, std::span(values));
    CHECK_FALSE(std::filesystem::exists(folder / "a.npy"));
    CHECK(files_in(folder.path()) == 1);
  }
  CHECK(files_in(folder.path()) == 0);

  std::vector<PendingFile> several;
  for (char const* name : {"b.npy", "c.npy", "d.npy"})
    several.push_back(pending_npy(folder / name, {2}, std::span(values)));
  for (auto& one : several) one.commit();
  CHECK(read_npy(folder / "c.npy").to<float>() == values);
  CHECK_THROWS_AS(several[0].commit(), std::logic_error);
  several.clear();
  CHECK(files_in(folder.path()) == 3);
}

TEST_CASE("a file that cannot be written gives one line and leaves no file", "[npy]") {
  TemporaryFolder folder;
  std::vector<double> const values(4096, 1.0);
  auto const message_for = [&](std::filesystem::path const& path) {
    auto message = input_error_of([&] { write_npy(path, {4096}, values); });
    CAPTURE(message);
    CHECK(contains(message, "cannot be written ("));
    CHECK(contains(message, "accepted is"));
    CHECK_FALSE(contains(message, "\n"));
    return message;
  };
  SECTION("no such folder") {
    CHECK(contains(message_for(folder / "absent" / "o.npy"), "absent/o.npy"));
    CHECK_FALSE(std::filesystem::exists(folder / "absent"));
  }
  SECTION("a folder that is a file") { message_for(folder.file("file", "text") / "o.npy"); }
  SECTION("the name of a folder") {
    std::filesystem::create_directory(folder / "o.npy");
    CHECK(contains(message_for(folder / "o.npy"), "it is a folder"));
    CHECK(files_in(folder.path()) == 1);
  }
  SECTION("a pipe") {
    REQUIRE(mkfifo((folder / "o.npy").c_str(), 0600) == 0);
    CHECK(contains(message_for(folder / "o.npy"), "not a regular file"));
    CHECK(std::filesystem::is_fifo(folder / "o.npy"));
  }
  SECTION("an empty name") { message_for(""); }
  SECTION("a disk that is full leaves the file that was there") {
    write_npy(folder / "o.npy", {1}, std::vector<double>{3.0});
    {
      FullDisk const full(16384);
      std::string message;
      try {
        write_npy(folder / "o.npy", {4096}, values);
      } catch (InputError const&) {
        FAIL("a full disk is not an error of the user");
      } catch (std::runtime_error const& error) {
        message = error.what();
      }
      CHECK(contains(message, "o.npy: cannot be written (File too large)"));
    }
    CHECK(read_npy(folder / "o.npy").to<double>() == std::vector<double>{3.0});
    CHECK(files_in(folder.path()) == 1);
  }
}

TEST_CASE("a shape that does not match the values is a logic error", "[npy]") {
  TemporaryFolder folder;
  CHECK_THROWS_AS(write_npy(folder / "s.npy", {2, 3}, std::vector<float>(5)), std::logic_error);
  CHECK(files_in(folder.path()) == 0);
}
