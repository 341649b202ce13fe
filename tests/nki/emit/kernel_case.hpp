#pragma once
// Description of the kernel to build, read from arguments key=value.

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus_test {

/// A problem and the kernel for it. Keys: see read_kernel_case; all have defaults.
struct KernelCase {
  annulus::nki::KernelSpec spec;
  annulus::Mask mask;
  annulus::Sharding sharding;
  annulus::Index query_offset = 0;
  std::vector<std::vector<std::int32_t>> documents;  ///< [batch][global position]; empty: none
  bool backward = false;
  std::vector<int> ring;  ///< worker at each position of the ring
  bool global_ids = false;
  std::uint32_t seed = 1;
  float query_size = 1;           ///< standard deviation of q
  annulus::Index least_half = 0;  ///< of the tuning of forward kernels

  /// Segments and document ids of the rows of each rank.
  std::vector<annulus::nki::RankRows> rank_rows(annulus::Side side) const {
    annulus::Index const rows = side == annulus::Side::query ? spec.local_queries : spec.local_keys;
    std::vector<annulus::Index> const held(static_cast<std::size_t>(spec.ranks), rows);
    std::vector<annulus::nki::RankRows> ranks;
    for (int rank = 0; rank < spec.ranks; ++rank) {
      annulus::nki::RankRows& here = ranks.emplace_back();
      here.segments = sharding.segments(side, rank, held);
      for (auto const& ids : documents) {
        auto& local = here.documents.emplace_back();
        for (annulus::Index position : annulus::positions_of(here.segments))
          local.push_back(ids[static_cast<std::size_t>(position)]);
      }
    }
    return ranks;
  }

  annulus::nki::RingMask ring_mask() const {
    return {mask, rank_rows(annulus::Side::query), rank_rows(annulus::Side::key), query_offset};
  }
};

/// Arguments key=value. Keys that were never read are refused by check_all_read().
class Words {
 public:
  Words(int count, char const* const* words) {
    for (int i = 0; i < count; ++i) {
      std::string const word = words[i];
      std::size_t const split = word.find('=');
      annulus::detail::check<annulus::Error>(split != std::string::npos, "seen '", word, "', accepted: key=value");
      words_[word.substr(0, split)] = word.substr(split + 1);
    }
  }

  std::string text(std::string const& key, std::string const& otherwise) {
    auto const found = words_.find(key);
    if (found == words_.end()) return otherwise;
    std::string const value = found->second;
    words_.erase(found);
    return value;
  }

  template <class T>
  T number(std::string const& key, T otherwise) {
    std::string const value = text(key, "");
    return value.empty() ? otherwise : parse<T>(key, value);
  }

  template <class T>
  std::vector<T> numbers(std::string const& key) {
    std::vector<T> values;
    for (std::string const& part : split(text(key, ""), ',')) values.push_back(parse<T>(key, part));
    return values;
  }

  template <class T>
  static T parse(std::string const& key, std::string const& value) {
    T result{};
    auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    annulus::detail::check<annulus::Error>(error == std::errc{} && end == value.data() + value.size(), key, ": seen '",
                                           value, "', accepted: a number");
    return result;
  }

  static std::vector<std::string> split(std::string const& text, char at) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t const end = std::min(text.find(at, begin), text.size());
      parts.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  }

  void check_all_read() const {
    annulus::detail::check<annulus::Error>(words_.empty(), "no key of a case is named '",
                                           words_.empty() ? "" : words_.begin()->first, "'");
  }

 private:
  std::map<std::string, std::string> words_;
};

namespace kernel_case_detail {

template <class Value>
Value one_of(std::string const& key, std::string const& seen, std::map<std::string, Value> const& accepted) {
  auto const found = accepted.find(seen);
  annulus::detail::check<annulus::Error>(found != accepted.end(), key, ": '", seen, "' is none of its values");
  return found->second;
}

/// Text such as "3:100,0:20/7:120": id and length of each document of each batch item, from position 0 on.
inline std::vector<std::vector<std::int32_t>> documents_of(std::string const& text) {
  std::vector<std::vector<std::int32_t>> documents;
  for (std::string const& item : Words::split(text, '/')) {
    auto& ids = documents.emplace_back();
    for (std::string const& run : Words::split(item, ',')) {
      auto const parts = Words::split(run, ':');
      annulus::detail::check<annulus::Error>(parts.size() == 2, "documents: seen '", run, "', accepted: id:length");
      ids.insert(ids.end(), static_cast<std::size_t>(Words::parse<std::int64_t>("documents", parts[1])),
                 Words::parse<std::int32_t>("documents", parts[0]));
    }
  }
  return documents;
}

}  // namespace kernel_case_detail

