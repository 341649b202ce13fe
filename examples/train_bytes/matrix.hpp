#pragma once
// Matrices of the model: a row for each token, in row-major order, and views of weights stored elsewhere.

#include <Eigen/Core>
#include <annulus/core/index.hpp>
#include <type_traits>

namespace train_bytes {

using annulus::Index;

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;
template <class T>
using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;

namespace detail {

template <class Plain, class Scalar>
using MapOf = Eigen::Map<std::conditional_t<std::is_const_v<Scalar>, Plain const, Plain>>;

}  // namespace detail

/// View of a matrix, read-only if Scalar is const.
template <class Scalar>
using MatrixView = detail::MapOf<Matrix<std::remove_const_t<Scalar>>, Scalar>;
/// View of a row vector, read-only if Scalar is const.
template <class Scalar>
using RowView = detail::MapOf<Row<std::remove_const_t<Scalar>>, Scalar>;

}  // namespace train_bytes
