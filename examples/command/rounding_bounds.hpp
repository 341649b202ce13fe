#pragma once
// Bounds on the rounding errors of attention results, which `attend --verify` accepts.

#include "call_tensors.hpp"

namespace annulus_command {

/// A bound on the absolute error of each element of the results, in the shapes of `reference`.
///
/// u is half the distance between 1 and the next larger number of a type: 2^-8 (bf16), 2^-11 (f16), 2^-24 (f32); 2^-52
/// for f64, where the reference is rounded as well. u_t is that of the elements, u_s that of the sums (f32; f64 for
/// f64). Errors of single roundings are independent, so those of n terms add up as the root of the sum of
/// their squares; the sum of n numbers has the error u_s sqrt(n) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019). To
/// first order, with n the larger number of terms of any sum over positions:
///
///   product x = scale q.k      dx   = u_s |scale| |q| |k| sqrt(head_dim)
///   logit l, capped, biased    dl   = slope dx + dx^2 / softcap + 4 u_s (|capped| + |bias| + |l|)
///   lse                        dlse = sum p dl + u_s (4 |lse| + sqrt(n) + 8)
///   weight p = exp(l - lse)    dp   = p (dl + dlse + 4 u_s |l - lse| + 0.425 u_t), or the full change of exp if dl is
///                                     not small
///   delta = dout.output        the errors of the output, 0.425 u_t |output|, and u_s sqrt(value_dim) |dout| |output|
///   dlogit = p (dout.v - delta)  dp |dout.v - delta| + p u_s sqrt(value_dim) |dout| |v|, and p times the error of
///                                delta
///
/// Each result is a sum of such factors times elements of the operands. Its error is the root of the sum of the squares
/// of its terms' errors and of the squares of the sums that result if the errors of all terms have one sign, because
/// equal terms are rounded equally and a row has one delta. It is computed from the terms, not from the result, so it
/// holds where they cancel. The bound is 6 times this error, since 0.425 u_t is the standard deviation of a rounding
/// error, plus the rounding of the result, at most u_t. It excludes an error of 3 percent of an element in every
/// element type, unless the terms of that element cancel or dl is near 1.
///
/// inputs, reference: of one call, in double. call: its element type is that of the checked results.
Results<double> rounding_bounds(Inputs<double> const& inputs, Call const& call, Results<double> const& reference);

}  // namespace annulus_command
