#include "plugin_library.h"

#include <dlfcn.h>

#include "companions.h"

namespace towline::nixl {

void* open_plugin_library(const std::string& path, std::string& why) {
  // Kept in memory after dlclose: libraries that plugins bring along have thread-local state and exit handlers.
  constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  void* library = dlopen(path.c_str(), kHow);
  for (int tries = 0; library == nullptr; ++tries) {
    const char* text = dlerror();
    why = text == nullptr ? "it can't be loaded" : text;
    if (tries == nixl_plugins::kMostCompanions || !nixl_plugins::load_companion(path, why)) {
      why = nixl_plugins::explain_missing(path, why);
      return nullptr;
    }
    library = dlopen(path.c_str(), kHow);
  }
  return library;
}

}  // namespace towline::nixl
