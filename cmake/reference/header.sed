# Filter of Doxygen for headers, for GNU sed -E. Keeps the line numbers.

# The comment at the top describes the file.
1,/^$/ {
  s|^#pragma once$|/// @file|
  s|^// |/// |
  s|^//$|///|
}

# Namespaces that a user does not write: annulus::CpuBackend is the public name. Doxygen takes a nested inline namespace
# for the name of its parent.
/^(inline )?namespace (cpu|ANNULUS_CPU_KERNELS) \{$|^\}  \/\/ namespace (cpu|ANNULUS_CPU_KERNELS)$|^using cpu::/ s|^|//|
s|^namespace (.*)::inline |namespace \1::|

# Lines after three spaces list operands: name, two spaces or more, description.
s#^( *(///| \*)   )(([^ ]+ )*[^ ]+)  +([^ ])#\1`\3`: \5#
s#^( *(///| \*)   )([^ ])#\1- \3#

s|/\*\*< (.*) \*/$|///< \1|

# A comment after "T a, b, c;" describes each of them.
/^ *[a-zA-Z].*[a-z0-9_], [a-z0-9_]+( = [^;]*)?; +\/\/\/< / {
  s#^( *((static|inline|constexpr) )*[A-Za-z0-9_:]+(<.*>)?( const)? )([^;(]*); +///< (.*)$#\1\n\6\n\7#
  :separate
  s|(\n.*), (.*\n)|\1\r\2|
  t separate
  :describe
  s|\r(.*\n)(.*)$| /**< \2 */, \1\2|
  t describe
  s|^(.*)\n(.*)\n(.*)$|\1\2;  ///< \3|
}

# Declarations that say the same in every class.
s|^ *bool operator==\(.*\) const = default;$|& ///< True if all members are equal.|
s|^ *using memory_space = .*;$|& ///< Space of its memory.|
s|^ *using scalar = .*;$|& ///< Element type, without const.|
s|^ *static constexpr std::size_t rank = .*;$|& ///< Number of axes.|
s|^(inline )?constexpr std::string_view name_of\(|/** Name of the value, as in messages. */ &|
s|^inline std::string_view name_of\(|/** Name of the value, as in messages. */ &|
s|^ *static constexpr std::string_view name = .*;$|& ///< Name of the NKI call.|
s|^ *(static constexpr )?Engine engine = Engine::[a-z]+;$|& ///< Engine that executes it.|

# Requirements of ShardingKind.
s|^ *static constexpr std::string_view kind = .*;$|& ///< Name of the kind.|
s|^ *static constexpr bool any_lengths = .*;$|& ///< Whether the ranks may hold any numbers of rows.|
s|^ *std::uint64_t digest\(std::uint64_t seed\)|/** Hash of the parameters, begun with `seed`. */ &|
s|^ *std::vector<Index> lengths\(Side|/** Number of rows that each rank owns. */ &|
s|^ *std::vector<Segment> segments\(Side|/** Segments that a rank owns. */ &|

# Macros of one header alone.
/^#define ANNULUS_(API|INT|TEXT_OF)\>/ s|^|//|
/^#define ANNULUS_(NKI_FIELDS|VERSION_TEXT)\>/,/[^\]$/ s|^.*$|//|
