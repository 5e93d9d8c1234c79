// towline replay: plays requests through prefill and decode processes.
#pragma once

#include <string>

#include "options.h"
#include "replay/setup.h"

namespace tool::replay {

enum class Role { kBoth, kPrefill, kDecode };

struct ReplayOptions {
  Setup setup;
  Role role = Role::kBoth;
  std::string listen;   // "host:port" of rank 0; further ranks take the ports after it
  std::string connect;  // of prefill rank 0
  std::string faults;   // for the children's TOWLINE_FAULTS
};

// Runs it and prints the summary. Throws Failure, towline::Error, Interrupted.
void run_replay(const ReplayOptions& options, const CommonOptions& common);

}  // namespace tool::replay
