# Optimisation at link time where it is asked for and the toolchain can do it: some installations of a compiler lack what
# links its intermediate code. check_ipo_supported() answers whether the compiler has the option; CMake 3.25 does not
# build its example with Ninja. So a program is linked here. For each project by itself: a subproject's setting does not
# reach its parent.
if(CMAKE_INTERPROCEDURAL_OPTIMIZATION)
  include(CheckIPOSupported)
  include(CheckCXXSourceCompiles)
  check_ipo_supported(RESULT TOWLINE_HAS_IPO OUTPUT TOWLINE_WHY_NO_IPO LANGUAGES C CXX)
  if(TOWLINE_HAS_IPO)
    list(JOIN CMAKE_CXX_COMPILE_OPTIONS_IPO " " CMAKE_REQUIRED_FLAGS)
    check_cxx_source_compiles("int main() { return 0; }" TOWLINE_LINKS_WITH_IPO)
    unset(CMAKE_REQUIRED_FLAGS)
    if(NOT TOWLINE_LINKS_WITH_IPO)
      set(TOWLINE_HAS_IPO FALSE)
      set(TOWLINE_WHY_NO_IPO "a program can't be compiled and linked with ${CMAKE_CXX_COMPILE_OPTIONS_IPO}")
    endif()
  endif()
  if(NOT TOWLINE_HAS_IPO)
    message(STATUS "Without optimisation at link time: ${TOWLINE_WHY_NO_IPO}")
    set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
  endif()
endif()
