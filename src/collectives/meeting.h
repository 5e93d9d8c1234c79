// Where the ranks of one communicator find keys that nobody used before.
//
// A store may outlive ranks: under torchrun the next attempt's meet in the store of the one before, among keys
// of ranks that are gone. So rank 0 puts a fresh number there, over an older one, and all keys have it before
// them. A rank that came too early, and took the older number, sees that its own word is not in what that
// number's rank 0 answered, or that no answer comes, and looks again.
#pragma once

#include <memory>

#include "collectives/store.h"

namespace towline::collectives {

// Collective. The part of the store that these ranks alone use. Throws Error(kTimedOut) that names a rank which
// did not come.
std::shared_ptr<Store> meet(std::shared_ptr<Store> store, int rank, int size, Deadline deadline);

}  // namespace towline::collectives
