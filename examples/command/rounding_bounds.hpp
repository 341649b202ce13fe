#pragma once
// How far results of attention may be from exact ones because of rounding alone: what `attend --verify` accepts.

#include "call_tensors.hpp"

namespace annulus_command {

/// A bound for the absolute error of each element of the results, in the shapes of `reference`.
///
/// u is half the distance between 1 and the next larger number of a type: 2^-8 (bf16), 2^-11 (f16), 2^-24 (f32); 2^-52
/// for f64, where the reference is rounded as well. u_t is that of the elements, u_s that of the sums (f32; f64 for
/// f64). Errors of one rounding each are independent, so those of n terms add up as the root of the sum of their
/// squares; the sum of n numbers is off by u_s sqrt(n) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019). To first
/// order, with n the larger number of terms of any sum over positions:
///
///   product x = scale q.k      dx   = u_s |scale| |q| |k| sqrt(head_dim)
///   logit l, capped, biased    dl   = slope dx + dx^2 / softcap + 4 u_s (|capped| + |bias| + |l|)
///   lse                        dlse = sum p dl + u_s (4 |lse| + sqrt(n) + 8)
///   weight p = exp(l - lse)    dp   = p (dl + dlse + 4 u_s |l - lse| + 0.425 u_t), or as far as exp goes where dl is
///                                     not small
///   delta = dout.output        the errors of the output, 0.425 u_t |output|, and u_s sqrt(value_dim) |dout| |output|
///   dlogit = p (dout.v - delta)  dp |dout.v - delta| + p u_s sqrt(value_dim) |dout| |v|, and p times the error of
///                                delta
///
/// Each result is a sum of such factors times elements of the operands. Its error is the root of the sum of the squares
/// of its terms' errors, and of the sums that result where the errors of all terms have one sign: terms that are equal
/// are rounded equally, and a row has one delta. That the terms count, and not the result, keeps the bound right where
/// they cancel. The bound is 6 times this, since 0.425 u_t is the standard deviation of a rounding error, and the
/// rounding of the result, at most u_t. An error of 3 percent of an element is beyond it in every element type, unless
/// the terms of that element cancel or dl is near 1.
///
/// inputs, reference: of one call, in double. call: the element type is that of the judged results.
Results<double> rounding_bounds(Inputs<double> const& inputs, Call const& call, Results<double> const& reference);

}  // namespace annulus_command
