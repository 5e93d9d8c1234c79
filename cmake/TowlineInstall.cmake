# The install tree. Nothing in it knows where it stands, so that it can be moved as a whole.

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/towline)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS towline EXPORT towlineTargets)
get_property(plugins GLOBAL PROPERTY TOWLINE_PLUGINS)
if(plugins)
  install(TARGETS ${plugins} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/towline/plugins)
endif()
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/include/towline
  TYPE INCLUDE
  FILES_MATCHING
  PATTERN *.h
  PATTERN *.hpp
  PATTERN *.cuh)
install(EXPORT towlineTargets NAMESPACE towline:: DESTINATION ${package_dir})

configure_package_config_file(cmake/towlineConfig.cmake.in ${PROJECT_BINARY_DIR}/towlineConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/towlineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/towlineConfig.cmake ${PROJECT_BINARY_DIR}/towlineConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig ${prefix_from_pkgconfig})
configure_file(cmake/towline.pc.in ${PROJECT_BINARY_DIR}/towline.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/towline.pc DESTINATION ${pkgconfig_dir})

if(TARGET towline_tool)
  install(TARGETS towline_tool)
  # file : folder it is looked for in : its name there
  foreach(completion IN ITEMS "towline.bash:bash-completion/completions:towline" "_towline:zsh/site-functions:_towline"
                              "towline.fish:fish/vendor_completions.d:towline.fish")
    string(REPLACE : ";" completion ${completion})
    list(GET completion 0 file)
    list(GET completion 1 directory)
    list(GET completion 2 name)
    install(
      FILES ${PROJECT_SOURCE_DIR}/tools/towline/completions/${file}
      DESTINATION ${CMAKE_INSTALL_DATADIR}/${directory}
      RENAME ${name}
      OPTIONAL)
  endforeach()
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
