#include "transports/nixl/settings.h"

#include <fmt/format.h>

#include <charconv>

#include "nixl_plugins/engine.h"

namespace towline::nixl_net {

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  settings.library = nixl_plugins::find_plugin(host, kName, "/path/libplugin_UCX.so");
  settings.parameters = host.config("nixl_net.parameters", "");
  const std::string blocks = host.config("tuning.nixl_net.blocks", "16384");
  const auto [end, error] = std::from_chars(blocks.data(), blocks.data() + blocks.size(), settings.blocks);
  if (error != std::errc{} || end != blocks.data() + blocks.size() || settings.blocks < 1 ||
      settings.blocks > 1'000'000)
    throw plugin::Failure(
        Status::kInvalidArgument,
        fmt::format("tuning.nixl_net.blocks = \"{}\": expected a number from 1 to 1000000", blocks));
  return settings;
}

}  // namespace towline::nixl_net
