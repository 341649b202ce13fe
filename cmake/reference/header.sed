# Filter of Doxygen for headers. Keeps the line numbers.

# The comment at the top describes the file.
1,/^$/ {
  s|^#pragma once$|/// @file|
  s|^// |/// |
  s|^//$|///|
}

# Doxygen takes a nested inline namespace for the name of its parent.
s|^namespace \(.*\)::inline |namespace \1::|
s|^inline namespace |namespace |

# Declarations that say the same in every class.
s|^ *bool operator==(.*) const = default;$|& ///< True if all members are equal.|
s|^ *using memory_space = .*;$|& ///< Space of its memory.|
s|^ *using scalar = .*;$|& ///< Element type, without const.|
s|^ *static constexpr std::size_t rank = .*;$|& ///< Number of axes.|
s|^\(inline \)*constexpr std::string_view name_of(|/** Name of the value, as in messages. */ &|
s|^inline std::string_view name_of(|/** Name of the value, as in messages. */ &|

# Requirements of ShardingKind.
s|^ *static constexpr std::string_view kind = .*;$|& ///< Name of the kind.|
s|^ *static constexpr bool any_lengths = .*;$|& ///< Whether the ranks may hold any numbers of rows.|
s|^ *std::uint64_t digest(std::uint64_t seed)|/** Hash of the parameters, begun with `seed`. */ &|
s|^ *std::vector<Index> lengths(Side|/** Number of rows that each rank owns. */ &|
s|^ *std::vector<Segment> segments(Side|/** Segments that a rank owns. */ &|
