// libibverbs as a domain: InfiniBand and RoCE ports, reliable connections. The library is loaded at run time. Tested
// over a model of it and over soft-RoCE; see docs/fabric.md for what it has not met.
#pragma once

#include <memory>
#include <string>

#include "fabric/domain.h"

namespace towline::fabric {

struct VerbsOptions {
  std::string device;  // "mlx5_0"
  uint8_t port = 1;
  int gid_index = -1;  // -1: chosen
};

// "DEVICE[/PORT][?gid=INDEX]". Throws Error(kInvalidArgument).
VerbsOptions parse_verbs_options(std::string_view text);

// Throws Error: kUnsupported without the library or its headers, kNotFound without the device, kPermissionDenied,
// kUnreachable while the port is down, with the vendor's words.
std::unique_ptr<Domain> make_verbs_domain(const VerbsOptions& options);

}  // namespace towline::fabric
