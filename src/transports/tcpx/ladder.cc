#include "transports/tcpx/ladder.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "transports/tcpx/sources/copy.h"
#include "transports/tcpx/sources/devmem.h"
#include "transports/tcpx/sources/devmem_legacy.h"
#include "transports/tcpx/sources/emulated.h"
#include "transports/tcpx/sources/mapped.h"
#include "transports/tcpx/sources/zcrx.h"

namespace towline::tcpx {
namespace {

// The parts that a source is made from.
struct Parts {
  const Settings& settings;
  const plugin::Host& host;
  bool gpu;  // its pool is memory of a GPU

  [[nodiscard]] NicOptions nic() const {
    return {settings.nic.interface, settings.queues, settings.pool_bytes, settings.state_folder,
            settings.nic.why};
  }
  [[nodiscard]] MakePoolMemory gpu_memory() const { return make_gpu_memory(host, settings.gpu); }
};

using Make = std::unique_ptr<Provider> (*)(const Parts&);

enum class Pools : uint8_t { kHost, kEither, kOwn };

struct Known {
  const char* name;
  Make make;    // throws Error that says why not
  Pools pools;  // the memory that it can receive into; kOwn: whatever it is given
};

constexpr Known kKnown[] = {
    {"devmem",
     [](const Parts& parts) -> std::unique_ptr<Provider> {
       return std::make_unique<DevmemProvider>(
           this_kernel(), parts.nic(), parts.gpu ? parts.gpu_memory() : MakePoolMemory(make_pool_memory));
     },
     Pools::kEither},
    {"zcrx",
     [](const Parts& parts) -> std::unique_ptr<Provider> {
       return std::make_unique<ZcrxProvider>(this_kernel(), parts.nic(),
                                             parts.gpu ? parts.gpu_memory() : MakePoolMemory{});
     },
     Pools::kEither},
    {"devmem-legacy",
     [](const Parts& parts) -> std::unique_ptr<Provider> {
       const bool gpu = parts.settings.pool != PoolPlace::kHost;
       return std::make_unique<DevmemLegacyProvider>(
           DaemonOptions{parts.settings.daemon_folder, parts.settings.daemon_gpu},
           gpu ? &parts.host : nullptr);
     },
     Pools::kOwn},
    {"mapped", [](const Parts&) -> std::unique_ptr<Provider> { return std::make_unique<MappedProvider>(); },
     Pools::kHost},
    {"zcrx-copy",
     [](const Parts& parts) -> std::unique_ptr<Provider> {
       return std::make_unique<ZcrxProvider>(parts.settings.pool_bytes,
                                             [](std::span<uint8_t> area, uint32_t refills) {
                                               return open_zcrx_ring(area, {0, 0, refills, -1});
                                             });
     },
     Pools::kHost},
    {"copy", [](const Parts&) -> std::unique_ptr<Provider> { return std::make_unique<CopyProvider>(); },
     Pools::kHost},
    {"emulated",
     [](const Parts& parts) -> std::unique_ptr<Provider> {
       const Settings& settings = parts.settings;
       return std::make_unique<EmulatedProvider>(
           EmulatedOptions{settings.pool_bytes, settings.seed, settings.odd},
           parts.gpu ? parts.gpu_memory() : MakePoolMemory{});
     },
     Pools::kEither},
};

const Known* find(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& known) { return known.name == name; });
  return found == std::end(kKnown) ? nullptr : found;
}

bool needs_nic(const Known& known) {
  return std::string_view(known.name) == "devmem" || std::string_view(known.name) == "zcrx";
}

// The memory to try, a GPU's first. The emulated source plays a NIC: a GPU's only where it is asked for.
std::vector<bool> on_gpu(const Known& known, const Settings& settings) {
  if (known.pools == Pools::kOwn || settings.pool == PoolPlace::kHost) return {false};
  if (settings.pool == PoolPlace::kGpu) return {true};
  return needs_nic(known) ? std::vector<bool>{true, false} : std::vector<bool>{false};
}

std::unique_ptr<Provider> make_source(const Known& known, const Parts& parts) {
  if (parts.gpu && known.pools == Pools::kHost)
    fail(Status::kUnsupported, "it receives into host memory only, and tuning.tcpx.pool is gpu");
  return known.make(parts);
}

}  // namespace

bool is_source(const std::string& name) { return find(name) != nullptr; }

std::string source_names() {
  std::string names;
  for (const Known& known : kKnown) names += names.empty() ? known.name : fmt::format(", {}", known.name);
  return names;
}

Ladder climb(const Settings& settings, const plugin::Host& host) {
  Ladder ladder;
  std::string reasons;
  const auto climbs = [&](const std::string& name, const auto& attempt) {
    try {
      attempt();
      ladder.rungs.push_back({name, ""});
      return true;
    } catch (const core::Error& error) {
      ladder.rungs.push_back({name, error.message()});
      reasons += fmt::format("; {}: {}", name, error.message());
      return false;
    }
  };
  for (const std::string& name : settings.sources) {
    const Known& known = *find(name);
    const Parts unplaced{settings, host, false};
    // One reason, not one for each sort of memory.
    if (needs_nic(known)) {
      try {
        check_nic_options(unplaced.nic());
      } catch (const core::Error& error) {
        ladder.rungs.push_back({name, error.message()});
        reasons += fmt::format("; {}: {}", name, error.message());
        continue;
      }
    }
    for (const bool gpu : on_gpu(known, settings)) {
      const std::string rung = gpu ? name + " into memory of a GPU" : name;
      if (climbs(rung, [&] { ladder.provider = make_source(known, {settings, host, gpu}); })) return ladder;
    }
  }
  throw plugin::Failure(Status::kUnsupported, "tcpx has no source of payload" + reasons);
}

}  // namespace towline::tcpx
