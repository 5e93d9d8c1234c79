#include "transports/cuda/plugin.h"

#include <cstdio>
#include <exception>

#include "towline/export.h"

#include "gpu/driver.h"
#include "transports/cuda/backend.h"

namespace {

class NvidiaBackend : public towline::cuda::Backend {
 public:
  static constexpr const towline_landing_table_v1* kLanding =
      &towline::cuda::LandingTable<NvidiaBackend>::kTable;

  explicit NvidiaBackend(const towline::plugin::Host& host) : Backend(host, towline::cuda::nvidia_device()) {}
};

// Does not initialise the driver: that would be seen by a process that forks later.
int32_t usable(char* reason, size_t capacity) {
  try {
    (void)towline::cuda::nvidia_device();
    return TOWLINE_OK;
  } catch (const std::exception& error) {
    std::snprintf(reason, capacity, "%s", error.what());
    return TOWLINE_UNSUPPORTED;
  }
}

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin = towline::cuda::describe_plugin<NvidiaBackend>(usable);
  return number == 0 ? &plugin : nullptr;
}
