#pragma once
// Rank of a measured ring: its shards, its results, and the pass with and without communication.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/sharding/scatter_gather.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/operands.hpp"
#include "ring/ring_case.hpp"
#include "ring/ring_without_transfers.hpp"

namespace annulus_bench {

/// Results of a rank: output after a forward pass; dq, dk and dv after a backward pass.
using RingResults = std::vector<FloatTensor>;

template <annulus::Communicator C>
class RingRank {
 public:
  /// Collective: runs the pass once on the ring and once on the wrapper, whose transfers are then disabled.
  RingRank(C& ring, RingCase const& c, Operands const& global)
      : case_(c),
        rank_(ring.rank()),
        ranks_(ring.size()),
        q_(shard(global.q)),
        k_(shard(global.k)),
        v_(shard(global.v)),
        dout_(shard(global.dout)),
        output_(q_.dimensions()),
        lse_(1, c.attention.heads, q_.dimension(1)),
        wrapper_(ring),
        backend_{.threads = c.attention.threads},
        attention_(ring, backend_, options()),
        without_transfers_(wrapper_, backend_, options()) {
    attention_.forward_into(q_, k_, v_, output_, lse_);
    if (c.attention.pass == Pass::backward) {
      for (FloatTensor* gradient : {&dq_, &dk_, &dv_}) *gradient = FloatTensor(q_.dimensions());
      run();
    }
    other_output_ = output_;
    other_lse_ = lse_;
    for (auto const& [copy, gradient] : {std::pair{&other_dq_, &dq_}, {&other_dk_, &dk_}, {&other_dv_, &dv_}})
      *copy = *gradient;
    run_without_transfers();
    wrapper_.disable_transfers();
  }

  void run() { pass(attention_, output_, lse_, dq_, dk_, dv_); }
  void run_without_transfers() { pass(without_transfers_, other_output_, other_lse_, other_dq_, other_dk_, other_dv_); }

  RingResults results() const {
    return case_.attention.pass == Pass::forward ? RingResults{output_} : RingResults{dq_, dk_, dv_};
  }
  /// lse of a row of this rank.
  float lse(Index head, Index row) const { return lse_(0, head, row); }
  annulus::RingPlan const& plan() const { return *attention_.plan(case_.attention.pass); }

 private:
  annulus::Options options() const { return {.mask = mask_of(case_.attention.mask), .sharding = case_.sharding}; }
  FloatTensor shard(FloatTensor const& tensor) const { return annulus::scatter(tensor, case_.sharding, rank_, ranks_); }

  template <class Attention, class Lse>
  void pass(Attention& attention, FloatTensor& output, Lse& lse, FloatTensor& dq, FloatTensor& dk, FloatTensor& dv) {
    if (case_.attention.pass == Pass::forward)
      attention.forward_into(q_, k_, v_, output, lse);
    else
      attention.backward_into(dout_, output, lse, q_, k_, v_,
                              annulus::GradientViews<float, annulus::HostMemory>{
                                  annulus::view_of(dq), annulus::view_of(dk), annulus::view_of(dv)});
  }

  RingCase case_;
  annulus::Rank rank_;
  int ranks_;
  FloatTensor q_, k_, v_, dout_, output_, dq_, dk_, dv_, other_output_, other_dq_, other_dk_, other_dv_;
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse_, other_lse_;
  RingWithoutTransfers<C> wrapper_;
  annulus::CpuBackend backend_;
  annulus::RingAttention<C, annulus::CpuBackend> attention_;
  annulus::RingAttention<RingWithoutTransfers<C>, annulus::CpuBackend> without_transfers_;
};

}  // namespace annulus_bench
