# Kernels for GPUs: compiled to one image of machine code, which is embedded in the plugin.
#
#   towline_cuda_kernels(<target> SOURCE <file.cu> DEFINITION <name> IMAGE <file.cc> [INCLUDES <folder>...])
#
# compiles the source and defines <name> as the image's path for the target's <file.cc>, which embeds it. Without CUDA's
# compiler it does nothing but say so. scripts/cuda-toolchain fetches the compiler; an installed one serves as well.
find_program(TOWLINE_NVCC nvcc HINTS ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13/bin /usr/local/cuda/bin)
mark_as_advanced(TOWLINE_NVCC)
# Machine code for 8.x and 10.x, and what later chips translate, which takes them long the first time and
# leaves out clusters and early starts unless it is 9.0's or later; 9.0 with all that Hopper has. `make test` leaves out 8.0's
# machine code and 10.0: the assembler takes longer than the compiler. An instruction that 8.0 lacks is refused by that
# assembler alone: the nightly part `tests` runs it.
set(TOWLINE_CUDA_TARGETS "" CACHE STRING "nvcc's -gencode; empty: all of the above that it knows")
if(TOWLINE_NVCC AND NOT TOWLINE_CUDA_TARGETS)
  set(TOWLINE_CUDA_TARGETS "arch=compute_80,code=[sm_80,compute_80]" "arch=compute_90a,code=sm_90a")
  execute_process(COMMAND ${TOWLINE_NVCC} --version OUTPUT_VARIABLE said)
  if(said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.8)
    list(APPEND TOWLINE_CUDA_TARGETS "arch=compute_100,code=[sm_100,compute_100]")
  endif()
endif()
mark_as_advanced(TOWLINE_CUDA_TARGETS)

function(towline_cuda_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE;DEFINITION;IMAGE" "INCLUDES")
  if(NOT TOWLINE_NVCC)
    message(STATUS "No nvcc: ${target} is built without its kernels, and will say that it can't be used")
    return()
  endif()
  cmake_path(GET arg_SOURCE STEM stem)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${target}_${stem}.fatbin)
  list(TRANSFORM arg_INCLUDES PREPEND "-I" OUTPUT_VARIABLE includes)
  list(TRANSFORM TOWLINE_CUDA_TARGETS PREPEND "-gencode=" OUTPUT_VARIABLE targets)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/compile-kernels ${TOWLINE_NVCC} ${arg_SOURCE} ${image} -O3 -std=c++20 -fatbin ${targets}
            -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/include ${includes} --expt-relaxed-constexpr --fmad=false
    DEPENDS ${arg_SOURCE} ${PROJECT_SOURCE_DIR}/scripts/compile-kernels
    DEPFILE ${image}.d
    COMMENT "Compiling ${arg_SOURCE} for GPUs"
    VERBATIM)
  add_custom_target(${target}_${stem} DEPENDS ${image})
  add_dependencies(${target} ${target}_${stem})
  # For the one file, which is thereby compiled alone: ccache keeps nothing that embeds a file, and not for another build
  # what was compiled with this one's path.
  set_property(SOURCE ${arg_IMAGE} APPEND PROPERTY OBJECT_DEPENDS ${image})
  set_property(SOURCE ${arg_IMAGE} APPEND PROPERTY COMPILE_DEFINITIONS
               $<$<STREQUAL:$<TARGET_PROPERTY:NAME>,${target}>:${arg_DEFINITION}="${image}">)
endfunction()
