#pragma once
// Simulator of tile programs: runs one rank of a program on simulated NeuronCores.

#include <exception>
#include <span>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/nki/simulate/machine.hpp"

namespace annulus::nki {

/// Runs the program of one rank, with values rounded as the device rounds them, and returns its outputs.
///
///   inputs       every buffer of role input, by name, elements in row-major order; rounded to the buffer's type. Rank
///                i of the ring runs as worker arrangement.worker(i), and its inputs are those of that worker.
///   ring         size() == program.ranks; all ranks call simulate with the same program and arrangement.
///   arrangement  choices that are left to the device; a correct program gives the same outputs for every choice.
///   statistics   if not null, receives the counts of what this rank executed.
///
/// Returns the buffers of role output by name, in row-major order.
/// Throws UnsupportedError if the program does not match the ring or the names of the inputs, ShapeError for inputs of
/// another size, CommunicationError when a peer is lost, and Error, with the instruction, if its data lead to undefined
/// behaviour on the device: it evaluates a function outside ScalarE's domain, writes an integer that the type cannot
/// hold, or a register that holds a global rank id selects elements that do not exist or were never written. All else
/// has been checked by the validator.
template <Communicator C>
requires std::same_as<typename C::memory_space, HostMemory> Tensors simulate(ValidatedProgram const& program,
                                                                             Tensors const& inputs, C& ring,
                                                                             Arrangement const& arrangement = {},
                                                                             Statistics* statistics = nullptr) {
  auto const shift = [&](std::span<float const> out, std::span<float> in) {
    auto const sent = std::as_bytes(out);
    auto const received = std::as_writable_bytes(in);
    ring.start_shift(Channel::prefetched, 1, OutgoingBytes(&sent, 1), IncomingBytes(&received, 1)).wait();
  };
  try {
    simulator::Machine machine(program, inputs, {ring.rank(), ring.size(), arrangement, shift});
    machine.run(statistics);
    return machine.outputs();
  } catch (std::exception const& error) {
    ring.abandon(error.what());  // so that peers do not wait for this rank
    throw;
  }
}

/// The same for a program of one rank, without a communicator.
inline Tensors simulate(ValidatedProgram const& program, Tensors const& inputs, Arrangement const& arrangement = {},
                        Statistics* statistics = nullptr) {
  simulator::Machine machine(program, inputs, {0, 1, arrangement, {}});
  machine.run(statistics);
  return machine.outputs();
}

}  // namespace annulus::nki
