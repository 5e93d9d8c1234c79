# Plugins that come with Towline, for what needs the libraries of others.
#
#   towline_plugin(<name> LAYER <folder>)
#
# makes of a layer that exports towline_plugin_v1 the library libtowline_<name>.so. It is looked for below the library's
# own folder, in towline/plugins: the build tree has it there, as has the install tree. Once loaded it stays, since the
# libraries it brings along leave threads and exit handlers behind.
function(towline_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LAYER" "")
  towline_target_name(layer ${arg_LAYER})
  set(target towline_plugin_${name})
  set(exports ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc CONTENT "// A library needs a source; ours is in the layer.\n")
  add_library(${target} MODULE ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  target_link_libraries(${target} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${layer}>)
  target_link_options(${target} PRIVATE -Wl,--version-script=${exports} -Wl,--as-needed -Wl,-z,nodelete)
  set_target_properties(
    ${target}
    PROPERTIES OUTPUT_NAME towline_${name}
               LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/src/towline/plugins
               LINK_DEPENDS ${exports})
  add_dependencies(towline_plugins ${target})
  set_property(GLOBAL APPEND PROPERTY TOWLINE_PLUGINS ${target})
endfunction()

# All of them.
add_custom_target(towline_plugins)
