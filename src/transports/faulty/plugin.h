// The interceptor: any transport, with faults by seed between it and the core.
#pragma once

#include "framing/fault_options.h"
#include "towline/plugin/v1.h"

namespace towline {

// A plugin that opens `inner` and stands between it and the core: README.md says which faults it makes of the
// options. It keeps inner's name, traits and addresses, so that a wrapped agent and a plain one reach each
// other.
//
// There is one such plugin for each inner one, and it lives as long as the process; so must `inner`. The
// options hold for instances opened from now on, except where the configuration of the agent that opens one
// has a key `faults` of its own. Throws Error(kLimitExceeded) for more than 16 different inner plugins. Any
// thread.
const towline_plugin_v1_t* make_faulty(const towline_plugin_v1_t* inner,
                                       const framing::FaultOptions& options);

}  // namespace towline
