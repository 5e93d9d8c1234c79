#include "rendezvous/exchange.h"

#include <fmt/format.h>

#include "base/error.h"

namespace towline::rendezvous {

std::vector<Bytes> exchange(Store& store, const std::string& what, int rank, int size,
                            std::span<const uint8_t> own, Deadline deadline) {
  store.set(fmt::format("{}/{}", what, rank), own);
  std::vector<Bytes> all;
  for (int other = 0; other < size; ++other) {
    try {
      all.push_back(store.get(fmt::format("{}/{}", what, other), deadline));
    } catch (const Error& error) {
      if (error.code() != Status::kTimedOut) throw;
      fail(Status::kTimedOut, "rank {} of {} timed out waiting for rank {} to join", rank, size, other);
    }
  }
  return all;
}

}  // namespace towline::rendezvous
