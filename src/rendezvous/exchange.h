// Ranks tell one another something small.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rendezvous/store.h"

namespace towline::rendezvous {

// Collective: gives every rank what each of them has, in the order of ranks. It is kept under "what/<rank>", so
// every exchange in a store needs a name of its own. Throws Error(kTimedOut) that names a rank which did not
// arrive.
std::vector<Bytes> exchange(Store& store, const std::string& what, int rank, int size,
                            std::span<const uint8_t> own, Deadline deadline);

}  // namespace towline::rendezvous
