# How everything is compiled: language, visibility, sanitizers, warnings, compiler cache, and the packages we need.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/TowlineIpo.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TowlineCcache.cmake)

if(TOWLINE_SANITIZE)
  add_compile_options(-fsanitize=${TOWLINE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TOWLINE_SANITIZE})
endif()
if(TOWLINE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TOWLINE_FUZZ needs clang: configure with --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Link to it to be compiled with our warnings; promoted are only those that are always bugs. Everything else becomes an
# error with -DCMAKE_COMPILE_WARNING_AS_ERROR=ON.
add_library(towline_warnings INTERFACE)
target_compile_options(
  towline_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wvla
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
            $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage> # one file to it
            -Werror=return-type
            -Werror=format
            -Werror=uninitialized
            $<$<OR:$<COMPILE_LANG_AND_ID:C,GNU>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-error=maybe-uninitialized> # a guess
            -Werror=unused-result
            -Werror=vla)

# Header-only, or libc's own: nothing here is needed beside libtowline.so at run time.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED) # header-only as it comes; its package would link the library
mark_as_advanced(TOMLPLUSPLUS_INCLUDE_DIR)
# fmt's headers, and its code compiled into what links to it (cmake/fmt.cc, which knows these versions).
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 11)
  add_library(towline_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cc)
  target_include_directories(
    towline_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  add_library(towline_fmt INTERFACE)
  target_link_libraries(towline_fmt INTERFACE fmt::fmt-header-only)
endif()
# Libraries that plugins need; without one, its plugin is left out.
find_package(CURL 7.85 QUIET)
find_package(OpenSSL 3.0 QUIET)
find_package(pugixml QUIET)
find_package(prometheus-cpp QUIET)
if(TOWLINE_TOOLS)
  find_package(CLI11 REQUIRED)
endif()
if(TOWLINE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(TOWLINE_BENCH)
  find_package(benchmark REQUIRED)
endif()
