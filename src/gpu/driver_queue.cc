#include "gpu/driver_queue.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "gpu/driver_spares.h"
#include "gpu/driver_streams.h"

namespace towline::cuda {

namespace {

using driver::Api;
using driver::kSuccess;

constexpr uint64_t kSlabBytes = 4u << 20;
constexpr uint64_t kListAlignment = 256;
constexpr uint32_t kStagingSlots = 4;

class DriverQueue final : public CopyQueue {
 public:
  DriverQueue(const Api& api, const Kernels& kernels, bool after_default, bool urgent, const Green& green)
      : api_(api),
        kernels_(kernels),
        green_(green),
        after_default_(after_default),
        use_(urgent ? StreamUse::kUrgentCopies : StreamUse::kCopies),
        flags_(api, kernels.context, kWords * sizeof(uint64_t), "pinned flags"),
        arrivals_(api, kernels.context, kWords * sizeof(uint32_t), "memory for counters") {
    const Current current(api_, kernels_.context);
    try {
      stream_ = make_stream(after_default);
      std::fill_n(static_cast<uint64_t*>(flags_.host()), kWords, 0);
      api_.check(api_.memory_set32_async(arrivals_.address(), 0, kWords, stream_), "cuMemsetD32Async");
      api_.check(api_.event_create(&reached_, driver::kEventWithoutTime), "cuEventCreate");
      api_.check(api_.stream_synchronize(stream_), "clearing counters");
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~DriverQueue() override {
    const Current current(api_, kernels_.context);
    destroy();
  }

  List make_list(uint64_t bytes) override {
    const uint64_t wanted = (bytes + kListAlignment - 1) / kListAlignment * kListAlignment;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < slabs_.size(); ++i)
      if (const auto list = take(i, wanted); list.host != nullptr) return list;
    slabs_.push_back(std::make_unique<Slab>(api_, kernels_.context, std::max(kSlabBytes, wanted)));
    return take(slabs_.size() - 1, wanted);
  }

  void release_list(const List& list) noexcept override {
    const std::lock_guard lock(mutex_);
    auto& holes = slabs_[list.node]->holes;
    uint64_t begin = list.gpu - slabs_[list.node]->gpu.address();
    uint64_t end = begin + list.bytes;
    auto next = holes.lower_bound(begin);
    if (next != holes.end() && next->first == end) {
      end += next->second;
      next = holes.erase(next);
    }
    if (next != holes.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second = end - before->first;
        return;
      }
    }
    try {
      holes[begin] = end - begin;
    } catch (const std::bad_alloc&) {
      // Lost until the queue goes.
    }
  }

  Code upload(const List& list) noexcept override {
    const Current current(api_, kernels_.context);
    const Code code =
        api_.memory_copy_async(list.gpu, reinterpret_cast<driver::Pointer>(list.host), list.bytes, stream_);
    if (code != kSuccess || list_sent_ == nullptr) return code;
    list_on_its_way_ = true;
    return api_.event_record(list_sent_, stream_);
  }

  Code launch(const CopyJob& job, uint32_t blocks, uint32_t slot, uint64_t value) noexcept override {
    const Current current(api_, kernels_.context);
    Completion done{arrivals_.address() + slot * sizeof(uint32_t), flags_.gpu() + slot * sizeof(uint64_t),
                    value, 0, 0};
    CopyJob mine = job;
    void* arguments[] = {&mine, &done};
    const driver::Function function = kernels_.copy[static_cast<size_t>(job.form) * 2 + job.aligned];
    return api_.launch(function, blocks, 1, 1, threads_of_block(job, blocks), 1, 1, 0, stream_, arguments,
                       nullptr);
  }

  Code copy(std::span<const Range> ranges, uint32_t slot, uint64_t value) noexcept override {
    const Current current(api_, kernels_.context);
    Code code = kSuccess;
    for (size_t i = 0; i < ranges.size() && code == kSuccess; ++i)
      code = api_.memory_copy_async(ranges[i].to, ranges[i].from, ranges[i].bytes, stream_);
    if (code == kSuccess)
      code = api_.stream_write_value64(stream_, flags_.gpu() + slot * sizeof(uint64_t), value, 0);
    if (code != kSuccess) api_.stream_synchronize(stream_);  // refused: then nothing may be under way
    return code;
  }

  void make_staging() override {
    if (staging_ != nullptr) return;
    if (after_default_)
      fail(Status::kUnsupported,
           "cuda: copies are ordered with the default stream (cuda.after_default_stream), which gathering is "
           "not");
    const Current current(api_, kernels_.context);
    if (gather_ == nullptr) gather_ = make_stream(false);
    const auto make = [this](driver::Event& event) {
      if (event == nullptr) api_.check(api_.event_create(&event, driver::kEventWithoutTime), "cuEventCreate");
    };
    make(list_sent_);
    for (Slot& slot : slots_) {
      make(slot.gathered);
      make(slot.sent);
    }
    staging_ = std::make_unique<OwnGpuMemory>(api_, kernels_.context, kStagingSlots * kStagingBytes,
                                              "staging memory on the GPU");
  }

