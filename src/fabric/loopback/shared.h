// Rails that reach the other engines of this process: the loopback network on the system's clock, for programs and
// tests with several engines in several threads.
#pragma once

#include <memory>
#include <string>

#include "fabric/domain.h"

namespace towline::fabric {

// Engines whose domains have the same name are joined. Any thread makes them; each is used by one thread at a time.
// A name may go on with a setting: "name?rate=2e9", bytes per second of this port; "name?register_ms=500", how long it
// takes to register memory, beside everything else; "name?host_only", it takes no dma-buf.
std::unique_ptr<Domain> make_shared_loopback(const std::string& name);

}  // namespace towline::fabric
