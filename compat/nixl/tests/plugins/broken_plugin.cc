// Plugins that can't be loaded, one for each value of BROKEN.
#include <backend/backend_plugin.h>

#include <stdexcept>

#define BROKEN_INIT_THROWS 1
#define BROKEN_INIT_NULL 2
#define BROKEN_NO_INIT 3
#define BROKEN_SYMBOL 4

#if BROKEN == BROKEN_SYMBOL
void is_not_defined_anywhere();
#endif

#if BROKEN != BROKEN_NO_INIT
extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
#if BROKEN == BROKEN_INIT_THROWS
  throw std::runtime_error("this plugin never starts");
#elif BROKEN == BROKEN_SYMBOL
  is_not_defined_anywhere();
#endif
  return nullptr;
}
#endif
