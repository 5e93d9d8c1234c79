// Tracks the communicators whose hooks or works' functions a thread is running.
#pragma once

#include "base/sync/thread_mark.h"

namespace towline::collectives {

class Communicator;

// Lives during a call of the application's function. Calls nest: a hook may use another communicator, which
// has hooks.
using CallOut = ThreadMark<Communicator>;

}  // namespace towline::collectives
