#include "rendezvous/rank_info.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/os/processor.h"
#include "base/os/topology.h"
#include "base/wire.h"

namespace towline::rendezvous {
namespace {

constexpr uint16_t kTopologyVersion = 4;
constexpr uint32_t kMostProcessors = 1 << 16;

}  // namespace

RankInfo this_rank() {
  RankInfo info;
  info.host = read_host_identity();
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0) info.host_name = name;
  HostTopology topology = read_host_topology();
  const int cpu = current_processor();
  if (cpu >= 0) info.numa_node = topology.node_of_cpu(static_cast<uint32_t>(cpu)).value_or(0);
  info.processors = std::move(topology.allowed_cpus);
  return info;
}

std::vector<uint8_t> encode(const RankInfo& info) {
  std::vector<uint8_t> bytes;
  WireWriter out(bytes);
  out.u16(kTopologyVersion);
  put(out, info.host);
  out.string16(info.host_name);
  out.string16(info.label);
  out.u32(static_cast<uint32_t>(info.processors.size()));
  for (const uint32_t processor : info.processors) out.u32(processor);
  out.u32(info.numa_node);
  out.u32(static_cast<uint32_t>(info.endpoints.size()));
  for (const std::string& endpoint : info.endpoints) out.string16(endpoint);
  out.string16(info.settings);
  return bytes;
}

RankInfo decode(std::span<const uint8_t> bytes, int rank) {
  WireReader in(bytes);
  RankInfo info;
  const uint16_t version = in.u16();
  info.host = decode_host_identity(in);
  info.host_name = in.string16(255);
  info.label = in.string16(255);
  info.processors.resize(in.count32(kMostProcessors, 4));
  for (uint32_t& processor : info.processors) processor = in.u32();
  info.numa_node = in.u32();
  const uint32_t count = in.count32(256, 2);
  for (uint32_t i = 0; i < count; ++i) info.endpoints.emplace_back(in.string16(255));
  info.settings = in.string16(1024);
  if (!in.ok() || version != kTopologyVersion)
    fail(Status::kProtocol, "rank {} describes itself in a way not known here (version {}, here {})", rank,
         version, kTopologyVersion);
  return info;
}

std::vector<std::vector<int>> hosts_of(const std::vector<RankInfo>& ranks, bool shared_memory) {
  std::vector<std::vector<int>> hosts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    bool placed = false;
    for (std::vector<int>& host : hosts) {
      const RankInfo& first = ranks[static_cast<size_t>(host.front())];
      const RankInfo& mine = ranks[rank];
      if (!shared_memory || mine.label != first.label || !mine.host.same_pid_namespace(first.host) ||
          !mine.host.same_network_namespace(first.host))
        continue;
      host.push_back(static_cast<int>(rank));
      placed = true;
      break;
    }
    if (!placed) hosts.push_back({static_cast<int>(rank)});
  }
  return hosts;
}

bool crowded(const std::vector<RankInfo>& ranks, int rank) {
  const HostIdentity& here = ranks[static_cast<size_t>(rank)].host;
  // Ranks are crowded if more ranks are restricted to a set of processors than the set has processors.
  return std::ranges::any_of(ranks, [&](const RankInfo& one) {
    if (one.host.boot_id != here.boot_id) return false;
    const auto within = std::ranges::count_if(ranks, [&](const RankInfo& other) {
      return other.host.boot_id == here.boot_id && std::ranges::includes(one.processors, other.processors);
    });
    return static_cast<size_t>(within) > one.processors.size();
  });
}

std::string name_of(int rank, const RankInfo& info) {
  return fmt::format("rank {} (process {} on {})", rank, info.host.pid, info.host_name);
}

}  // namespace towline::rendezvous
