// Invalid and incomplete .npy files: each gives one clear line, and no memory beyond the file size is allocated.

#include "command_unit/npy_file.hpp"
#include "support/catch.hpp"

#include <sys/stat.h>
#include <unistd.h>

using namespace annulus_command;
using namespace annulus_test;

namespace {

/// Drops the effective rights of root for its lifetime, so that permissions apply in the test.
class WithoutRoot {
 public:
  WithoutRoot() {
    if (was_root_ && seteuid(65534) != 0) throw std::runtime_error("root cannot become another user");
  }
  ~WithoutRoot() {
    if (was_root_ && seteuid(0) != 0) std::terminate();
  }

 private:
  bool was_root_ = geteuid() == 0;
};

}  // namespace

TEST_CASE("a truncated file is refused, wherever it ends", "[npy]") {
  TemporaryFolder folder;
  for (int version : {1, 2, 3}) {
    auto const content = npy_content(version, dictionary("<f8", "(2, 3)"), std::string(48, 'x'));
    for (std::size_t length = 0; length < content.size(); ++length) {
      CAPTURE(version, length);
      auto const file = folder.file("cut.npy", content.substr(0, length));
      CHECK(is_clear(input_error_of([&] { read_npy(file); }), "cut.npy"));
    }
    CHECK(input_error_of([&] { read_npy(folder.file("whole.npy", content)); }).empty());
    auto const longer = input_error_of([&] { read_npy(folder.file("longer.npy", content + "x")); });
    CHECK(contains(longer, "longer.npy: holds 49 bytes of data, f8 of shape (2, 3) has 48"));
  }
}

TEST_CASE("a file with any byte changed is either read or refused", "[npy]") {
  TemporaryFolder folder;
  auto const content = npy_content(1, dictionary("<f4", "(3, 2)"), std::string(24, 'x'));
  std::size_t const header_end = content.size() - 24;
  int refused = 0;
  for (std::size_t place = 0; place < header_end; ++place)
    for (char const byte : {'\0', '\n', '9', '-', '(', ')', '\'', ',', '}', '>', '\x80', '\xff'}) {
      auto changed = content;
      changed[place] = byte;
      auto const file = folder.file("changed.npy", changed);
      std::size_t bytes = 24;
      auto const message = input_error_of([&] {
        auto const array = read_npy(file);
        bytes = array.bytes.size();
        CHECK(array.to<double>().size() * element_size(array.type) == bytes);
      });
      CAPTURE(place, static_cast<int>(byte), message);
      CHECK(bytes == 24);
      if (!message.empty()) {
        CHECK(is_clear(message, "changed.npy"));
        ++refused;
      }
    }
  CHECK(refused > 500);
}

TEST_CASE("errors in the first bytes of a file are reported", "[npy]") {
  TemporaryFolder folder;
  auto const message_for = [&](std::string const& content) {
    auto const message = input_error_of([&] { read_npy(folder.file("x.npy", content)); });
    CHECK(is_clear(message, "x.npy"));
    return message;
  };
  CHECK(contains(message_for(""), "is empty"));
  CHECK(contains(message_for("PK\x03\x04" + std::string(60, 'z')), ".npz"));
  CHECK(contains(message_for("\x1b[31mred\nline" + std::string(60, 'z')), "starts with '\\x1b[31mr'"));
  CHECK(contains(message_for("\x93NUMPY"), "the version of the format"));
  for (std::string const& version :
       {std::string("\0\0", 2), std::string("\4\0", 2), std::string("\1\1", 2), std::string("\xff\xff", 2)})
    CHECK(contains(message_for("\x93NUMPY" + version + std::string(100, ' ')), "format version"));
  CHECK(contains(message_for(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12)), "a header of 4294967295 bytes"));
  CHECK(contains(message_for(std::string("\x93NUMPY\x03\x00\x00\x00\x01\x00", 12) + std::string(70000, ' ')),
                 "a header of 65536 bytes"));
  CHECK(contains(message_for(std::string("\x93NUMPY\x01\x00\xff\xff", 10) + "{}"), "ends 2 bytes later"));
}

