# annulus_embed_license(<text file> <header>): generates a header that defines annulus_command::license_text.

# Some compilers reject string literals above 16 KiB, so the text is split into shorter ones. The file must be ASCII, as
# it is split by characters.
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
