#pragma once
// Backward attention kernels: the whole SPMD ring, and one step that adds an owner's contribution to the gradients.

#include <algorithm>
#include <string>
#include <utility>

#include "annulus/nki/kernels/backward_round.hpp"

namespace annulus::nki {

/// Builds backward programs. `mask` must outlive the kernel; it covers all ranks for ring(), one rank for step().
class BackwardKernel {
 public:
  /// Throws UnsupportedError if the spec is not supported, ShapeError if its extents are invalid or do not fit SBUF.
  BackwardKernel(KernelSpec spec, RingMask const& mask) : spec_(std::move(spec)), mask_(&mask) {
    check_spec(spec_);
    check<UnsupportedError>(spec_.training, "nki: a backward kernel needs the forward kernel's lse: set training");
    fit();
  }

  /// The kernel of a whole ring. Inputs: q, k, v and the mask input as for ForwardKernel::ring(); dout and output
  /// [batch, query_heads, rows, value_dim]; lse [batch, query_heads, 128, columns] float32. Outputs, float32: dq
  /// [batch, query_heads, rows, head_dim], dk [batch, kv_heads, keys, head_dim], dv [batch, kv_heads, keys, value_dim].
  /// A row that sees no key gets a zero gradient and contributes nothing. Throws ShapeError if the mask does not match
  /// the spec.
  Program ring() && {
    Builder builder("ring_attention_bwd", spec_.target, spec_.cores, spec_.ranks);
    declare_operands(builder);
    auto const& shape = spec_.shape;
    tensors_.output = builder.tensor("output", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                     spec_.output_type, Role::input);
    tensors_.lse = builder.tensor("lse", {shape.batch, shape.query_heads, tile_rows, columns()}, ElementType::float32,
                                  Role::input);
    tensors_.dq = builder.tensor("dq", {shape.batch, shape.query_heads, spec_.local_queries, shape.head_dim},
                                 ElementType::float32, Role::output);
    tensors_.dk = builder.tensor("dk", {shape.batch, shape.kv_heads, spec_.local_keys, shape.head_dim},
                                 ElementType::float32, Role::output);
    tensors_.dv = builder.tensor("dv", {shape.batch, shape.kv_heads, spec_.local_keys, shape.value_dim},
                                 ElementType::float32, Role::output);
    write(builder);
    return std::move(builder).finish();
  }

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v, dout and the mask input as for
  /// ring(); lse and delta [batch * query_heads, 128, columns]; dq, dk, dv with the shapes of ring(); all float32 but
  /// q, k, v, dout. Outputs: new_dq, new_dk, new_dv, the sums with this step's contribution. Throws as ring() does.
  Program step() && {
    Builder builder("attention_step_bwd", spec_.target, spec_.cores, 1);
    declare_operands(builder);
    auto const& shape = spec_.shape;
    Index const heads = shape.batch * shape.query_heads;
    tensors_.lse = builder.tensor("lse", {heads, tile_rows, columns()}, ElementType::float32, Role::input);
    tensors_.delta = builder.tensor("delta", {heads, tile_rows, columns()}, ElementType::float32, Role::input);
    auto const gradient = [&](std::string const& name, Index head_count, Index rows, Index dim, TensorHandle& old) {
      old = builder.tensor(name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::input);
      return builder.tensor("new_" + name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::output);
    };
    tensors_.dq = gradient("dq", shape.query_heads, spec_.local_queries, shape.head_dim, tensors_.old_dq);
    tensors_.dk = gradient("dk", shape.kv_heads, spec_.local_keys, shape.head_dim, tensors_.old_dk);
    tensors_.dv = gradient("dv", shape.kv_heads, spec_.local_keys, shape.value_dim, tensors_.old_dv);
    write(builder);
    return std::move(builder).finish();
  }

 private:
  Index columns() const { return ceil_divide(spec_.local_queries, tile_rows); }

  void fit() {
    Index const widest = std::max(spec_.shape.head_dim, spec_.shape.value_dim);
    // Sums of dK and dV of a key tile take a PSUM bank each.
    key_rows_ =
        std::min(std::clamp(widest_dim / widest, Index{1}, Index{4}), ceil_divide(spec_.local_keys, tile_rows)) *
        tile_rows;
    Index const budget = hardware_of(spec_.target).limits.sbuf_bytes - 48 * 1024, element = bytes_of(spec_.type);
    Index const features =
        (Chunks{spec_.shape.head_dim}.count() + Chunks{spec_.shape.value_dim}.count()) * tile_rows * element;
    Index const tokens = (spec_.shape.head_dim + spec_.shape.value_dim) * element, sums = spec_.shape.head_dim * 4;
    Index const fixed = columns() * 4 * 2 * (3 + 4 * static_cast<Index>(mask_->pieces().size())) +
                        key_rows_ / tile_rows * widest * 4 * 8;
    section_tiles_ = std::min(columns(), (budget - fixed) / (2 * (features + tokens + sums)));
    check<ShapeError>(section_tiles_ >= 1, "nki: the backward pass for head_dim ", spec_.shape.head_dim, ", value_dim ",
                      spec_.shape.value_dim, ", ", spec_.local_queries, " queries of ", name_of(spec_.type),
                      " does not fit ", budget, " bytes of each SBUF partition");
  }

  void declare_operands(Builder& builder) {
    auto const& shape = spec_.shape;
    mask_->check_for(spec_, builder.program().ranks);
    auto const operand = [&](char const* name, Index head_count, Index rows, bool by_token) {
      return builder.tensor(
          name, {shape.batch, head_count, by_token ? rows : shape.head_dim, by_token ? shape.head_dim : rows},
          spec_.type, Role::input);
    };
    tensors_.q = operand("q", shape.query_heads, spec_.local_queries, spec_.queries_by_token);
    tensors_.k = operand("k", shape.kv_heads, spec_.local_keys, spec_.keys_by_token);
    tensors_.v =
        builder.tensor("v", {shape.batch, shape.kv_heads, spec_.local_keys, shape.value_dim}, spec_.type, Role::input);
    tensors_.dout = builder.tensor("dout", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                   spec_.type, Role::input);
    tensors_.mask = declare_mask_input(builder, *mask_, spec_.local_queries,
                                       builder.program().ranks == 1 ? 1 : spec_.ranks * spec_.groups);
  }

  void write(Builder& builder) {
    BackwardParts parts(builder, spec_, section_tiles_, key_rows_, columns());
    Index const paired = spec_.items() / spec_.cores;
    if (paired > 0)
      builder.loop("round", paired, [&](Affine const& round) {
        Affine const item = round * spec_.cores + (spec_.cores == 2 ? Affine::of(core_variable) : Affine(0));
        BackwardRound(builder, spec_, *mask_, tensors_, parts, item, {false, paired > 1}).write("bounds");
      });
    if (spec_.items() % spec_.cores == 1)
      BackwardRound(builder, spec_, *mask_, tensors_, parts, spec_.items() - 1, {true, false}).write("shared_bounds");
  }

  KernelSpec spec_;
  RingMask const* mask_;
  Index section_tiles_ = 1, key_rows_ = tile_rows;
  BackwardTensors tensors_;
};

}  // namespace annulus::nki
