#include "base/os/dynamic_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace towline {
namespace {

std::string last_reason() {
  const char* reason = dlerror();
  return reason != nullptr ? reason : "no reason given";
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::string& path, Visibility visibility) : path_(path) {
  const int scope = visibility == Visibility::kGlobal ? RTLD_GLOBAL : RTLD_LOCAL;
  // An empty path would mean the program itself.
  if (path.empty()) fail(Status::kInvalidArgument, "loading a shared library: its path is empty");
  handle_ = dlopen(path.c_str(), RTLD_NOW | scope);
  if (handle_ == nullptr) fail(Status::kNotFound, "loading shared library \"{}\": {}", path, last_reason());
}

void DynamicLibrary::unload() noexcept {
  if (handle_ != nullptr && !kept_) dlclose(handle_);
  handle_ = nullptr;
}

void* DynamicLibrary::find_address(const char* name) const noexcept {
  return handle_ != nullptr ? dlsym(handle_, name) : nullptr;
}

void* DynamicLibrary::required_address(const char* name) const {
  if (handle_ == nullptr)
    fail(Status::kClosed, "looking for {} in a shared library that is not loaded", name);
  void* address = dlsym(handle_, name);
  if (address == nullptr) {
    fail(Status::kUnsupported, "looking for {} in shared library \"{}\": {}", name, path_, last_reason());
  }
  return address;
}

}  // namespace towline
