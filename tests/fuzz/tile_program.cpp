// Fuzz target: a valid tile program, changed. The validator refuses it, or the simulator runs it within its memory,
// with the same results whichever core of a pair runs first.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "annulus/nki/program/listing.hpp"
#include "annulus/nki/validate/text_pass.hpp"
#include "fuzz/program_mutation.hpp"
#include "fuzz/property.hpp"
#include "fuzz/small_programs.hpp"
#include "nki/simulate/simulated_launch.hpp"

namespace {

using annulus_fuzz::ByteReader;
using annulus_fuzz::require;
using namespace annulus::nki;
using annulus::Index;
using annulus::detail::saturating_product;
using annulus::detail::saturating_sum;

constexpr Index most_work = Index{1} << 21, most_elements = Index{1} << 20;

/// Elements that the operands of a body name, over all its loops; saturated.
Index work_of(Body const& body) {
  Index sum = 0;
  for (Node const& node : body) {
    Index work = 1;
    if (auto const* loop = node.as<Loop>())
      work = saturating_product(std::max<Index>(loop->count, 0), saturating_sum(1, work_of(loop->body)));
    else if (auto const* branch = node.as<OnCore>())
      work = work_of(branch->body);
    else if (auto const* instruction = node.as<Instruction>())
      for_each_access(*instruction, [&](std::string_view, Use, Access const& access) {
        Index elements = 1;
        for (Axis const& axis : access.axes()) elements = saturating_product(elements, std::max<Index>(axis.count, 0));
        work = saturating_sum(work, elements);
      });
    sum = saturating_sum(sum, work);
  }
  return sum;
}

/// Elements of all buffers, with all their tiles; saturated.
Index elements_of(Program const& program) {
  Index sum = 0;
  for (Buffer const& buffer : program.buffers) {
    Index elements = std::max(buffer.rotation, 1);
    for (Index extent : buffer.shape) elements = saturating_product(elements, std::max<Index>(extent, 0));
    sum = saturating_sum(sum, elements);
  }
  return sum;
}

void check_findings(std::vector<Finding> const& found) {
  for (Finding const& finding : found)
    require(
        !finding.instruction.empty() && !finding.message.empty() && text_of(finding).find('\n') == std::string::npos,
        "a finding without a place or message: ", text_of(finding));
}

std::vector<Tensors> inputs_of(Program const& program) {
  std::vector<Tensors> inputs(static_cast<std::size_t>(program.ranks));
  float value = 0;
  for (Tensors& tensors : inputs)
    for (int number : program.with_role(Role::input)) {
      Buffer const& buffer = program.buffer(number);
      std::vector<float>& values = tensors[buffer.name];
      for (Index i = 0; i < buffer.size(); ++i) values.push_back(value = value < 3 ? value + 0.37f : -3);
    }
  return inputs;
}

std::vector<Tensors> run(ValidatedProgram const& valid, std::vector<Tensors> const& inputs, int first_core) {
  Arrangement arrangement;
  arrangement.first_core = first_core;
  if (inputs.size() == 1) return {simulate(valid, inputs[0], arrangement)};
  return annulus_test::launch(valid, inputs, arrangement);
}

bool same_bits(Tensors const& a, Tensors const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& x, auto const& y) {
    return x.first == y.first && x.second.size() == y.second.size() &&
           std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
  });
}

void check_simulation(Program const& program) {
  ValidatedProgram const valid = validated(program, hardware_of(program.target));
  require(!listing(program).empty(), "a valid program has no listing");
  std::vector<Tensors> const inputs = inputs_of(program);
  std::vector<Tensors> first;
  try {
    first = run(valid, inputs, 0);
  } catch (annulus::Error const&) {
    return;  // its data lead to undefined behaviour on the device
  }
  for (int number : program.with_role(Role::output))
    for (Tensors const& outputs : first)
      require(static_cast<Index>(outputs.at(program.buffer(number).name).size()) == program.buffer(number).size(),
              "output ", program.buffer(number).name, " is incomplete");
  if (program.cores == 2)
    require(std::ranges::equal(first, run(valid, inputs, 1), same_bits), "the results depend on which core runs first");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  ByteReader in(data, size);
  static std::vector<Program> const programs = annulus_fuzz::small_programs();
  Program program = programs[static_cast<std::size_t>(in.between(0, static_cast<std::int64_t>(programs.size()) - 1))];
  for (int changes = 0; !in.ended() && changes < 8; ++changes) annulus_fuzz::ProgramMutation(program, in).apply();

  Hardware const hardware = hardware_of(program.target);
  if (work_of(program.body) > most_work || elements_of(program) > most_elements) {
    // Too much to execute, but the text is checked.
    validate_detail::FaultList faults(20);
    if (validate_detail::Declarations(program, hardware, faults).check())
      validate_detail::TextPass(program, hardware, faults).run();
    check_findings(std::move(faults).take());
    return 0;
  }
  std::vector<Finding> const found = findings(program, hardware);
  check_findings(found);
  if (found.empty()) check_simulation(program);
  return 0;
}
