#include "gpu/driver_streams.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gpu/driver_queue.h"

namespace towline::cuda {
namespace {

constexpr uint32_t kMostPrepared = 32;
constexpr size_t kMostOfCopies = 8;
constexpr size_t kMostOfUrgentCopies = 4;

// A context's, for kernels. The oldest spare is taken first: streams that are in use together were then made one after another, and the
// driver gives such streams different queues while it has some.
struct Pool {
  std::deque<driver::Stream> spare;
  uint32_t made = 0;  // for those who asked ahead
  uint32_t promised = 0;
};
struct CopyStream {
  driver::Stream stream;
  uint32_t users = 0;
};
// They go with the process.
struct Pools {
  std::mutex mutex;
  std::map<driver::Context, Pool> of;
  std::map<std::pair<driver::Context, StreamUse>, std::vector<CopyStream>> of_copies;
};
Pools& pools() {
  static auto& all = *new Pools;
  return all;
}

driver::Stream make(const driver::Api& api, driver::Context context, StreamUse use) {
  const Current current(api, context);
  driver::Stream stream = nullptr;
  if (use == StreamUse::kKernels) {
    api.check(api.stream_create(&stream, driver::kStreamNonBlocking), "cuStreamCreate");
    return stream;
  }
  api.check(api.stream_create_with_priority(&stream, driver::kStreamNonBlocking, greatest_priority(api)),
            "cuStreamCreateWithPriority");
  return stream;
}

driver::Stream share(const driver::Api& api, driver::Context context, StreamUse use) {
  const std::lock_guard lock(pools().mutex);
  std::vector<CopyStream>& all = pools().of_copies[{context, use}];
  // All at once: later, kernels may run.
  const size_t most = use == StreamUse::kCopies ? kMostOfCopies : kMostOfUrgentCopies;
  while (all.size() < most) all.push_back({make(api, context, use)});
  CopyStream& fewest = *std::ranges::min_element(all, {}, &CopyStream::users);
  ++fewest.users;
  return fewest.stream;
}

}  // namespace

PreparedStreams::PreparedStreams(const driver::Api& api, driver::Context context, uint32_t count)
    : context_(context), count_(count) {
  const std::lock_guard lock(pools().mutex);
  Pool& pool = pools().of[context];
  for (; pool.made < std::min(pool.promised + count, kMostPrepared); ++pool.made)
    pool.spare.push_back(make(api, context, StreamUse::kKernels));
  pool.promised += count;
}

PreparedStreams::~PreparedStreams() {
  const std::lock_guard lock(pools().mutex);
  pools().of[context_].promised -= count_;
}

int greatest_priority(const driver::Api& api) {
  int least = 0;
  int greatest = 0;
  api.check(api.context_get_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
  return greatest;
}

driver::Stream take_stream(const driver::Api& api, driver::Context context, StreamUse use) {
  if (use != StreamUse::kKernels) return share(api, context, use);
  {
    const std::lock_guard lock(pools().mutex);
    std::deque<driver::Stream>& spare = pools().of[context].spare;
    if (!spare.empty()) {
      driver::Stream const stream = spare.front();
      spare.pop_front();
      return stream;
    }
  }
  return make(api, context, use);
}

void keep_stream(driver::Context context, StreamUse use, driver::Stream stream) noexcept {
  try {
    const std::lock_guard lock(pools().mutex);
    if (use == StreamUse::kKernels) return pools().of[context].spare.push_back(stream);
    for (CopyStream& each : pools().of_copies[{context, use}])
      if (each.stream == stream) --each.users;
  } catch (const std::bad_alloc&) {
    // Nobody gets it any more.
  }
}

}  // namespace towline::cuda
