// Whose threads run the application's callbacks and can't end the agent there: those that it started, which closing joins, and
// the one that closes it, on which posts end.
#pragma once

#include "base/sync/thread_mark.h"

namespace towline {

class Agent;

// Lives as long as the thread belongs to the agent. One thread may belong to several: it may close another one in a callback.
using OwnThread = ThreadMark<Agent>;

}  // namespace towline
