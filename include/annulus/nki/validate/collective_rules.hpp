#pragma once
// Rules of barriers and collectives: permutes, and queries of the rank whose data has been received.

#include <algorithm>
#include <array>

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

/// True if the access covers all elements of its tensor, in order.
inline bool is_whole(Access const& access, Buffer const& buffer) {
  Index expected = 1;
  for (std::size_t i = access.axes().size(); i-- > 0; expected *= access.axis(i).count)
    if (access.axis(i).count != 1 && access.axis(i).stride != expected) return false;
  return access.offset == Affine{} && !access.register_offset && expected == buffer.size();
}

inline void require_whole_tensor(std::string_view keyword, Access const& access, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  if (site.require(buffer.memory == Memory::shared_hbm, "R19", keyword, buffer.name, " is in ", name_of(buffer.memory),
                   "; accepted: shared_hbm"))
    site.require(is_whole(access, buffer), "R19", keyword, "a part of tensor ", buffer.name, "; accepted: all of its ",
                 buffer.size(), " elements");
}

/// Requires an instruction that every core of the pair issues.
inline void require_all_cores(Site const& site) {
  site.require(!site.scope.on_one_core(), "R19", "", "is issued by one core only; all ", site.program.cores,
               " cores must issue the same sequence");
}

inline void require_channel(std::string_view keyword, int channel, Site const& site) {
  site.require(channel >= 0 && channel < site.limits.collective_channels, "R19", keyword, channel, "; accepted: 0 to ",
               site.limits.collective_channels - 1);
}

inline void check(CoreBarrier const& i, Site const& site) {
  site.require(site.program.cores == 2, "R19", "", "in a program for ", site.program.cores,
               " core; barriers are for 2 cores");
  require_all_cores(site);
  require_whole_tensor("data", i.data, site);
}

inline void require_permute(std::initializer_list<std::pair<std::string_view, Access const*>> sources,
                            Access const& dst, int channel, Site const& site) {
  site.require(site.program.ranks >= 2, "R19", "", "in a program for ", site.program.ranks,
               " rank; a ring has at least 2");
  require_all_cores(site);
  require_channel("channel_ids", channel, site);
  require_whole_tensor("dsts_by_channel", dst, site);
  Buffer const& to = site.buffer(dst);
  for (auto const& [keyword, source] : sources) {
    require_whole_tensor(keyword, *source, site);
    Buffer const& from = site.buffer(*source);
    site.require(source->buffer != dst.buffer, "R19", keyword, "is tensor ", from.name,
                 ", and so is dsts_by_channel; they must be distinct");
    site.require(from.shape == to.shape && from.type == to.type, "R19", keyword, from.name, " is ", from.shape, " of ",
                 name_of(from.type), "; dsts_by_channel ", to.name, " is ", to.shape, " of ", name_of(to.type),
                 ", and both must be equal");
  }
}

inline void check(CollectivePermute const& i, Site const& site) {
  require_permute({{"srcs_by_channel", &i.src}}, i.dst, i.channel, site);
}

inline void check(CollectivePermuteReduce const& i, Site const& site) {
  require_permute({{"srcs0_by_channel", &i.src0}, {"srcs1_by_channel", &i.src1}}, i.dst, i.channel, site);
  require_operator("op", i.op, {Operator::add, Operator::minimum, Operator::maximum}, site);
}

inline void check(ProcessingRank const& i, Site const& site) {
  site.require(i.register_number >= 0 && i.register_number < site.program.registers, "form", "", "register ",
               i.register_number, "; the program has ", site.program.registers, " registers");
  ValueRange const hops = site.scope.range_of(i.iteration_id);
  site.require(hops.low >= 0 && hops.high < site.program.ranks, "R19", "iteration_id", hops.low, "..", hops.high,
               "; accepted: 0 to ", site.program.ranks - 1);
  require_channel("channel_id", i.channel, site);
}

/// Channels that the collectives of a program use. Channels are numbered consecutively from 0. Each has its own order
/// of ranks, so the rank whose data a permute brought must be queried on the channel of that permute.
class ChannelsUsed {
 public:
  void note_permute(int channel) { note(channel, &Channel::permuted); }
  /// `moved`: after at least one hop. Without a hop the query returns this rank, on every channel.
  void note_rank(int channel, bool moved) { note(channel, moved ? &Channel::queried : &Channel::named); }

  /// The first unused channel directly below a used one, -1 if there is none.
  int gap() const {
    for (std::size_t i = 0; i + 1 < channels_.size(); ++i)
      if (!channels_[i].used() && channels_[i + 1].used()) return static_cast<int>(i);
    return -1;
  }
  /// The first channel that is queried but carries no permute, -1 if there is none.
  int queried_without_permute() const {
    return first([](Channel const& channel) { return channel.queried && !channel.permuted; });
  }
  /// The first channel that carries a permute but is not queried, -1 if there is none, or if the program queries no
  /// channel, because it then treats all ranks alike.
  int permuted_without_query() const {
    if (first([](Channel const& channel) { return channel.queried; }) < 0) return -1;
    return first([](Channel const& channel) { return channel.permuted && !channel.queried; });
  }

 private:
  struct Channel {
    bool permuted = false, queried = false, named = false;
    bool used() const { return permuted || queried || named; }
  };

  void note(int channel, bool Channel::*use) {
    if (channel >= 0 && channel < static_cast<int>(channels_.size()))
      channels_[static_cast<std::size_t>(channel)].*use = true;
  }
  template <class Test>
  int first(Test&& test) const {
    auto const found = std::ranges::find_if(channels_, test);
    return found == channels_.end() ? -1 : static_cast<int>(found - channels_.begin());
  }

  std::array<Channel, 16> channels_{};
};

}  // namespace annulus::nki::validate_detail
