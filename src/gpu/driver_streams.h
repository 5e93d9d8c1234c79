// Streams of the library's own, from NVIDIA's driver and never given back to it.
//
// The driver may keep a thread that asks for a stream (cuStreamCreate) until no kernel runs on the GPU, and lets no thread of the process
// launch anything meanwhile: seen on an H200, driver 580, six times in eight with some twenty streams. A kernel that waits
// for another rank may need just such a launch. So who will need streams later has them made now, while no kernel of
// its own waits, and a stream that is let go is kept for the next.
//
// Streams are mapped onto some queues of the driver (8, or CUDA_DEVICE_MAX_CONNECTIONS, at most 32). One in which a kernel stands behind
// another that waits holds up all that share its queue, whatever their priority. So copies, which the waiting kernel may need, take few
// streams: the first 8 have one each, and of urgent ones the first 4, and the others share these. Nothing in them waits for anything but copies.
#pragma once

#include <cstdint>

#include "gpu/driver_api.h"
#include "gpu/kernel_device.h"

namespace towline::cuda {

// Copies are first in turn when a multiprocessor becomes free: a copy needs few of them, and others wait for it.
enum class StreamUse : uint8_t { kKernels, kCopies, kUrgentCopies };

// While it lives, the next `count` calls of take_stream for kernels find a stream that is there already; the process makes no more than 32 so,
// which is how many queues the driver has at most. Any thread. Throws Error.
class PreparedStreams final : public StreamsAhead {
 public:
  PreparedStreams(const driver::Api& api, driver::Context context, uint32_t count);
  ~PreparedStreams() override;

 private:
  const driver::Context context_;
  const uint32_t count_;
};

// The greatest that streams of the current context can have. Throws Error.
int greatest_priority(const driver::Api& api);
// A stream that is not ordered with the default one. Any thread. Throws Error.
driver::Stream take_stream(const driver::Api& api, driver::Context context, StreamUse use);
// Nothing that this user has put into it is under way.
void keep_stream(driver::Context context, StreamUse use, driver::Stream stream) noexcept;

}  // namespace towline::cuda
