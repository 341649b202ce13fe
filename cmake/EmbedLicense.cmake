# annulus_embed_license(<text file> <header>): the header holds the text, as annulus_command::license_text.

# Some compilers take no string literal above 16 KiB: the text is a sequence of shorter ones, cut in characters of
# which the file has one byte each.
function(annulus_embed_license file header)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  string(LENGTH "${text}" length)
  set(piece_length 8000)
  set(annulus_license_pieces)
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} ${piece_length} piece)
    string(APPEND annulus_license_pieces "\n    R\"LICENSE(${piece})LICENSE\"")
    math(EXPR begin "${begin} + ${piece_length}")
  endwhile()
  configure_file("${PROJECT_SOURCE_DIR}/examples/command/embedded_license.hpp.in" "${header}" @ONLY)
endfunction()
