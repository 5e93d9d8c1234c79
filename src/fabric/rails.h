// Rails by name, as settings and applications write them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "fabric/domain.h"

namespace towline::fabric {

// "verbs:DEVICE[/PORT][?gid=INDEX]": "verbs:mlx5_0/1".
// "ofi:PROVIDER[/DEVICE][@ADDRESS]": "ofi:efa/rdmap0s6-rdm", "ofi:tcp;ofi_rxm@127.0.0.1", "ofi:shm".
// "ucx:TRANSPORTS[/DEVICES][?NAME=VALUE+...]", with + between several: "ucx:tcp/eth0", "ucx:rc+tcp", "ucx:auto".
// "loopback:NAME": the other engines of this process that have it.
// Throws Error: kInvalidArgument for other names, else as make_verbs_domain, make_ofi_domain and make_ucx_domain.
std::unique_ptr<Domain> make_rail(std::string_view name);

// The same, and "auto": every active port of this host's RDMA devices. Throws Error(kUnsupported) if it has none, with
// the reason.
std::vector<std::unique_ptr<Domain>> make_rails(std::string_view name);

}  // namespace towline::fabric
