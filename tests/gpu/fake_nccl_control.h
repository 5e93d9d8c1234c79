// How tests reach the functions of their libnccl.so that are not NCCL's.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace towline::gpu_test {

template <class Function>
Function of_fake_nccl(const char* name) {
  void* const library = ::dlopen(TOWLINE_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr) << ::dlerror();
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace towline::gpu_test
