// PendingFile, its buffer, and the removal of what is not kept.

#include "command/pending_file.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include <sys/stat.h>
#include <sys/wait.h>

#include "command/output_folder.hpp"
#include "command_unit/npy_file.hpp"
#include "support/catch.hpp"

using namespace annulus_command;
using namespace annulus_test;

namespace {

std::vector<std::string> names_in(std::filesystem::path const& folder) {
  std::vector<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string content_of(std::filesystem::path const& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

PendingFile written(std::filesystem::path const& path, std::string const& content) {
  PendingFile file(path);
  file.stream() << content;
  file.close();
  return file;
}

/// Runs function() in a child process that ends by _exit(0) unless a signal ends it. Returns the status of waitpid.
template <class Function>
int status_of_child(Function&& function) {
  pid_t const child = fork();
  if (child == 0) {
    function();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("the buffer writes everything in order and keeps the errno of a failure", "[pending]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::string expected;
  {
    DescriptorBuffer buffer(ends[1], 16);
    std::ostream out(&buffer);
    for (int i = 0; i < 200; ++i) {
      std::string const piece(static_cast<std::size_t>(i % 40), static_cast<char>('a' + i % 26));
      out << piece << i;
      expected += piece + std::to_string(i);
    }
    out.put('!').flush();
    CHECK(out.good());
    CHECK(buffer.error() == 0);
  }
  std::string seen(expected.size() + 1, '\0');
  REQUIRE(read(ends[0], seen.data(), seen.size()) == static_cast<ssize_t>(seen.size()));
  CHECK(seen == expected + "!");
  close(ends[0]);
  close(ends[1]);

  int const full = open("/dev/full", O_WRONLY);
  REQUIRE(full >= 0);
  for (std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{100000}}) {
    DescriptorBuffer buffer(full, 64);
    std::ostream out(&buffer);
    out << std::string(bytes, 'x') << std::flush;
    errno = 0;
    CHECK(out.bad());
    CHECK(buffer.error() == ENOSPC);
  }
  close(full);
}

TEST_CASE("temporary names differ and are names of new files", "[pending]") {
  TemporaryFolder folder;
  std::set<std::string> seen;
  for (int i = 0; i < 50; ++i) {
    PendingFile const file(folder / "f.txt");
    auto const names = names_in(folder.path());
    REQUIRE(names.size() == 1);
    CHECK(names[0].starts_with(".annulus-"));
    CHECK(names[0].ends_with(".partial"));
    seen.insert(names[0]);
  }
  CHECK(seen.size() == 50);
  CHECK(names_in(folder.path()).empty());

  PendingFile const file(folder / "f.txt");
  for (auto const& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).parent_path() != folder.path()) continue;
    int const descriptor = std::stoi(entry.path().filename().string());
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("a file replaces a link, not the target of the link", "[pending]") {
  TemporaryFolder folder;
  auto const victim = folder.file("victim", "untouched");
  std::filesystem::create_symlink(victim, folder / "link");
  written(folder / "link", "new").commit();
  CHECK(content_of(victim) == "untouched");
  CHECK(content_of(folder / "link") == "new");
  CHECK_FALSE(std::filesystem::is_symlink(folder / "link"));
}

TEST_CASE("commit_together removes the last file first and renames it last", "[pending]") {
  TemporaryFolder folder;
  folder.file("a", "old");
  folder.file("last", "old");
  SECTION("without failure") {
    std::vector<PendingFile> files;
    for (char const* name : {"a", "b", "last"}) files.push_back(written(folder / name, "new"));
    CHECK(content_of(folder / "last") == "old");
    commit_together(files);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"a", "b", "last"});
    for (char const* name : {"a", "b", "last"}) CHECK(content_of(folder / name) == "new");
  }
  SECTION("after a failure the last file does not exist") {
    std::vector<PendingFile> files;
    for (char const* name : {"a", "b", "last"}) files.push_back(written(folder / name, "new"));
    std::filesystem::create_directory(folder / "b");
    CHECK_THROWS_AS(commit_together(files), std::runtime_error);
    files.clear();
    CHECK(names_in(folder.path()) == std::vector<std::string>{"a", "b"});
  }
}

TEST_CASE("a signal removes what is not kept, unless it is deferred", "[pending]") {
  TemporaryFolder folder;
  int const status = status_of_child([&] {
    clean_up_on_signals();
    OutputFolder const made(folder / "x" / "y", {"a"}, {});
    std::vector<PendingFile> files;
    for (char const* name : {"a", "b", "c"}) files.push_back(written(made / name, "new"));
    files.erase(files.begin());
    raise(SIGTERM);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(names_in(folder.path()).empty());

  int const deferred = status_of_child([&] {
    clean_up_on_signals();
    PendingFile kept = written(folder / "kept", "new"), other = written(folder / "other", "new");
    SignalsDeferred const defer;
    raise(SIGINT);
    kept.commit();
  });
  CHECK(WTERMSIG(deferred) == SIGINT);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"kept"});
}

TEST_CASE("a folder is locked by one process at a time", "[pending]") {
  TemporaryFolder folder;
  using Outcome = FolderLock::Outcome;
  auto const in_child = [&] {
    return WEXITSTATUS(status_of_child([&] { _exit(static_cast<int>(FolderLock::acquire(folder.path()).first)); }));
  };
  {
    auto const first = FolderLock::acquire(folder.path()), again = FolderLock::acquire(folder / ".");
    CHECK(first.first == Outcome::held);
    CHECK(again.second == first.second);
    // A child process inherits no lock: it requests a new one.
    CHECK(status_of_child([&] {
            std::string const self = "/proc/self/fd";
            int const own = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            _exit(flock(own, LOCK_EX | LOCK_NB) == 0 ? 1 : 0);
          }) == 0);
  }
  CHECK(in_child() == static_cast<int>(Outcome::held));
  CHECK(FolderLock::acquire(folder / "missing").first == Outcome::gone);
}
