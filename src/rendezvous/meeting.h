// Gives the ranks of one communicator store keys that no earlier communicator used.
//
// A store may outlive ranks: under torchrun the ranks of the next attempt use the same store, which has keys
// of ranks that are gone. So rank 0 writes a fresh number, which replaces an older one, and all keys begin
// with it. A rank that came too early may read the older number. It notices this because the answer of that
// number's rank 0 does not contain its key, or because no answer comes, and reads the number again.
//
// Ranks that were given different sizes never meet, since communicators of one name and different sizes are different ones.
// So a rank that waits for rank 0 of its own size looks which size rank 0 has named, and the two tell one another.
#pragma once

#include <memory>

#include "rendezvous/store.h"

namespace towline::rendezvous {

// Collective. Returns the part of `named`, the store of all communicators of one name, that only these ranks use. `count`: how
// many of this size each of them had made there. Throws Error(kTimedOut) that names a rank which did not arrive. A rank that
// waits and was given another size is named in the log within a second, and in that error.
std::shared_ptr<Store> meet(std::shared_ptr<Store> named, int rank, int size, Deadline deadline,
                            uint64_t count = 0);

// The same part for a rank that meets nobody.
std::shared_ptr<Store> part_of(std::shared_ptr<Store> named, int size, uint64_t count);

}  // namespace towline::rendezvous
