#pragma once
// Packed documents of a command line, and the sharding that depends on them.

#include <annulus/mask/documents.hpp>
#include <annulus/schedule/balanced_sharding.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "options.hpp"

namespace annulus_command {

namespace detail {

/// Increasing whole numbers, the first 0; empty if the text is anything else.
inline std::vector<annulus::Index> starts_of(std::string const& text) {
  std::vector<annulus::Index> starts;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    annulus::Index start = 0;
    bool const accepted = is_whole_number(part, start) && (starts.empty() ? start == 0 : start > starts.back());
    if (!accepted) return {};
    starts.push_back(start);
  }
  return text.ends_with(',') ? std::vector<annulus::Index>() : starts;
}

}  // namespace detail

/// Adds --documents, which sets the start positions of packed documents.
inline CLI::Option* add_documents(CLI::App& app, std::vector<annulus::Index>& starts) {
  auto const take = [&starts](std::string const& text) { starts = detail::starts_of(text); };
  auto const accepts = [](std::string const& text) { return !detail::starts_of(text).empty(); };
  return app
      .add_option_function<std::string>("--documents", take, "packed documents: start position of each, the first 0")
      ->check(accepting(accepts, "increasing whole numbers separated by commas, the first 0"))
      ->type_name("N,N,...");
}

/// Throws InputError unless there are no documents, or as many queries as keys, and every document has one.
inline void require_documents(std::vector<annulus::Index> const& starts, annulus::Index queries, annulus::Index keys) {
  if (starts.empty()) return;
  if (queries != keys)
    throw InputError("--documents: there are " + std::to_string(queries) + " queries and " + std::to_string(keys) +
                     " keys; accepted: equally many");
  if (starts.back() >= keys)
    throw InputError("--documents: the last one starts at " + std::to_string(starts.back()) +
                     "; accepted: below the number of tokens, " + std::to_string(keys));
}

/// The documents that begin at these positions; the last one ends with the sequence.
inline annulus::Documents documents_from(std::vector<annulus::Index> const& starts, annulus::Index tokens) {
  annulus::Documents documents;
  for (std::size_t d = 0; d < starts.size(); ++d)
    documents.push_back({starts[d], d + 1 < starts.size() ? starts[d + 1] : tokens});
  return documents;
}

/// What a sharding may depend on.
struct ShardedSequence {
  annulus::Index queries, keys;
  int ranks;
  annulus::Mask const& mask;
  annulus::Documents const& documents;  ///< empty: one document
};

/// The sharding of --sharding and --block. Throws InputError as require_block does, and for a balanced sharding of
/// queries and keys that differ in number.
inline annulus::Sharding sharding_of(annulus::Sharding const& sharding, std::optional<annulus::Index> block,
                                     ShardedSequence const& sequence) {
  require_block(sharding, block);
  if (sharding == detail::block_striped) return annulus::Striped{.block = *block};
  if (!(sharding == detail::balanced)) return sharding;
  if (sequence.queries != sequence.keys)
    throw InputError("--sharding balanced: there are " + std::to_string(sequence.queries) + " queries and " +
                     std::to_string(sequence.keys) + " keys; accepted: equally many");
  annulus::Documents const one{{0, sequence.keys}};
  return annulus::balanced_sharding(sequence.documents.empty() ? one : sequence.documents, sequence.keys, sequence.mask,
                                    sequence.ranks, block.value_or(0));
}

}  // namespace annulus_command
