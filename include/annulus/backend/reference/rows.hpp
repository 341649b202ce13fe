#pragma once
// Rows of one head of an operand, widened to the accumulator type, as the reference loops read them.

#include <Eigen/Core>

#include "annulus/tensor/view.hpp"

namespace annulus::reference {

template <class A>
using Rows = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using Row = Eigen::Matrix<A, Eigen::Dynamic, 1>;
template <class A>
using RowMap = Eigen::Map<Row<A>>;

/// Copy of batch item b and head h as a matrix [rows, dim].
template <class A, class T>
Rows<A> widened(TensorView<T const, 4> view, Index b, Index h) {
  Rows<A> rows(view.extent(axis::sequence), view.extent(axis::dim));
  for (Index i = 0; i < rows.rows(); ++i)
    for (Index d = 0; d < rows.cols(); ++d) rows(i, d) = static_cast<A>(view(b, i, h, d));
  return rows;
}

/// Row i of a state or gradient as a vector of dim elements, which must be contiguous.
template <class A>
RowMap<A> row_of(TensorView<A, 4> view, Index b, Index i, Index h) {
  return {view.data() + view.offset(b, i, h, 0), view.extent(axis::dim)};
}

}  // namespace annulus::reference