TEST_CASE("a header other than the expected dictionary is refused", "[npy]") {
  TemporaryFolder folder;
  struct Case {
    std::string text;
    std::string said;
  };
  std::string const rest = ", 'fortran_order': False, 'shape': (1,)";
  std::string const before = "{'descr': '<f4', 'fortran_order': False, 'shape': ";
  for (auto const& wrong : std::vector<Case>{
           {"", "a dictionary"},
           {"None", "a dictionary"},
           {"['descr', '<f4']", "a dictionary"},
           {"{}", "no key 'descr'"},
           {"{'descr': '<f4', 'shape': (1,)}", "no key 'fortran_order'"},
           {"{'descr': '<f4', 'fortran_order': False}", "no key 'shape'"},
           {"{'descr': '<f4', 'descr': '<f4'" + rest + "}", "key 'descr' twice"},
           {"{'descr': '<f4', 'fortran_order': True" + rest + "}", "key 'fortran_order' twice"},
           {before + "(1,), 'shape': (1,)}", "key 'shape' twice"},
           {"{'descr': '<f4', 'extra': 1" + rest + "}", "unknown key 'extra'"},
           {"{'de\nscr': '<f4'" + rest + "}", "unknown key 'de\\x0ascr'"},
           {"{descr: '<f4'" + rest + "}", "a key in quotes"},
           {"{'descr' '<f4'" + rest + "}", "':' after a key"},
           {"{'descr': '<f4' 'fortran_order': False}", "',' or '}'"},
           {"{'descr': '<f4' " + rest, "',' or '}'"},
           {"{'descr': '<f4" + std::string(200, 'a'), "both of its quotes"},
           {"{'descr': '<\\x664'" + rest + "}", "without escapes"},
           {"{'descr': 4" + rest + "}", "a dtype in quotes"},
           {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "True or False"},
           {"{'descr': '<f4', 'fortran_order': 'False', 'shape': (1,)}", "True or False"},
           {before + "1}", "a shape in parentheses"},
           {before + "[1]}", "a shape in parentheses"},
           {before + "(1)}", "a tuple"},
           {before + "(1 1)}", "',' or ')'"},
           {before + "(,)}", "whole numbers"},
           {before + "(-1,)}", "not negative"},
           {before + "(2, 01)}", "without leading zeros"},
           {before + "(1.0,)}", "',' or ')'"},
           {before + "(0x1,)}", "',' or ')'"},
           {before + "(None,)}", "whole numbers"},
           {before + "(1,", "whole numbers"},
           {before + "(9223372036854775808,)}", "below 2^63"},
           {before + "(" + std::string(300, '9') + ",)}", "below 2^63"},
           {before + "(4294967296, 4294967296)}", "too large"},
           {before + "(2305843009213693952,)}", "too large"},
           {before + "(0, 4294967296, 4294967296)}", "too large"},
           {before + "(1,)} {}", "nothing after the dictionary"},
       }) {
    CAPTURE(wrong.text);
    auto const message = input_error_of([&] { read_npy(folder.file("d.npy", npy_content(1, wrong.text, "data"))); });
    CAPTURE(message);
    CHECK(is_clear(message, "d.npy"));
    CHECK(contains(message, wrong.said));
  }
}

TEST_CASE("a shape larger than the file is refused before memory is allocated", "[npy]") {
  TemporaryFolder folder;
  for (std::string const shape : {"(2305843009213693951,)", "(1000000000000,)", "(65536, 65536, 1024)"}) {
    auto const message =
        input_error_of([&] { read_npy(folder.file("big.npy", npy_content(1, dictionary("<f4", shape), "1234"))); });
    CAPTURE(shape, message);
    CHECK(is_clear(message, "big.npy"));
    CHECK(contains(message, "holds 4 bytes of data"));
  }
}

TEST_CASE("element types that are not numeric are refused", "[npy]") {
  TemporaryFolder folder;
  auto const message_for = [&](std::string const& descr) {
    auto const message =
        input_error_of([&] { read_npy(folder.file("t.npy", npy_content(1, descr, std::string(16, '\0')))); });
    CAPTURE(descr, message);
    CHECK(is_clear(message, "t.npy"));
    return message;
  };
  CHECK(contains(message_for(dictionary("|O", "(1,)")), "pickle"));
  CHECK(contains(message_for(dictionary("O8", "(1,)")), "pickle"));
  CHECK(contains(message_for("{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (2,)}"),
                 "structured dtype"));
  CHECK(contains(message_for("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (2,)}"), "structured dtype"));
  for (std::string const descr : {"<c8", "<c16", "<f16", "|S4", "<U1", "<M8[ns]", "<m8", "|V1", "|V4", ">V2", "", "<",
                                  "f", "<<f4", "<f4 ", "f44", "?", "<b2", "\x1b[31m"})
    CHECK(contains(message_for(dictionary(descr, "(1,)")), "is not supported"));
}

TEST_CASE("paths that are not readable files are refused", "[npy]") {
  TemporaryFolder folder;
  auto const message_for = [](std::filesystem::path const& path) {
    auto const message = input_error_of([&] { read_npy(path); });
    CAPTURE(message);
    CHECK(contains(message, "accepted is a .npy file"));
    CHECK_FALSE(contains(message, "\n"));
    return message;
  };
  CHECK(contains(message_for(folder / "absent.npy"), "absent.npy: does not exist"));
  CHECK(contains(message_for(""), "does not exist"));
  CHECK(contains(message_for(folder.path()), "is a folder"));
  CHECK(contains(message_for("/dev/zero"), "not a regular file"));
  CHECK(contains(message_for(folder / "two\nlines.npy"), "two\\x0alines.npy: does not exist"));
  auto const file = folder.file("plain.npy", "text");
  CHECK(contains(message_for(file / "below.npy"), "below.npy: "));
  CHECK(contains(message_for(folder / std::string(5000, 'n')), "cannot be read"));
  REQUIRE(mkfifo((folder / "pipe.npy").c_str(), 0600) == 0);
  CHECK(contains(message_for(folder / "pipe.npy"), "not a regular file"));
  std::filesystem::create_symlink(folder / "loop.npy", folder / "loop.npy");
  CHECK(contains(message_for(folder / "loop.npy"), "cannot be read"));

  using std::filesystem::perms;
  std::filesystem::permissions(folder.path(), perms::owner_all | perms::group_exec | perms::others_exec);
  std::filesystem::permissions(file, perms::none);
  WithoutRoot const plain_user;
  auto const message = message_for(file);
  CAPTURE(message);
  CHECK(contains(message, "plain.npy: cannot be opened"));
}
