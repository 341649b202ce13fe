#include "collectives.hpp"

#include <algorithm>

#include "exit_status.hpp"

namespace annulus_command {

std::vector<std::string> Collectives::all_texts(std::string const& mine) {
  std::vector<std::size_t> const lengths = all(mine.size());
  std::vector<std::string> texts(lengths.size());
  std::size_t const longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return texts;
  std::string padded = mine, joined(longest * texts.size(), '\0');
  padded.resize(longest);
  ring_.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(joined)));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = joined.substr(rank * longest, lengths[rank]);
  return texts;
}

void Collectives::agree(std::exception_ptr const& mine) {
  Ending const own = mine ? ending_of(mine) : Ending{};
  // One digit with the status, then the message; empty if there is no error.
  std::vector<std::string> endings;
  try {
    endings = all_texts(mine ? std::to_string(static_cast<int>(own.status)) + own.line : std::string());
  } catch (annulus::CommunicationError const&) {
    if (mine) std::rethrow_exception(mine);
    throw;
  }
  auto const first =
      std::find_if(endings.begin(), endings.end(), [](std::string const& ending) { return !ending.empty(); });
  if (first == endings.end()) return;
  bool const shared = std::all_of(endings.begin(), endings.end(), [&](auto const& ending) { return ending == *first; });
  std::string const rank = shared ? "" : "rank " + std::to_string(first - endings.begin()) + ": ";
  throw AgreedEnding({static_cast<ExitStatus>((*first)[0] - '0'), rank + first->substr(1)});
}

}  // namespace annulus_command
