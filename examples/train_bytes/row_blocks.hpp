#pragma once
// The model over the rows of a rank in blocks: each block goes through it apart, with a gradient of its own, and
// attention connects the rows of all blocks. A rank has one block, or (reproducible) one for each leaf of the sequence,
// so that every product has the same rows and every sum the same terms on any number of ranks.

#include <cstddef>
#include <utility>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace train_bytes {

/// Consecutive rows of a rank's shard.
template <class T>
struct RowBlock {
  Index leaf;   ///< of the sequence; 0 if the rank has one block
  Index begin;  ///< first row of the shard
  std::vector<Index> positions;
  Rotary<T> rotary;
  Activations<T> activations{};  ///< of the last forward pass
  Parameters<T> gradient;        ///< of the last backward pass

  Index rows() const { return static_cast<Index>(positions.size()); }
};

/// The blocks of a shard with these positions. leaf_length 0: one block.
template <class T>
std::vector<RowBlock<T>> row_blocks(std::vector<Index> const& positions, Index leaf_length, ModelShape const& shape) {
  std::vector<RowBlock<T>> blocks;
  auto const add = [&](Index leaf, std::size_t begin, std::size_t end) {
    std::vector<Index> const part(positions.begin() + static_cast<std::ptrdiff_t>(begin),
                                  positions.begin() + static_cast<std::ptrdiff_t>(end));
    blocks.push_back(
        {leaf, static_cast<Index>(begin), part, Rotary<T>(part, shape.head_dim()), {}, Parameters<T>(shape)});
  };
  if (leaf_length == 0) {
    add(0, 0, positions.size());
    return blocks;
  }
  for (std::size_t begin = 0, end = 0; begin < positions.size(); begin = end) {
    while (end < positions.size() && positions[end] / leaf_length == positions[begin] / leaf_length) ++end;
    add(positions[begin] / leaf_length, begin, end);
  }
  return blocks;
}

/// A matrix of all blocks' rows, [batch * rows of the shard, columns]; select(block) returns the matrix of a block.
template <class T, class Select>
Matrix<T> joined(std::vector<RowBlock<T>> const& blocks, Index batch, Index columns, Select&& select) {
  Index rows = 0;
  for (RowBlock<T> const& block : blocks) rows += block.rows();
  Matrix<T> result(batch * rows, columns);
  for (RowBlock<T> const& block : blocks)
    for (Index window = 0; window < batch; ++window)
      result.middleRows(window * rows + block.begin, block.rows()) =
          select(block).middleRows(window * block.rows(), block.rows());
  return result;
}

/// The rows of a block in a matrix of all blocks' rows.
template <class T>
Matrix<T> rows_of(RowBlock<T> const& block, Matrix<T> const& all, Index batch) {
  Matrix<T> result(batch * block.rows(), all.cols());
  for (Index window = 0; window < batch; ++window)
    result.middleRows(window * block.rows(), block.rows()) =
        all.middleRows(window * (all.rows() / batch) + block.begin, block.rows());
  return result;
}

/// The projections of all blocks, which `select` returns for a block.
template <class T, class Select>
Projections<T> joined_projections(std::vector<RowBlock<T>> const& blocks, Index batch, ModelShape const& shape,
                                  Select&& select) {
  return {joined(
              blocks, batch, shape.width, [&](auto const& block) -> auto const& { return select(block).q; }),
          joined(
              blocks, batch, shape.kv_width(), [&](auto const& block) -> auto const& { return select(block).k; }),
          joined(
              blocks, batch, shape.kv_width(), [&](auto const& block) -> auto const& { return select(block).v; })};
}

/// Forward pass of all blocks, whose activations it sets. bytes(block): those of its rows, window after window.
template <class T, class Attention, class BytesOf>
void blocks_forward(Parameters<T> const& parameters, std::vector<RowBlock<T>>& blocks, Index batch,
                    Attention& attention, BytesOf&& bytes) {
  for (RowBlock<T>& block : blocks) block.activations = embedded(parameters, bytes(block));
  for (Index i = 0; i < parameters.shape().layers; ++i) {
    auto const layer = [i](auto& block) -> auto& { return block.activations.layers[static_cast<std::size_t>(i)]; };
    auto const weights = parameters.layer(i);
    for (RowBlock<T>& block : blocks)
      project<T>(weights, std::move(block.activations.last), block.rotary, layer(block));
    Matrix<T> const attended = attention.forward(
        i,
        joined_projections(
            blocks, batch, parameters.shape(), [&](auto const& block) -> auto const& { return layer(block).rotated; }));
    for (RowBlock<T>& block : blocks)
      block.activations.last = feed_forward<T>(weights, rows_of(block, attended, batch), layer(block));
  }
  for (RowBlock<T>& block : blocks) head(parameters, block.activations);
}

/// Backward pass of all blocks: sets the gradient of each, given that of its logits in place of the logits.
template <class T, class Attention>
void blocks_backward(Parameters<T> const& parameters, std::vector<RowBlock<T>>& blocks, Index batch,
                     Attention& attention) {
  std::vector<Matrix<T>> streams;
  for (RowBlock<T>& block : blocks) {
    block.gradient.values().setZero();
    streams.push_back(head_backward(parameters, block.activations, block.activations.logits, block.gradient));
  }
  for (Index i = parameters.shape().layers; i-- > 0;) {
    auto const layer = [i](auto& block) -> auto& { return block.activations.layers[static_cast<std::size_t>(i)]; };
    auto const weights = parameters.layer(i);
    std::vector<MiddleGradients<T>> middle;
    for (std::size_t b = 0; b < blocks.size(); ++b)
      middle.push_back(feed_forward_backward<T>(weights, streams[b], layer(blocks[b]), blocks[b].gradient.layer(i)));
    auto const place = [&](auto const& block) { return static_cast<std::size_t>(&block - blocks.data()); };
    Index const width = parameters.shape().width;
    Projections<T> const d = attention.backward(
        i,
        joined(
            blocks, batch, width, [&](auto const& b) -> auto const& { return middle[place(b)].attended; }),
        joined_projections(
            blocks, batch, parameters.shape(), [&](auto const& b) -> auto const& { return layer(b).rotated; }),
        joined(
            blocks, batch, width, [&](auto const& b) -> auto const& { return layer(b).attended; }));
    for (std::size_t b = 0; b < blocks.size(); ++b)
      streams[b] = project_backward<T>(
          weights, middle[b].middle,
          {rows_of(blocks[b], d.q, batch), rows_of(blocks[b], d.k, batch), rows_of(blocks[b], d.v, batch)},
          blocks[b].rotary, layer(blocks[b]), blocks[b].gradient.layer(i));
  }
  for (std::size_t b = 0; b < blocks.size(); ++b)
    embed_backward<T>(streams[b], blocks[b].activations.bytes, blocks[b].gradient.embedding());
}

}  // namespace train_bytes
