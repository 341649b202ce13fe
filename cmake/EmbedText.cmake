# annulus_embed_texts(<header> <name>=<file>...): generates a header that defines the text of each file as
# annulus_command::<name>.

# Some compilers reject string literals above 16 KiB, so a text is split into shorter ones. Files must be ASCII, as they
# are split by characters; backslashes and semicolons are kept.
function(annulus_embed_texts header)
  set(annulus_texts)
  foreach(argument IN LISTS ARGN)
    string(REGEX MATCH "^([^=]+)=(.*)$" matched "${argument}")
    set(name "${CMAKE_MATCH_1}")
    set(file "${CMAKE_MATCH_2}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    string(LENGTH "${text}" length)
    set(piece_length 8000)
    set(begin 0)
    string(APPEND annulus_texts "\ninline constexpr std::string_view ${name} =")
    while(begin LESS length)
      string(SUBSTRING "${text}" ${begin} ${piece_length} piece)
      string(APPEND annulus_texts "\n    R\"TEXT(${piece})TEXT\"")
      math(EXPR begin "${begin} + ${piece_length}")
    endwhile()
    string(APPEND annulus_texts ";\n")
  endforeach()
  configure_file("${PROJECT_SOURCE_DIR}/examples/command/embedded_texts.hpp.in" "${header}" @ONLY)
endfunction()
