// A directory used as a communicator's store.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/store.h"
#include "towline/towline.h"

namespace towline::capi {

// address: "etcd://..". Throws Error.
std::shared_ptr<rendezvous::Store> open_directory_store(towline_agent_t* agent, const std::string& address);

}  // namespace towline::capi
