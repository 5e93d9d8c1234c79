#include "transports/faulty/plugin.h"

#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/plugin_table.h"
#include "transports/faulty/backend.h"

namespace towline {
namespace {

// A plugin's functions open() and query_table() are not told which plugin they belong to. So each wrapped
// plugin has functions of its own, made at compile time.
constexpr std::size_t kSlots = 16;

struct Slot {
  const towline_plugin_v1_t* of = nullptr;  // whose it is
  towline_plugin_v1_t inner = {};           // the same, as this library knows plugins
  framing::FaultOptions options;
  std::string text;
  towline_plugin_v1_t plugin = {};
};

std::mutex slots_mutex;
std::array<Slot, kSlots> slots;

int32_t open_slot(const Slot& slot, const towline_host_v1_t* host, towline_backend** backend) noexcept {
  try {
    std::unique_lock lock(slots_mutex);
    framing::FaultOptions options = slot.options;
    lock.unlock();
    const std::string configured = host->config(host->context, "faults", "");
    if (!configured.empty()) options = framing::parse_fault_options(configured);
    auto made = std::make_unique<faulty::Backend>(slot.inner, *host, options);
    const int32_t status = made->open();
    if (status == TOWLINE_OK) *backend = made.release()->handle();
    return status;
  } catch (const Error& error) {
    host->fail(host->context, error.what());
    return static_cast<int32_t>(error.code());
  } catch (const std::bad_alloc&) {
    return TOWLINE_OUT_OF_MEMORY;
  }
}

template <std::size_t kIndex>
struct Functions {
  static int32_t open(const towline_host_v1_t* host, towline_backend** backend) {
    return open_slot(slots[kIndex], host, backend);
  }
  // Tables we do not know would bypass the interceptor with handles that are not theirs.
  static const void* query(const char* id, uint32_t version) {
    const bool has = slots[kIndex].inner.query_table(id, version) != nullptr;
    return has ? faulty::find_table(id, version) : nullptr;
  }
};

using OpenFn = int32_t (*)(const towline_host_v1_t*, towline_backend**);
using QueryFn = const void* (*)(const char*, uint32_t);

template <std::size_t... kIndices>
constexpr std::array<std::pair<OpenFn, QueryFn>, kSlots> make_functions(std::index_sequence<kIndices...>) {
  return {{{Functions<kIndices>::open, Functions<kIndices>::query}...}};
}
constexpr auto kFunctions = make_functions(std::make_index_sequence<kSlots>());

}  // namespace

const towline_plugin_v1_t* make_faulty(const towline_plugin_v1_t* inner,
                                       const framing::FaultOptions& options) {
  const std::lock_guard lock(slots_mutex);
  for (std::size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    if (slot.of == inner) {
      slot.options = options;
      return &slot.plugin;
    }
    if (slot.of != nullptr) continue;
    slot.inner = take_plugin(inner, "the plugin to be put behind faults");
    slot.of = inner;
    slot.options = options;
    slot.text = fmt::format("{}, with faults", slot.inner.description);
    slot.plugin = slot.inner;
    slot.plugin.struct_size = sizeof slot.plugin;
    slot.plugin.describe = nullptr;
    slot.plugin.description = slot.text.c_str();
    slot.plugin.open = kFunctions[i].first;
    slot.plugin.close = faulty::close_backend;
    slot.plugin.query_table = kFunctions[i].second;
    return &slot.plugin;
  }
  fail(Status::kLimitExceeded, "faults around '{}': at most {} different plugins can be wrapped", inner->name,
       kSlots);
}

}  // namespace towline
