// TransferEngines of one process over libfabric's tcp, for tests.
#pragma once

#include <sched.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/ofi/ofi.h"
#include "fabric/transfer_engine.h"

namespace towline::fabric::testing {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kPages = 512;
constexpr uint64_t kLimitNs = 60 * kSecondNs;

// libfabric clears 17 MB of receive buffers (1,024 of 16 KiB) for each connection of each rail, which takes
// ThreadSanitizer seconds: it gets small ones.
inline std::vector<std::unique_ptr<Domain>> tcp_rails() {
#if defined(__SANITIZE_THREAD__)
  setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);
#endif
  std::vector<std::unique_ptr<Domain>> domains;
  for (int i = 0; i < 2; ++i) domains.push_back(make_ofi_domain({"tcp;ofi_rxm", "", "127.0.0.1"}));
  return domains;
}

// One side: an engine, memory and its descriptor.
struct Side {
  explicit Side(TransferEngineOptions options = {})
      : bytes(kPages * kPage), engine(tcp_rails(), std::move(options)) {
    memory = engine.register_memory({bytes.data(), bytes.size(), true, true});
    remote = TransferEngine::import(TransferEngine::descriptor(*memory));
  }
  std::vector<uint8_t> bytes;
  TransferEngine engine;
  const LocalMemory* memory = nullptr;
  RemoteMemory remote;  // as peers see it
};

// False when it did not come to be.
inline bool eventually(const std::function<bool()>& done) {
  const uint64_t end = monotonic_now_ns() + kLimitNs;
  while (!done() && monotonic_now_ns() < end) sched_yield();
  return done();
}

}  // namespace towline::fabric::testing