  // The gather of one slot runs while the copy engine sends another. No one watches the flag that a gather sets.
  Code relay(const CopyJob& job, uint32_t blocks, std::span<const Range> ranges) noexcept override {
    const Current current(api_, kernels_.context);
    const auto index = static_cast<uint32_t>(relays_ % kStagingSlots);
    Slot& slot = slots_[index];
    const driver::Pointer base = staging_->address() + index * kStagingBytes;
    CopyJob mine = job;
    mine.to_shift = base - job.begin;
    Completion done{arrivals_.address() + kSlots * sizeof(uint32_t),
                    flags_.gpu() + kGatherFlag * sizeof(uint64_t), 0, 0, 0};
    void* arguments[] = {&mine, &done};
    const driver::Function function = kernels_.copy[static_cast<size_t>(job.form) * 2 + job.aligned];
    Code code = kSuccess;
    const auto then = [&code](auto&& step) {
      if (code == kSuccess) code = step();
    };
    // The list that the gather reads was sent on the other stream.
    if (list_on_its_way_) then([&] { return api_.stream_wait_event(gather_, list_sent_, 0); });
    if (relays_ >= kStagingSlots) then([&] { return api_.stream_wait_event(gather_, slot.sent, 0); });
    then([&] {
      return api_.launch(function, blocks, 1, 1, threads_of_block(job, blocks), 1, 1, 0, gather_, arguments,
                         nullptr);
    });
    then([&] { return api_.event_record(slot.gathered, gather_); });
    then([&] { return api_.stream_wait_event(stream_, slot.gathered, 0); });
    then([&] { return send(base, ranges); });
    then([&] { return api_.event_record(slot.sent, stream_); });
    then([&] {
      return api_.stream_write_value64(stream_, flags_.gpu() + kSentFlag * sizeof(uint64_t), relays_ + 1, 0);
    });
    if (code == kSuccess) {
      ++relays_;
      list_on_its_way_ = false;
    }
    return code;
  }

  [[nodiscard]] uint64_t relays_begun() const noexcept override { return relays_; }
  [[nodiscard]] uint64_t relays_sent() const noexcept override {
    return flag(kSentFlag).load(std::memory_order_acquire);
  }

  Code mark(uint32_t slot, uint64_t value) noexcept override {
    const Current current(api_, kernels_.context);
    return api_.stream_write_value64(stream_, flags_.gpu() + slot * sizeof(uint64_t), value, 0);
  }

  [[nodiscard]] uint32_t reserved_sms() const noexcept override { return green_.sms; }

  [[nodiscard]] const std::atomic<uint64_t>& flag(uint32_t slot) const noexcept override {
    static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
    return static_cast<const std::atomic<uint64_t>*>(flags_.host())[slot];
  }

  [[nodiscard]] Code state() noexcept override {
    const Current current(api_, kernels_.context);
    const driver::Result result = api_.stream_query(stream_);
    return result == driver::kNotReady ? kBusy : result;
  }

  Code drain() noexcept override {
    const Current current(api_, kernels_.context);
    return api_.stream_synchronize(stream_);
  }

  Code precede(void* stream) noexcept override {
    const Current current(api_, kernels_.context);
    const Code code = api_.event_record(reached_, stream_);
    if (code != kSuccess) return code;
    return api_.stream_wait_event(static_cast<driver::Stream>(stream), reached_, 0);
  }

 private:
  struct Slot {  // of staging memory
    driver::Event gathered = nullptr;
    driver::Event sent = nullptr;
  };
  struct Slab {
    Slab(const Api& api, driver::Context context, uint64_t bytes)
        : host(api, context, bytes, "pinned memory for a page list"),
          gpu(api, context, bytes, "GPU memory for a page list"),
          holes{{0, bytes}} {}
    const OwnPinnedMemory host;
    const OwnGpuMemory gpu;
    std::map<uint64_t, uint64_t> holes;  // length by offset
  };

  static constexpr uint32_t kGatherFlag = kSlots;  // beside those of slots
  static constexpr uint32_t kSentFlag = kSlots + 1;
  static constexpr uint32_t kWords = kSlots + 2;

