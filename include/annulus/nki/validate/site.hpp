#pragma once
// One instruction of the text being checked, with the context that rules read and the way they report faults.

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/validate/fault_list.hpp"
#include "annulus/nki/validate/scope.hpp"

namespace annulus::nki::validate_detail {

/// Passed to every rule; refers to the program, hardware, scope and fault list, which outlive it.
class Site {
 public:
  Site(Program const& of, Hardware const& on, Scope const& in, FaultList& faults, void const* node,
       std::string_view name)
      : program(of), limits(on.limits), scope(in), faults_(&faults), node_(node), name_(name) {}

  Program const& program;
  Limits const& limits;
  Scope const& scope;

  Buffer const& buffer(Access const& access) const { return program.buffer(access); }
  Memory memory(Access const& access) const { return buffer(access).memory; }
  ElementType type(Access const& access) const { return buffer(access).type; }
  std::string_view instruction() const { return name_; }

  /// Returns `holds`; if false, reports a finding whose message is `parts` concatenated.
  template <class... Parts>
  bool require(bool holds, std::string_view rule, std::string_view operand, Parts const&... parts) const {
    if (!holds)
      faults_->add(
          node_, rule, name_, [&] { return scope.place(); }, operand, parts...);
    return holds;
  }

 private:
  FaultList* faults_;
  void const* node_;
  std::string_view name_;
};

}  // namespace annulus::nki::validate_detail
