#pragma once
// Rules on the declarations of a program: target, cores, ranks, shapes of buffers, and their total size.

#include <algorithm>
#include <set>

#include "annulus/nki/hardware/tile_space.hpp"
#include "annulus/nki/validate/fault_list.hpp"

namespace annulus::nki::validate_detail {

/// First stage of the validation.
class BufferRules {
 public:
  BufferRules(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), limits_(hardware.limits), target_(hardware.target), faults_(faults) {}

  /// Returns whether the declarations are sound; later stages rely on it. A buffer that exceeds capacity is reported,
  /// but does not make them unsound.
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
    bool const target = require(program_.target == target_, "form", "target", "is ", name_of(program_.target),
                                "; the hardware is ", name_of(target_));
    bool const cores =
        require(program_.cores == 1 || program_.cores == 2, "form", "cores", program_.cores, "; accepted: 1 or 2");
    bool const ranks = require(program_.ranks >= 1, "form", "ranks", program_.ranks, "; at least 1");
    bool const variables =
        require(!program_.variables.empty(), "form", "variables", "none; variable 0 must be the core");
    bool const registers = require(program_.registers >= 0, "form", "registers", program_.registers, "; at least 0");
    return target && cores && ranks && variables && registers;
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
    bool const two_axes = require(buffer.shape.size() == 2, "form", buffer.name, "has shape ", buffer.shape,
                                  "; a tile has partitions and elements per partition");
    return two_axes && require(buffer.partitions() <= limits_.partitions, "R1", buffer.name, buffer.partitions(),
                               " partitions; at most ", limits_.partitions);
  }

  /// Total size of the buffers of one memory, and the first buffer that exceeds its capacity.
  struct Total {
    Index limit;
    Index sum = 0;
    Buffer const* first_beyond = nullptr;

    void add(Buffer const& buffer, Index amount) {
      sum = saturating_add(sum, amount);
      if (sum > limit && !first_beyond) first_beyond = &buffer;
    }
  };

  void check_capacity() {
    Total sbuf{limits_.sbuf_bytes}, psum{limits_.psum_banks}, hbm{limits_.hbm_bytes};
    for (Buffer const& buffer : program_.buffers) {
      if (buffer.memory == Memory::sbuf)
        sbuf.add(buffer, bytes_per_partition(buffer));
      else if (buffer.memory == Memory::psum)
        psum.add(buffer, psum_banks(buffer, limits_));
      else
        hbm.add(buffer, saturating_multiply(buffer.bytes(), buffer.memory == Memory::private_hbm ? program_.cores : 1));
    }
    require_capacity(sbuf, "sbuf tiles", "bytes per partition");
    require_capacity(psum, "psum tiles", "banks");
    require_capacity(hbm, "tensors in HBM", "bytes");
  }

  void require_capacity(Total const& total, std::string_view what, std::string_view unit) {
    if (total.first_beyond)
      require(false, "R2", total.first_beyond->name, "all ", what, " take ", total.sum, ' ', unit, "; at most ",
              total.limit, ", which this one exceeds");
  }

  Program const& program_;
  Limits const& limits_;
  Target target_;
  FaultList& faults_;
};

}  // namespace annulus::nki::validate_detail
