#pragma once
// simulate: runs one rank of a tile program on simulated NeuronCores.

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "annulus/backend/nki/simulate/machine.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/memory_space.hpp"

namespace annulus::nki {

/// Runs the program of one rank, with values rounded as the device rounds them, and returns its outputs.
///
///   inputs       every buffer of role input, by name, elements in row-major order; rounded to the buffer's type. Rank
///                i of the ring plays worker arrangement.worker(i), and its inputs are that worker's.
///   ring         size() == program.ranks; all ranks call simulate with the same program and arrangement.
///   arrangement  what the device may choose; a sound program gives the same outputs for every choice.
///   statistics   where given, receives what this rank executed.
///
/// Throws UnsupportedError where the program does not fit the ring, the hardware or the inputs' names, ShapeError for
/// inputs of another size, CommunicationError when a peer is lost, and Error, with instruction and operand, where the
/// program does what has no meaning on the device: it reads an element that was never written, computes a function
/// outside ScalarE's domain, writes an integer that the type does not hold, leaves part of an output unwritten. What is
/// a matter of form and limits alone is the validator's.
template <Communicator C>
requires std::same_as<typename C::memory_space, HostMemory> Tensors simulate(Program const& program,
                                                                             Hardware const& hardware,
                                                                             Tensors const& inputs, C& ring,
                                                                             Arrangement const& arrangement = {},
                                                                             Statistics* statistics = nullptr) {
  auto const shift = [&](std::span<float const> out, std::span<float> in) {
    if (ring.size() == 1) {
      std::ranges::copy(out, in.begin());
      return;
    }
    auto const sent = std::as_bytes(out);
    auto const received = std::as_writable_bytes(in);
    ring.start_shift(Channel::prefetched, 1, OutgoingBytes(&sent, 1), IncomingBytes(&received, 1)).wait();
  };
  try {
    simulator::Machine machine(program, hardware, inputs, {ring.rank(), ring.size(), arrangement, shift});
    machine.run(statistics);
    return machine.outputs();
  } catch (std::exception const& error) {
    ring.abandon(error.what());  // so that peers do not wait for this rank
    throw;
  }
}

/// Runs a program of one rank.
inline Tensors simulate(Program const& program, Hardware const& hardware, Tensors const& inputs,
                        Arrangement const& arrangement = {}, Statistics* statistics = nullptr) {
  auto const shift = [](std::span<float const> out, std::span<float> in) { std::ranges::copy(out, in.begin()); };
  simulator::Machine machine(program, hardware, inputs, {0, 1, arrangement, shift});
  machine.run(statistics);
  return machine.outputs();
}

}  // namespace annulus::nki
