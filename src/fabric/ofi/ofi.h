// libfabric as a domain: its providers reach EFA, verbs, TCP and other processes of this host. The library is
// loaded at run time. Tested over `tcp;ofi_rxm` and `shm`; `efa` and `verbs;ofi_rxm` are untested.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/domain.h"

namespace towline::fabric {

struct OfiOptions {
  std::string provider = "tcp;ofi_rxm";
  std::string domain;   // of the provider's, such as "lo" or "rdmap0s6-rdm"; empty: the first
  std::string address;  // of the interface to use, where the provider has IP addresses
};

struct OfiDevice {
  std::string provider;
  std::string fabric;
  std::string domain;
  uint64_t bandwidth_bytes_per_s = 0;  // 0: unknown
};

// The devices of a provider that can serve as rails. Throws Error: kUnsupported without the library or its
// headers, kNotFound where the provider has none, with libfabric's reason.
std::vector<OfiDevice> ofi_devices(const std::string& provider);

// Throws Error as ofi_devices does, and kIo where the device can't be opened.
std::unique_ptr<Domain> make_ofi_domain(const OfiOptions& options);

}  // namespace towline::fabric
