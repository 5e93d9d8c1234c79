// UCX as a domain: its transports reach InfiniBand, RoCE, TCP and other processes of this host. The library is
// loaded at run time, from 1.13 on. Tested over `tcp` and `shm`; nothing else has met a device.
#pragma once

#include <memory>
#include <string>

#include "fabric/domain.h"

namespace towline::fabric {

struct UcxOptions {
  // As in UCX_TLS, with + between: "tcp", "shm" (without transports by which a peer writes through the kernel, whom
  // closing this end would not stop), "rc+tcp"; "auto": all but those.
  std::string transports = "auto";
  std::string devices;  // as in UCX_NET_DEVICES, with + between; empty: all
  std::string
      variables;  // more of UCX's own, without UCX_, with + between: "RNDV_THRESH=64k+ZCOPY_THRESH=8k"
};

// Throws Error: kUnsupported without the library or its headers, kNotFound where UCX has no such transport here,
// with UCX's reason, kInvalidArgument for a value that it does not take (names that it does not know it prints).
std::unique_ptr<Domain> make_ucx_domain(const UcxOptions& options);

}  // namespace towline::fabric
