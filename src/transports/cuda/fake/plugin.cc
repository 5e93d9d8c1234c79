// The cuda transport over fake GPUs, as a plugin for tests; and the function by which tests command the GPUs.
#include <cstdint>
#include <cstring>

#include "towline/export.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/fake/fake_device.h"
#include "transports/cuda/plugin.h"

namespace {

class FakeBackend : public towline::cuda::Backend {
 public:
  explicit FakeBackend(const towline::plugin::Host& host)
      : Backend(host, towline::cuda::fake::fake_device()) {}
};

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<FakeBackend>(
      towline::cuda::kDescription, [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return &plugin;
}

// False: no such command.
extern "C" TOWLINE_API bool towline_fake_gpu(const char* command, uint64_t a, uint64_t b, uint64_t c) {
  towline::cuda::fake::Faults& faults = towline::cuda::fake::faults();
  const auto is = [command](const char* name) { return std::strcmp(command, name) == 0; };
  if (is("hold"))
    faults.hold(a != 0);
  else if (is("refuse"))
    faults.refuse_launches(static_cast<uint32_t>(a), static_cast<towline::cuda::Code>(b));
  else if (is("break"))
    faults.break_next(static_cast<towline::cuda::Code>(a));
  else if (is("forget"))
    faults.forget(a, b);
  else if (is("place"))
    faults.place(a, b, static_cast<uint32_t>(c));
  else if (is("separate"))
    faults.separate(a != 0);
  else if (is("reset"))
    faults.reset();
  else
    return false;
  return true;
}
