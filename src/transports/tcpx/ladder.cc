#include "transports/tcpx/ladder.h"

#include <algorithm>

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

using Make = std::unique_ptr<Provider> (*)(const Settings&);

struct Known {
  const char* name;
  Make make;  // throws Error that says why not
};

NicOptions nic_options(const Settings& settings) {
  return {settings.nic.interface, settings.queues, settings.pool_bytes, settings.state_folder,
          settings.nic.why};
}

constexpr Known kKnown[] = {
    {"devmem",
     [](const Settings& settings) -> std::unique_ptr<Provider> {
       return std::make_unique<DevmemProvider>(this_kernel(), nic_options(settings), make_pool_memory);
     }},
    {"zcrx",
     [](const Settings& settings) -> std::unique_ptr<Provider> {
       return std::make_unique<ZcrxProvider>(this_kernel(), nic_options(settings));
     }},
    {"devmem-legacy",
     [](const Settings& settings) -> std::unique_ptr<Provider> {
       return std::make_unique<DevmemLegacyProvider>(
           DaemonOptions{settings.daemon_folder, settings.daemon_gpu});
     }},
    {"mapped",
     [](const Settings&) -> std::unique_ptr<Provider> { return std::make_unique<MappedProvider>(); }},
    {"zcrx-copy",
     [](const Settings& settings) -> std::unique_ptr<Provider> {
       return std::make_unique<ZcrxProvider>(settings.pool_bytes,
                                             [](std::span<uint8_t> area, uint32_t refills) {
                                               return open_zcrx_ring(area, {0, 0, refills});
                                             });
     }},
    {"copy", [](const Settings&) -> std::unique_ptr<Provider> { return std::make_unique<CopyProvider>(); }},
    {"emulated",
     [](const Settings& settings) -> std::unique_ptr<Provider> {
       return std::make_unique<EmulatedProvider>(
           EmulatedOptions{settings.pool_bytes, settings.seed, settings.odd});
     }},
};

const Known* find(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& known) { return known.name == name; });
  return found == std::end(kKnown) ? nullptr : found;
}

}  // namespace

bool is_source(const std::string& name) { return find(name) != nullptr; }

std::string source_names() {
  std::string names;
  for (const Known& known : kKnown) names += names.empty() ? known.name : fmt::format(", {}", known.name);
  return names;
}

Ladder climb(const Settings& settings) {
  Ladder ladder;
  std::string reasons;
  for (const std::string& name : settings.sources) {
    try {
      ladder.provider = find(name)->make(settings);
      ladder.rungs.push_back({name, ""});
      return ladder;
    } catch (const core::Error& error) {
      ladder.rungs.push_back({name, error.message()});
      reasons += fmt::format("; {}: {}", name, error.message());
    }
  }
  throw plugin::Failure(Status::kUnsupported, "tcpx has no source of payload" + reasons);
}

}  // namespace towline::tcpx
