// Meetings of processes in shared memory: ranks that come, do not come, come twice or die.

#if defined(__linux__)

#include "annulus/comm/peer/meeting.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using detail::MeetingMemory;

namespace {

/// A name that no other meeting of the node has.
std::string new_name() {
  static int made = 0;
  return detail::message_of("test-", getpid(), "-", ++made);
}

bool is_left(std::string const& name, int size) {
  return access(detail::message_of("/dev/shm/annulus-", name, "-", size).c_str(), F_OK) == 0;
}

/// A process that ends with status 0 if function() returns true.
pid_t forked(std::function<bool()> const& function) {
  pid_t const child = fork();
  if (child != 0) return child;
  alarm(30);
  try {
    _exit(function() ? 0 : 1);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(2);
  }
}
int status_of(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

/// The error of a meeting; blames no rank if there was none.
CommunicationError error_of(PeerMeeting const& meeting) {
  try {
    MeetingMemory(meeting, 0);
  } catch (CommunicationError const& error) {
    return error;
  }
  return CommunicationError("none", -1, -1, -1);
}

}  // namespace

TEST_CASE("processes that meet share memory, and leave no name", "[peer][processes]") {
  for (int repeat = 0; repeat < 5; ++repeat)
    for (int const size : {1, 2, 5}) {
      std::string const name = new_name();
      std::vector<pid_t> children;
      for (Rank rank = 0; rank < size; ++rank)
        children.push_back(forked([&] {
          MeetingMemory const memory({name, rank, size, 20s}, 100'000);
          auto* const places = reinterpret_cast<std::atomic<int>*>(memory.data());
          ++places[20'000];
          while (places[20'000] < size) std::this_thread::yield();
          return places[20'000] == size;
        }));
      for (pid_t const child : children) CHECK(status_of(child) == 0);
      CHECK(!is_left(name, size));
    }
}

TEST_CASE("a rank that does not come to a meeting is named at the deadline", "[peer][processes]") {
  std::string const name = new_name();
  pid_t const other = forked([&] { return error_of({name, 0, 3, 20s}).neighbour() == 1; });
  auto const start = std::chrono::steady_clock::now();
  CommunicationError const error = error_of({name, 2, 3, 1s});
  CHECK(error.neighbour() == 1);
  CHECK_THAT(error.what(), ContainsSubstring("rank 2 waited 1000 ms for rank 1 (meeting)"));
  CHECK(status_of(other) == 0);  // it gives up with rank 2, and blames the same rank
  CHECK(std::chrono::steady_clock::now() - start < 3s);
  CHECK(!is_left(name, 3));
}

TEST_CASE("a process that dies is noticed before and after all have come", "[peer][processes]") {
  std::string const name = new_name();
  pid_t const dies = forked([&] {
    MeetingMemory const memory({name, 1, 3, 20s}, 0);
    return false;
  });
  std::this_thread::sleep_for(100ms);
  kill(dies, SIGKILL);  // not waited for: it is a zombie
  auto const start = std::chrono::steady_clock::now();
  auto const error = error_of({name, 0, 3, 20s});
  CHECK(error.neighbour() == 1);
  CHECK_THAT(error.what(), ContainsSubstring("rank 0 waits for rank 1, which has returned (meeting)"));
  CHECK(std::chrono::steady_clock::now() - start < 2s);
  status_of(dies);
  CHECK(!is_left(name, 3));

  std::string const next = new_name();
  pid_t const leaves = forked([&] {
    MeetingMemory const memory({next, 1, 2, 20s}, 0);
    pause();
    return true;
  });
  MeetingMemory const memory({next, 0, 2, 20s}, 0);
  CHECK(memory.is_alive(1));
  kill(leaves, SIGKILL);
  for (int i = 0; i < 200 && memory.is_alive(1); ++i) std::this_thread::sleep_for(10ms);
  CHECK(!memory.is_alive(1));
  CHECK(memory.is_alive(0));
  status_of(leaves);
}

TEST_CASE("a meeting refuses a second process of a rank, and what is no meeting", "[peer][processes]") {
  std::string const name = new_name();
  pid_t const first = forked([&] {
    MeetingMemory const memory({name, 0, 2, 20s}, 0);
    return true;
  });
  std::this_thread::sleep_for(100ms);
  CHECK_THAT(error_of({name, 0, 2, 20s}).what(), ContainsSubstring("another process has come to the meeting as this"));
  CHECK(status_of(forked([&] {
          MeetingMemory const memory({name, 1, 2, 20s}, 0);
          return true;
        })) == 0);  // the meeting goes on
  CHECK(status_of(first) == 0);

  CHECK_THROWS_WITH(MeetingMemory({"a/b", 0, 1}, 0), ContainsSubstring("name is \"a/b\""));
  CHECK_THROWS_WITH(MeetingMemory({"", 0, 1}, 0), ContainsSubstring("1 to 200 letters"));
  CHECK_THROWS_WITH(MeetingMemory({"a", 2, 2}, 0), ContainsSubstring("rank is 2 of 2; ranks are counted from 0"));
  CHECK_THROWS_WITH(MeetingMemory({"a", 0, 1, 0ms}, 0), ContainsSubstring("at least 1 ms is accepted"));
}

#endif