  // In one call where the driver can: alone, the copy engine rests 3 us after each range.
  Code send(driver::Pointer base, std::span<const Range> ranges) noexcept {
    constexpr size_t kMost = 64;
    const bool batched = api_.memory_copy_batch != nullptr || api_.memory_copy_batch_12 != nullptr;
    if (ranges.size() == 1 || ranges.size() > kMost || !batched) {
      Code code = kSuccess;
      for (size_t i = 0; i < ranges.size() && code == kSuccess; ++i)
        code = api_.memory_copy_async(ranges[i].to, base + ranges[i].from, ranges[i].bytes, stream_);
      return code;
    }
    std::array<driver::Pointer, kMost> to;
    std::array<driver::Pointer, kMost> from;
    std::array<size_t, kMost> bytes;
    for (size_t i = 0; i < ranges.size(); ++i) {
      to[i] = ranges[i].to;
      from[i] = base + ranges[i].from;
      bytes[i] = ranges[i].bytes;
    }
    driver::CopyAttributes attributes;
    size_t first = 0;
    if (api_.memory_copy_batch != nullptr)
      return api_.memory_copy_batch(to.data(), from.data(), bytes.data(), ranges.size(), &attributes, &first,
                                    1, stream_);
    size_t failed = 0;
    return api_.memory_copy_batch_12(to.data(), from.data(), bytes.data(), ranges.size(), &attributes, &first,
                                     1, &failed, stream_);
  }

  driver::Stream make_stream(bool after_default) {
    if (!after_default && green_.context == nullptr) return take_stream(api_, kernels_.context, use_);
    const int greatest = greatest_priority(api_);
    driver::Stream stream = nullptr;
    if (green_.context != nullptr)
      api_.check(api_.green_stream_create(&stream, green_.context, driver::kStreamNonBlocking, greatest),
                 "cuGreenCtxStreamCreate");
    else
      api_.check(api_.stream_create_with_priority(&stream, driver::kStreamOrdered, greatest),
                 "cuStreamCreateWithPriority");
    return stream;
  }

  List take(size_t index, uint64_t bytes) {
    Slab& slab = *slabs_[index];
    for (auto hole = slab.holes.begin(); hole != slab.holes.end(); ++hole) {
      if (hole->second < bytes) continue;
      const uint64_t offset = hole->first;
      const uint64_t left = hole->second - bytes;
      slab.holes.erase(hole);
      if (left != 0) slab.holes[offset + bytes] = left;
      return {static_cast<uint8_t*>(slab.host.host()) + offset, slab.gpu.address() + offset, bytes, index};
    }
    return {};
  }

  // Waits for started work. A broken context, or a driver that is shutting down, frees nothing.
  void destroy() noexcept {
    for (const driver::Stream stream : {gather_, stream_}) {
      if (stream == nullptr) continue;
      api_.stream_synchronize(stream);
      if (!after_default_ && green_.context == nullptr)
        keep_stream(kernels_.context, use_, stream);
      else
        api_.stream_destroy(stream);
    }
    for (const Slot& slot : slots_)
      for (const driver::Event event : {slot.gathered, slot.sent})
        if (event != nullptr) api_.event_destroy(event);
    if (list_sent_ != nullptr) api_.event_destroy(list_sent_);
    if (reached_ != nullptr) api_.event_destroy(reached_);
  }

  const Api& api_;
  const Kernels kernels_;
  const Green green_;
  const bool after_default_;
  const StreamUse use_;
  driver::Stream stream_ = nullptr;
  driver::Event reached_ = nullptr;
  driver::Stream gather_ = nullptr;
  std::unique_ptr<OwnGpuMemory> staging_;
  driver::Event list_sent_ = nullptr;
  bool list_on_its_way_ = false;
  std::array<Slot, kStagingSlots> slots_ = {};
  uint64_t relays_ = 0;  // begun
  const OwnPinnedMemory flags_;
  const OwnGpuMemory arrivals_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

}  // namespace

void load_kernels(const Api& api, std::span<const unsigned char> image, Kernels& kernels) {
  static constexpr const char* kNames[] = {"towline_copy_strided", "towline_copy_strided_aligned",
                                           "towline_copy_pairs",   "towline_copy_pairs_aligned",
                                           "towline_copy_pieces",  "towline_copy_pieces_aligned"};
  driver::Module module = nullptr;
  api.check(api.module_load(&module, image.data()),
            "loading the copy kernels (compute capability 8.0 or later is needed)");
  for (size_t i = 0; i < kernels.copy.size(); ++i)
    api.check(api.module_get_function(&kernels.copy[i], module, kNames[i]), kNames[i]);
  api.check(api.module_get_function(&kernels.valve, module, "towline_valve"), "towline_valve");
  // Loaded now, and not by the first launch, which may be while a graph is recorded.
  int threads = 0;
  for (const driver::Function function : kernels.copy)
    api.check(api.function_get_attribute(&threads, driver::kFunctionThreads, function), "loading a kernel");
  api.check(api.function_get_attribute(&threads, driver::kFunctionThreads, kernels.valve),
            "loading a kernel");
}

std::unique_ptr<CopyQueue> make_driver_queue(const Api& api, const Kernels& kernels, bool after_default,
                                             bool urgent, const Green& green) {
  return std::make_unique<DriverQueue>(api, kernels, after_default, urgent, green);
}

}  // namespace towline::cuda
