#include "gpu/driver_streams.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <new>

#include "gpu/driver_queue.h"

namespace towline::cuda {
namespace {

constexpr uint32_t kMostPrepared = 32;

// A context's. The oldest spare is taken first: streams that are in use together were then made one after another, and the
// driver gives such streams different queues while it has some.
struct Pool {
  std::deque<driver::Stream> spare;
  uint32_t made = 0;  // for those who asked ahead
  uint32_t promised = 0;
};
// They go with the process.
struct Pools {
  std::mutex mutex;
  std::map<driver::Context, Pool> of;
};
Pools& pools() {
  static auto& all = *new Pools;
  return all;
}

driver::Stream make(const driver::Api& api, driver::Context context) {
  const Current current(api, context);
  driver::Stream stream = nullptr;
  api.check(api.stream_create(&stream, driver::kStreamNonBlocking), "cuStreamCreate");
  return stream;
}

}  // namespace

PreparedStreams::PreparedStreams(const driver::Api& api, driver::Context context, uint32_t count)
    : context_(context), count_(count) {
  const std::lock_guard lock(pools().mutex);
  Pool& pool = pools().of[context];
  for (; pool.made < std::min(pool.promised + count, kMostPrepared); ++pool.made)
    pool.spare.push_back(make(api, context));
  pool.promised += count;
}

PreparedStreams::~PreparedStreams() {
  const std::lock_guard lock(pools().mutex);
  pools().of[context_].promised -= count_;
}

driver::Stream take_stream(const driver::Api& api, driver::Context context) {
  {
    const std::lock_guard lock(pools().mutex);
    std::deque<driver::Stream>& spare = pools().of[context].spare;
    if (!spare.empty()) {
      driver::Stream const stream = spare.front();
      spare.pop_front();
      return stream;
    }
  }
  return make(api, context);
}

void keep_stream(driver::Context context, driver::Stream stream) noexcept {
  try {
    const std::lock_guard lock(pools().mutex);
    pools().of[context].spare.push_back(stream);
  } catch (const std::bad_alloc&) {
    // Nobody gets it any more.
  }
}

}  // namespace towline::cuda