inline KernelCase read_kernel_case(Words words) {
  using namespace annulus;
  using namespace annulus::nki;
  using kernel_case_detail::one_of;
  KernelCase result;
  KernelSpec& spec = result.spec;
  std::map<std::string, ElementType> const types{
      {"float32", ElementType::float32}, {"bfloat16", ElementType::bfloat16}, {"float16", ElementType::float16}};
  std::map<std::string, bool> const flags{{"0", false}, {"1", true}};
  auto const flag = [&](std::string const& key, char const* otherwise) {
    return one_of(key, words.text(key, otherwise), flags);
  };

  spec.target =
      one_of<Target>("target", words.text("target", "trn2"), {{"trn2", Target::trn2}, {"trn3", Target::trn3}});
  spec.cores = words.number("lnc", 1);
  spec.ranks = words.number("ranks", 1);
  spec.groups = words.number("groups", 1);
  spec.shape.batch = words.number<Index>("batch", 1);
  spec.shape.query_heads = words.number<Index>("heads", 1);
  spec.shape.kv_heads = words.number<Index>("kv_heads", spec.shape.query_heads);
  spec.shape.head_dim = words.number<Index>("dim", 64);
  spec.shape.value_dim = words.number<Index>("value_dim", spec.shape.head_dim);
  spec.local_queries = words.number<Index>("rows", 128);
  spec.local_keys = words.number<Index>("keys", spec.local_queries);
  spec.type = one_of("type", words.text("type", "float32"), types);
  spec.output_type = one_of("output_type", words.text("output_type", "float32"), types);
  spec.lse_type = one_of("lse_type", words.text("lse_type", "float32"), types);
  spec.softmax_scale = words.number("scale", 1 / std::sqrt(static_cast<double>(spec.shape.head_dim)));
  spec.logit_softcap = words.number("softcap", 0.0);
  spec.sinks = words.number<Index>("sinks", 0);
  double const dropout = words.number("dropout", 0.0);
  if (dropout > 0) spec.keep_scale = 1 / (1 - dropout);
  // Letters of the axes along which the bias differs: h, q, k.
  std::string const bias = words.text("bias", "none");
  auto const differs = [&](char axis) { return bias.find(axis) != std::string::npos; };
  spec.bias = {.given = bias != "none",
               .by_head = differs('h'),
               .by_query = differs('q'),
               .by_key = differs('k'),
               .gradient = bias != "none",
               .type = one_of("bias_type", words.text("bias_type", "float32"), types)};
  spec.queries_by_token = flag("queries_by_token", "0");
  spec.keys_by_token = flag("keys_by_token", "0");
  spec.keys_stationary = flag("keys_stationary", "0");
  spec.training = flag("training", "1");
  spec.masked_row = one_of<MaskedRow>("masked_row", words.text("masked_row", "minus_infinity"),
                                      {{"minus_infinity", MaskedRow::minus_infinity}, {"zero", MaskedRow::zero}});
  spec.travels = one_of<RotatingSide>("travels", words.text("travels", "queries"),
                                      {{"queries", RotatingSide::queries}, {"keys", RotatingSide::keys}});

  result.mask.causal = flag("causal", "0");
  auto const window = words.numbers<Index>("window");
  if (!window.empty()) result.mask.window = {.left = window.at(0), .right = window.at(1)};
  result.mask.sink_tokens = words.number<Index>("sink_tokens", 0);
  result.mask.chunk = words.number<Index>("chunk", 0);
  result.sharding = one_of<Sharding>("sharding", words.text("sharding", "contiguous"),
                                     {{"contiguous", Contiguous{}}, {"striped", Striped{}}, {"zigzag", Zigzag{}}});
  result.query_offset = words.number<Index>("query_offset", 0);
  result.documents = kernel_case_detail::documents_of(words.text("documents", ""));
  result.backward = one_of<bool>("pass", words.text("pass", "forward"), {{"forward", false}, {"backward", true}});
  result.ring = words.numbers<int>("ring");
  result.global_ids = one_of<bool>("ids", words.text("ids", "position"), {{"position", false}, {"global", true}});
  result.seed = words.number<std::uint32_t>("seed", 1);
  result.query_size = words.number("query_size", 1.0f);
  result.least_half = words.number("least_half", ForwardTuning{}.least_half);
  words.check_all_read();

  Index const positions = static_cast<Index>(spec.ranks) * spec.local_keys;
  annulus::detail::check<Error>(
      result.documents.empty() || static_cast<Index>(result.documents.size()) == spec.shape.batch,
      "documents: ", result.documents.size(), " batch items of ", spec.shape.batch);
  for (auto const& ids : result.documents)
    annulus::detail::check<Error>(static_cast<Index>(ids.size()) == positions && spec.local_queries == spec.local_keys,
                                  "documents: ", ids.size(), " positions of ", positions,
                                  ", as many of queries as of keys");
  return result;
}

}  // namespace annulus_test
