#pragma once
// Tables of calls that must be refused: a row is what is wrong, the error's type, words of its message, and the call.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/comm/simulated_ring.hpp"
#include "annulus/core/error.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// Type ("nothing": none) and text of the error that a call threw.
struct Thrown {
  std::string type = "nothing", text{};

  bool operator==(Thrown const&) const = default;
};

template <class Function>
Thrown attempt(Function&& function) {
  try {
    function();
    return {};
  } catch (annulus::ShapeError const& error) {
    return {"ShapeError", error.what()};
  } catch (annulus::UnsupportedError const& error) {
    return {"UnsupportedError", error.what()};
  } catch (annulus::CommunicationError const& error) {
    return {"CommunicationError", error.what()};
  } catch (annulus::Error const& error) {
    return {"Error", error.what()};
  } catch (std::exception const& error) {
    return {"std::exception", error.what()};
  } catch (...) {
    return {"unknown", ""};
  }
}

/// True if `text` has the parts of `words` that asterisks separate, in their order.
inline bool has_words(std::string_view text, std::string_view words) {
  while (true) {
    std::size_t const end = std::min(words.find('*'), words.size());
    std::size_t const found = text.find(words.substr(0, end));
    if (found == std::string_view::npos) return false;
    if (end == words.size()) return true;
    text.remove_prefix(found + end);
    words.remove_prefix(end + 1);
  }
}

template <class... Arguments>
struct Refusal {
  std::string what, type, words;  ///< words: see has_words
  std::function<void(Arguments...)> call;
};

inline void check_thrown(Thrown const& thrown, std::string const& type, std::string const& words) {
  CAPTURE(thrown.text, words);
  CHECK(thrown.type == type);
  CHECK(has_words(thrown.text, words));
}

/// Each row in a section of its own. thrown_by(row.call): what the call threw on every rank of every run.
template <class... Arguments, class Run>
void check_refused(std::vector<Refusal<Arguments...>> const& table, Run&& thrown_by) {
  for (std::size_t i = 0; i < table.size(); ++i) DYNAMIC_SECTION(i << ": " << table[i].what) {
      for (Thrown const& thrown : thrown_by(table[i].call)) check_thrown(thrown, table[i].type, table[i].words);
    }
}

/// For rows whose call takes its rank of a ring: what it threw on each of `ranks` ranks.
inline auto on_ring(int ranks) {
  return [ranks](auto const& call) {
    return annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) { return attempt([&] { call(ring); }); });
  };
}

inline void check_refused(std::vector<Refusal<>> const& table) {
  check_refused(table, [](auto const& call) { return std::vector{attempt(call)}; });
}

}  // namespace annulus_test
