# Layers, and the tests and fuzzers that stand beside their sources.
#
#   towline_layer(<folder> [ROOMS <folder>...] [DEPENDS <layer>...] [LINK <library>...] [TEST_DEPENDS <layer>...])
#
# makes of the folder under src/ named <folder> (say transports/tcp)
#
#   towline_transports_tcp     a static library of its *.cc, less *_test.cc and *_fuzz.cc
#   transports_tcp_test        one GoogleTest program of its *_test.cc; ctest `transports_tcp_test`, label `unit`
#   transports_tcp_<x>         one fuzzer for each <x>_fuzz.cc; ctest of the same name, label `fuzz`
#
# ROOMS names folders in <folder> whose sources belong to the same layer. They may include one another.
# DEPENDS names the layers directly below, as folders. It is the only place where a layer gets at another one, so a call
# against the order of layers does not link. A folder with headers only, or still empty, becomes an INTERFACE library.

function(towline_target_name result folder)
  string(REPLACE / _ name ${folder})
  set(${result} towline_${name} PARENT_SCOPE)
endfunction()

function(towline_layer folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ROOMS;DEPENDS;LINK;TEST_DEPENDS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "towline_layer(${folder}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(directory ${PROJECT_SOURCE_DIR}/src/${folder})
  towline_target_name(target ${folder})

  list(TRANSFORM arg_ROOMS PREPEND ${directory}/)
  set(folders ${directory} ${arg_ROOMS})
  foreach(suffix "" _test _fuzz)
    list(TRANSFORM folders APPEND /*${suffix}.cc OUTPUT_VARIABLE globs${suffix})
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${globs})
  # An entry point that each plugin has: whoever links the layer must be able to leave it out.
  set_source_files_properties(${directory}/plugin.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  file(GLOB tests CONFIGURE_DEPENDS ${globs_test})
  file(GLOB fuzzers CONFIGURE_DEPENDS ${globs_fuzz})
  list(REMOVE_ITEM sources ${tests} ${fuzzers})

  if(sources)
    set(scope PUBLIC)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PRIVATE towline_warnings)
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} ${scope} ${arg_LINK})
  foreach(layer IN LISTS arg_DEPENDS)
    towline_target_name(below ${layer})
    target_link_libraries(${target} ${scope} ${below})
  endforeach()

  string(REGEX REPLACE ^towline_ "" name ${target})
  if(tests AND TOWLINE_TESTS)
    set(test_links ${target})
    foreach(layer IN LISTS arg_TEST_DEPENDS)
      towline_target_name(below ${layer})
      list(APPEND test_links ${below})
    endforeach()
    towline_test(${name}_test SOURCES ${tests} LINK ${test_links} LABEL unit)
  endif()
  foreach(source IN LISTS fuzzers)
    cmake_path(GET source STEM stem)
    towline_fuzzer(${name}_${stem} SOURCE ${source} LINK ${target})
  endforeach()
endfunction()

# How much of the machine a test takes, in half processors: scripts/run-tests gives ctest two for each processor, so that
# tests which mostly wait run beside those that compute.
#
#   BUSY         2: computes, as what towline_test and towline_fuzzer make does unless they are told otherwise
#   QUIET        1: waits for servers, processes and deadlines
#   UNDISTURBED  3: measures what the library promises to do in time; on two processors only one quiet test runs beside it
#
# The last two begin first, and together.
function(towline_test_load name load)
  set(QUIET PROCESSORS 1 COST 1000)
  set(UNDISTURBED PROCESSORS 3 COST 1001)
  set_tests_properties(${name} PROPERTIES ${${load}})
endfunction()

# One GoogleTest program, and one ctest that runs all of it. A program may bring its own main(). LOAD: see above.
function(towline_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT;LOAD" "SOURCES;LINK;ARGS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LINK} towline_warnings GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 ${arg_ARGS})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  # Those that may take longest begin first: one that begins last runs with an idle processor beside it.
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} PROCESSORS 2 RUN_SERIAL ${arg_SERIAL})
  if(arg_LOAD)
    towline_test_load(${name} ${arg_LOAD})
  endif()
endfunction()

# One fuzzer: libFuzzer under the fuzz preset; elsewhere a program that replays tests/fuzz/corpus/<name>/ and a fixed,
# seeded sample of mutations of it.
function(towline_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE" "LINK")
  if(TOWLINE_FUZZ)
    add_executable(${name} ${arg_SOURCE})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(run -runs=20000 -max_len=65536)
  elseif(TOWLINE_TESTS AND fuzz IN_LIST TOWLINE_TEST_SUITES)
    add_executable(${name} ${arg_SOURCE} ${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.cc)
    set(run)
  else()
    return()
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LINK} towline_warnings)
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  if(TOWLINE_FUZZ)
    # libFuzzer writes what it learns to the first folder, and only reads the others.
    set(learnt ${CMAKE_BINARY_DIR}/corpus/${name})
    file(MAKE_DIRECTORY ${learnt})
    list(APPEND run ${learnt})
  endif()
  if(EXISTS ${corpus} OR NOT TOWLINE_FUZZ)
    list(APPEND run ${corpus})
  endif()
  add_test(NAME ${name} COMMAND ${name} ${run})
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 300 PROCESSORS 2)
endfunction()
