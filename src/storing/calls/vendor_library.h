// A vendor's shared library, looked up at run time.
#pragma once

#include <dlfcn.h>

#include <string>

#include "towline/plugin/backend.hpp"

namespace towline::calls {

class VendorLibrary {
 public:
  // Throws plugin::Failure with the loader's reason. The library stays in the process for good: such libraries have
  // threads and handlers of their own.
  VendorLibrary(const char* backend, const std::string& file) : backend_(backend), file_(file) {
    handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle_ == nullptr) {
      const char* const reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
      throw plugin::Failure(Status::kUnsupported, backend_ + ": " + (reason == nullptr ? file : reason));
    }
  }
  // Throws plugin::Failure if the library has no such function.
  template <class Function>
  void get(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function == nullptr)
      throw plugin::Failure(Status::kUnsupported, backend_ + ": " + file_ + " has no function " + name);
  }

 private:
  std::string backend_;
  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace towline::calls
