// Gives the ranks of one communicator store keys that no earlier communicator used.
//
// A store may outlive ranks: under torchrun the ranks of the next attempt use the same store, which has keys
// of ranks that are gone. So rank 0 writes a fresh number, which replaces an older one, and all keys begin
// with it. A rank that came too early may read the older number. It notices this because the answer of that
// number's rank 0 does not contain its key, or because no answer comes, and reads the number again.
#pragma once

#include <memory>

#include "rendezvous/store.h"

namespace towline::rendezvous {

// Collective. Returns the part of the store that only these ranks use. Throws Error(kTimedOut) that names a
// rank which did not arrive.
std::shared_ptr<Store> meet(std::shared_ptr<Store> store, int rank, int size, Deadline deadline);

}  // namespace towline::rendezvous
