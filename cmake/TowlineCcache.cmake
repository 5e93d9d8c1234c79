# Compiles through ccache where it is installed. Paths count from the checkout's root, so that another checkout on the same
# machine, and the Python packages' builds of the same library, take from the cache what one build has compiled.
find_program(TOWLINE_CCACHE ccache)
mark_as_advanced(TOWLINE_CCACHE)
if(TOWLINE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  file(REAL_PATH ${CMAKE_CURRENT_LIST_DIR}/.. checkout)
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${checkout} CCACHE_NOHASHDIR=1 ${TOWLINE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()
