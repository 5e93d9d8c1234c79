// The configuration of one instance, keys "tcpx.*", beyond those that tcp has too; docs/tcpx.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "towline/plugin/backend.hpp"
#include "transports/tcpx/bound_memory.h"
#include "transports/tcpx/nic_choice.h"

namespace towline::tcpx {

// The memory into which payload is received.
enum class PoolPlace : uint8_t {
  kAuto = 0,  // a GPU's memory where a NIC fills it, else the host's
  kGpu = 1,
  kHost = 2,
};

struct Settings {
  std::vector<std::string> sources;  // rungs of the ladder, best first
  uint32_t least_bytes = 0;          // payload from this size on goes on the payload flow
  uint64_t pool_bytes = 0;           // of a source that makes its own pool
  uint64_t seed = 0;                 // emulated: what comes how
  bool odd = true;                   // emulated: odd fragments
  PoolPlace pool = PoolPlace::kAuto;
  SendWay send = SendWay::kAuto;
  bool keep_fragments = true;    // for the GPU to copy; false: the processor copies them to staging memory
  NicChoice nic;                 // that receives into device memory
  std::vector<uint32_t> queues;  // its receive queues that are ours
  std::string daemon_folder;     // devmem-legacy: of the daemon's sockets
  std::string daemon_gpu;        // devmem-legacy: whose memory
  std::string gpu;               // whose memory payload is for, by its PCI address; empty: not said
  std::string state_folder;      // where changes of the NIC are written down

  // Throws plugin::Failure, naming the value.
  static Settings read(const plugin::Host& host);
};

// In the order in which they are tried where nothing is said: every one that a machine may have by itself.
[[nodiscard]] const std::vector<std::string>& default_sources();

}  // namespace towline::tcpx
