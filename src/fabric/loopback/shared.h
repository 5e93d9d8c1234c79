// Rails that reach the other engines of this process: the loopback network on the system's clock, for programs and
// tests with several engines in several threads.
#pragma once

#include <memory>
#include <string>

#include "fabric/domain.h"

namespace towline::fabric {

// Engines whose domains have the same name are joined. Any thread makes them; each is used by one thread at a time.
// A name may go on with settings, "name?rate=2e9": bytes per second of this port.
std::unique_ptr<Domain> make_shared_loopback(const std::string& name);

}  // namespace towline::fabric
