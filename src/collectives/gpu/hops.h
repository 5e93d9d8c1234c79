// The host's side of hops: parts of an operation that a processor does while the stream waits. Kernels post them
// (hop_operations.h), one thread carries them out in that order, and later kernels wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/gpu/job.h"
#include "gpu/kernel_device.h"

namespace towline::collectives::gpu {

class Hops {
 public:
  using Run = int32_t (*)(void* context, const uint64_t* words);
  // Throws Error.
  // `ahead`: so many waits of kernels succeed before a hop was carried out.
  Hops(cuda::KernelDevice& device, uint32_t gpu, uint64_t bytes, uint32_t ahead, Run run, void* context);
  Hops(const Hops&) = delete;
  Hops& operator=(const Hops&) = delete;
  ~Hops();  // no kernel may post any more; carries out what was posted

  // For the processor and for kernels, at one address.
  [[nodiscard]] void* memory() const noexcept { return memory_->host(); }
  void make_post(Job& job, const uint64_t* words) const noexcept;
  void make_await(Job& job) const noexcept;
  // Before so many posts are enqueued. In a graph they may come at any time, and any number of times.
  void expect(uint64_t posts, bool in_graph);

 private:
  void work();
  [[nodiscard]] bool idle(uint64_t handled) const noexcept;

  const uint64_t ahead_;
  const Run run_;
  void* const context_;
  std::unique_ptr<cuda::Words> words_;
  std::unique_ptr<cuda::Words> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> expected_{0};
  std::atomic<bool> in_graphs_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace towline::collectives::gpu
