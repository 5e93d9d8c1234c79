#ifdef TOWLINE_HAVE_LIBFABRIC

#include "fabric/ofi/ofi_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace towline::fabric {
namespace {

constexpr const char* kCleanup = "FI_AV_REMOVE_CLEANUP";
constexpr const char* kFile = "libfabric.so.1";

// libfabric has no call for it: it reads its environment once, when it is first used. So the variable is set where the
// library is not loaded yet, before the first rail of the process; a value that is there stays.
void ask_for_cleanup() noexcept {
  if (void* const loaded = dlopen(kFile, RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
    dlclose(loaded);
  } else {
    setenv(kCleanup, "1", 0);
  }
}

bool cleans_up(const DynamicLibrary& library) {
  bool on = false;
  fi_param* parameters = nullptr;
  int count = 0;
  if (library.symbol<decltype(&fi_getparams)>("fi_getparams")(&parameters, &count) == 0) {
    for (int i = 0; i < count; ++i) {
      const fi_param& parameter = parameters[i];
      if (parameter.name == nullptr || parameter.value == nullptr ||
          std::string_view(parameter.name) != kCleanup)
        continue;
      const std::string_view value{parameter.value};
      on = value == "1" || value == "yes" || value == "true" || value == "on";
    }
    library.symbol<decltype(&fi_freeparams)>("fi_freeparams")(parameters);
  }
  return on;
}

}  // namespace

OfiLibrary::OfiLibrary() {
  ask_for_cleanup();
  try {
    library_ = DynamicLibrary{kFile};
  } catch (const core::Error& error) {
    fail(Status::kUnsupported, "libfabric is not installed: {}", error.message());
  }
  library_.keep_loaded();
  getinfo_ = library_.symbol<decltype(&fi_getinfo)>("fi_getinfo");
  freeinfo_ = library_.symbol<decltype(&fi_freeinfo)>("fi_freeinfo");
  dupinfo_ = library_.symbol<decltype(&fi_dupinfo)>("fi_dupinfo");
  fabric_ = library_.symbol<decltype(&fi_fabric)>("fi_fabric");
  strerror_ = library_.symbol<decltype(&fi_strerror)>("fi_strerror");
  runtime_ = library_.symbol<decltype(&fi_version)>("fi_version")();
  ends_removed_ = cleans_up(library_);
  version_ = std::min<uint32_t>(runtime_, FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));
}

OfiLibrary& OfiLibrary::get() {
  static OfiLibrary* library = new OfiLibrary;
  return *library;
}

std::string OfiLibrary::error_text(int64_t code) const {
  return fmt::format("{} ({})", strerror_(static_cast<int>(code < 0 ? -code : code)), code);
}

}  // namespace towline::fabric

#endif
