// A stranger: sends agents metadata that is not its own. Ends with 0 when all of it was taken, else with 1
// and the reason on standard output.
//
//   crowd ADDRESS COUNT REGIONS     so many agents that nobody knows, and each once more with a flipped bit
//   impersonate ADDRESS VICTIM      the victim's name with another incarnation, then the victim's incarnation
//                                   with the addresses of the agent at ADDRESS and keys of no regions
//   relay ADDRESS FROM              the metadata of the agent at FROM, as it is
//   newer ADDRESS                   prints the metadata of the agent at ADDRESS, as a newer version might
//   give
//                                   it: with regions of a kind that nobody knows yet
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/id.h"
#include "metadata/blob/blob.h"
#include "metadata/listener/exchange.h"
#include "support/unknown_agent.h"
#include "towline/towline.h"

namespace towline {
namespace {

using metadata::PeerMetadata;
using support::unknown_agent;

std::vector<uint8_t> trade(const std::string& address, const std::vector<uint8_t>& blob = {}) {
  return metadata::exchange(address, blob, Deadline::after(monotonic_now_ns(), 10 * kSecondNs));
}

void crowd(const std::string& address, std::size_t count, std::size_t regions) {
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<uint8_t> blob = metadata::encode(unknown_agent("stranger " + std::to_string(i), regions));
    trade(address, blob);
    blob[blob.size() / 2] ^= 1;
    try {
      trade(address, blob);
    } catch (const Error& error) {
      if (error.code() != Status::kCorrupt) throw;
      continue;
    }
    fail(Status::kInternal, "a blob with a flipped bit was taken");
  }
}

void impersonate(const std::string& address, const std::string& victim) {
  PeerMetadata forged = metadata::decode(trade(victim));
  trade(address, metadata::encode(unknown_agent(forged.identity.name, 1)));
  const PeerMetadata elsewhere = metadata::decode(trade(address));
  forged.partial = true;
  forged.listen = elsewhere.listen;
  forged.backends = elsewhere.backends;
  for (auto& entry : forged.regions) {
    entry.region.key = random_u64();
    entry.tokens = {};
  }
  trade(address, metadata::encode(forged));
}

void newer(const std::string& address) {
  PeerMetadata metadata = metadata::decode(trade(address));
  metadata.regions.insert(metadata.regions.begin(), metadata.regions.front());
  metadata.regions.front().region.kind = 4711;
  metadata.regions.front().region.key += 1;
  const std::vector<uint8_t> blob = metadata::encode(metadata);
  std::fwrite(blob.data(), 1, blob.size(), stdout);
}

void run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  const std::string& address = arguments.at(1);
  if (what == "crowd") return crowd(address, std::stoul(arguments.at(2)), std::stoul(arguments.at(3)));
  if (what == "impersonate") return impersonate(address, arguments.at(2));
  if (what == "relay") return (void)trade(address, trade(arguments.at(2)));
  if (what == "newer") return newer(address);
  fail(Status::kInvalidArgument, "'{}' is not known", what);
}

}  // namespace
}  // namespace towline

int main(int argc, char** argv) {
  try {
    towline::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
