// CPU cores that a process may use.

#include <annulus/core/process.hpp>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

CoreSet cores(int begin, int end) {
  CoreSet set;
  for (int core = begin; core < end; ++core) set.add(core);
  return set;
}

}  // namespace

TEST_CASE("a set of cores holds what was added", "[core]") {
  CoreSet set;
  CHECK(set.count() == 0);
  for (int core : {0, 63, 64, 1023, 64}) set.add(core);
  CHECK(set.count() == 4);
  CHECK((set.has(0) && set.has(63) && set.has(64) && set.has(1023)));
  CHECK((!set.has(1) && !set.has(62) && !set.has(65) && !set.has(1022)));
  CHECK(CoreSet::of_process().count() >= 1);
}

TEST_CASE("processes bound to disjoint cores keep all of them", "[core]") {
  CHECK(divide_cores(std::vector{cores(0, 16)}) == std::vector{16});
  CHECK(divide_cores(std::vector{cores(0, 3), cores(3, 8), cores(100, 101)}) == std::vector{3, 5, 1});
}

TEST_CASE("processes bound to the same cores share them", "[core]") {
  CHECK(divide_cores(std::vector(4, cores(0, 16))) == std::vector(4, 4));
  CHECK(divide_cores(std::vector(3, cores(0, 8))) == std::vector{3, 3, 2});
  CHECK(divide_cores(std::vector(3, cores(5, 7))) == std::vector{1, 1, 1});
// Two processes on each socket.
  CHECK(divide_cores(std::vector{cores(0, 8), cores(8, 16), cores(0, 8), cores(8, 16)}) == std::vector{4, 4, 4, 4});
  // A process bound to all cores, and one bound to some of them.
  CHECK(divide_cores(std::vector{cores(0, 8), cores(0, 2)}) == std::vector{7, 1});
}

TEST_CASE("the number of cores of a process never grows", "[core]") {
  ProcessCores share;
  int const all = share.count();
  CHECK(all == CoreSet::of_process().count());
  share.limit(all + 5);
  CHECK(share.count() == all);
  share.limit(1);
  CHECK(share.count() == 1);
  share.limit(2);
  CHECK(share.count() == 1);
}
