#pragma once
// Rounds of a kernel: passes over the ring, each for one item per core or for one that the cores share.

#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// One pass of a kernel over the ring: one item per core, or one that the cores of a pair share.
struct Round {
  Builder* builder;
  Index items;  ///< number of items of the kernel
  Affine item;
  bool shared = false;
  bool repeated = false;       ///< runs more than once, so that an earlier run may have used the same buffers
  std::vector<RowTile> tiles;  ///< of the queries of a head
  Index parts = 1;             ///< number of items in a buffer
  Affine part{};               ///< index of this core's item in a buffer

  std::string suffix() const { return shared ? "_shared" : ""; }
  /// First head of the item in an argument [.., rows, dim] or, not by_token, [.., dim, rows] of all items.
  HeadRows in_argument(TensorHandle const& tensor, bool by_token = true) const {
    Index const inner = tensor.shape.back(), outer = *(tensor.shape.end() - 2);
    return {tensor, item * (tensor.size() / items), by_token ? outer : inner, by_token ? inner : outer, by_token};
  }
};

/// Emits the rounds of a kernel: write(round) for all items that the cores process in parallel, then for an odd one.
/// `pieces`: of the queries; no row tile crosses the end of one.
template <class Write>
void for_each_round(Builder& builder, KernelSpec const& spec, std::vector<RowRange> const& pieces, Write&& write) {
  Index const items = spec.items(), paired = items / spec.cores;
  Affine const core = spec.cores == 2 ? Affine::of(core_variable) : Affine(0);
  if (paired > 0)
    builder.loop("round", paired, [&](Affine const& round) {
      write(Round{&builder, items, round * spec.cores + core, false, paired > 1, row_tiles(pieces, false), spec.cores,
                  core});
    });
  if (items % spec.cores == 1)
    write(Round{
        .builder = &builder, .items = items, .item = items - 1, .shared = true, .tiles = row_tiles(pieces, true)});
}

}  // namespace annulus::nki
