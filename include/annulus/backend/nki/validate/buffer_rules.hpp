#pragma once
// What a program declares: its head, its buffers, and whether they fit on the chip together.

#include <algorithm>
#include <set>

#include "annulus/backend/nki/hardware/hardware.hpp"
#include "annulus/backend/nki/validate/fault_list.hpp"

namespace annulus::nki::validate_detail {

class BufferRules {
 public:
  BufferRules(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), limits_(hardware.limits), target_(hardware.target), faults_(faults) {}

  /// What follows relies on sound shapes and numbers; returns whether they are.
  bool check() {
    bool const sound = check_head() && check_shapes();
    if (sound) check_capacity();
    return sound;
  }

 private:
  template <class... Parts>
  bool require(bool holds, std::string_view rule, std::string_view operand, Parts const&... parts) {
    if (!holds)
      faults_.add(
          &program_, rule, "program", [] { return std::string(); }, operand, parts...);
    return holds;
  }

  bool check_head() {
    bool const targets = require(program_.target == target_, "form", "target", "is ", name_of(program_.target),
                                 "; the hardware is ", name_of(target_));
    bool const cores =
        require(program_.cores == 1 || program_.cores == 2, "form", "cores", program_.cores, "; accepted: 1 or 2");
    bool const ranks = require(program_.ranks >= 1, "form", "ranks", program_.ranks, "; at least 1");
    bool const variables =
        require(!program_.variables.empty(), "form", "variables", "none; the first is that of the core");
    bool const registers = require(program_.registers >= 0, "form", "registers", program_.registers, "; at least 0");
    return targets && cores && ranks && variables && registers;
  }

  bool check_shapes() {
    bool sound = true;
    std::set<std::string_view> names;
    for (Buffer const& buffer : program_.buffers) {
      require(!buffer.name.empty() && names.insert(buffer.name).second, "form", buffer.name,
              "two buffers of this name, or none at all; names are unique");
      bool const extents =
          require(!buffer.shape.empty() && std::ranges::all_of(buffer.shape, [](Index n) { return n >= 1; }), "form",
                  buffer.name, "has shape ", buffer.shape, "; extents of at least 1 are accepted");
      bool const rotation =
          require(buffer.rotation >= 1, "form", buffer.name, "rotation ", buffer.rotation, "; at least 1");
      sound = sound && extents && rotation;
      if (extents && rotation) sound = check_buffer(buffer) && sound;
    }
    return sound;
  }

  bool check_buffer(Buffer const& buffer) {
    if (!on_chip(buffer.memory)) {
      if (buffer.role != Role::internal)
        require(buffer.memory == Memory::shared_hbm, "R16", buffer.name, "is in ", name_of(buffer.memory),
                "; inputs and outputs are in shared_hbm");
      return require(buffer.rotation == 1, "form", buffer.name, "rotation ", buffer.rotation, " in HBM; accepted: 1");
    }
    require(buffer.role == Role::internal, "R16", buffer.name, "is in ", name_of(buffer.memory),
            "; inputs and outputs are in shared_hbm");
    bool const two = require(buffer.shape.size() == 2, "form", buffer.name, "has shape ", buffer.shape,
                             "; a tile has partitions and elements per partition");
    return two && require(buffer.partitions() <= limits_.partitions, "R1", buffer.name, buffer.partitions(),
                          " partitions; at most ", limits_.partitions);
  }

  /// Every place of a PSUM tile begins a bank: only then is it certain that results do not cross one.
  void check_capacity() {
    Index sbuf_bytes = 0, banks = 0;
    Buffer const* last_in_sbuf = nullptr;
    Buffer const* last_in_psum = nullptr;
    for (Buffer const& buffer : program_.buffers) {
      Index const bytes = buffer.elements_per_partition() * bytes_of(buffer.type);
      if (buffer.memory == Memory::sbuf) {
        sbuf_bytes += bytes * buffer.rotation;
        if (sbuf_bytes > limits_.sbuf_bytes && !last_in_sbuf) last_in_sbuf = &buffer;
      } else if (buffer.memory == Memory::psum) {
        banks += (bytes + limits_.psum_bank_bytes - 1) / limits_.psum_bank_bytes * buffer.rotation;
        if (banks > limits_.psum_banks && !last_in_psum) last_in_psum = &buffer;
      }
    }
    if (last_in_sbuf)
      require(false, "R2", last_in_sbuf->name, "all sbuf tiles take ", sbuf_bytes, " bytes per partition; at most ",
              limits_.sbuf_bytes, ", which this tile exceeds");
    if (last_in_psum)
      require(false, "R2", last_in_psum->name, "all psum tiles take ", banks, " banks; at most ", limits_.psum_banks,
              ", which this tile exceeds");
  }

  Program const& program_;
  Limits const& limits_;
  Target target_;
  FaultList& faults_;
};

}  // namespace annulus::nki::validate_detail
