// Shared libraries loaded at run time: plugins, and vendors' libraries that may be missing.
#pragma once

#include <string>
#include <utility>

namespace towline {

class DynamicLibrary {
 public:
  enum class Visibility {
    kLocal,   // its symbols are private
    kGlobal,  // its symbols are visible to libraries loaded later
  };

  DynamicLibrary() noexcept = default;

  // path: a file, or a bare name looked for as the dynamic loader does ("libcuda.so.1"). All symbols are
  // resolved now. Throws Error(kNotFound) naming the file and the loader's reason.
  explicit DynamicLibrary(const std::string& path, Visibility visibility = Visibility::kLocal);

  DynamicLibrary(DynamicLibrary&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), kept_(other.kept_), path_(std::move(other.path_)) {}
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    if (this != &other) {
      unload();
      handle_ = std::exchange(other.handle_, nullptr);
      kept_ = other.kept_;
      path_ = std::move(other.path_);
    }
    return *this;
  }
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;
  ~DynamicLibrary() { unload(); }

  // Throws Error(kUnsupported) naming file, symbol and reason. T is a pointer type:
  //   auto init = library.symbol<int (*)(unsigned)>("cuInit");
  template <class T>
  T symbol(const char* name) const {
    return reinterpret_cast<T>(required_address(name));
  }

  // Null if the library has no such symbol.
  template <class T>
  T find_symbol(const char* name) const noexcept {
    return reinterpret_cast<T>(find_address(name));
  }

  bool loaded() const noexcept { return handle_ != nullptr; }
  const std::string& path() const noexcept { return path_; }

  void unload() noexcept;

  // Keeps the library in the process for ever, for libraries that leave threads or exit handlers behind.
  void keep_loaded() noexcept { kept_ = true; }

 private:
  void* required_address(const char* name) const;
  void* find_address(const char* name) const noexcept;

  void* handle_ = nullptr;
  bool kept_ = false;
  std::string path_;
};

}  // namespace towline
