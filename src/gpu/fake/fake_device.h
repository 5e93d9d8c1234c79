// GPUs made of host memory, for tests of everything above the device: two of them, whose memory is any memory
// of this process that is registered as vram. Memory on a memfd can be shared by descriptor, other memory
// only within the process. Each queue is a thread that runs launches one after the other, by the same address
// computation as the kernels.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device.h"

namespace towline::cuda::fake {

// Threads wait here while a test holds them.
class Stop {
 public:
  void hold(bool held);
  void let_others_pass();  // but not those that wait
  void pass();
  [[nodiscard]] bool waited_for();  // somebody waits

 private:
  std::mutex mutex_;
  std::condition_variable let_go_;
  bool held_ = false;
  bool others_pass_ = false;
  uint32_t waiting_ = 0;
};

// Faults that tests set on the fake GPUs. One for the process.
class Faults {
 public:
  Stop launches;
  Stop lists;                       // on their way to the GPU
  Stop pins;                        // of host memory, off memfds
  std::atomic<uint64_t> queued{0};  // works that queues with threads have yet to carry out
  // The next launches or copies are refused with this code.
  void refuse_launches(uint32_t count, Code code);
  Code take_refusal();
  // The next copies behind valves are refused with this code, after the valve was launched.
  void refuse_behind_valves(uint32_t count, Code code);
  Code take_refusal_behind_valve();
  // The next launches moves nothing and breaks its queue with this code.
  void break_next(Code code);
  Code take_break();
  // Memory from here on for `bytes` is gone, or lies on another GPU.
  void forget(uint64_t address, uint64_t bytes);
  void place(uint64_t address, uint64_t bytes, uint32_t gpu);
  [[nodiscard]] bool forgotten(uint64_t address);
  [[nodiscard]] uint32_t gpu_of(uint64_t address);
  // Memory from here on for `bytes` was made so: other GPUs reach it only as that allows.
  void make(uint64_t address, uint64_t bytes, Made made, std::optional<Use> everyones);
  [[nodiscard]] Made made(uint64_t address);
  [[nodiscard]] std::optional<Use> access(uint32_t gpu, uint64_t address);
  void allow(uint32_t gpu, uint64_t address);
  void enable_peer(uint32_t gpu, uint32_t other);
  // A GPU that touches this breaks.
  [[nodiscard]] bool may_touch(uint32_t gpu, uint64_t address);
  // Whose kernels were loaded.
  void note_load(uint32_t gpu);
  [[nodiscard]] bool loaded(uint32_t gpu);
  // Kernels that queues took.
  void note_launch();
  [[nodiscard]] uint64_t launched();
  // The bytes gathered on GPUs, to be sent by the copy engine.
  void note_gathered(uint64_t bytes);
  [[nodiscard]] uint64_t gathered();
  void enlarge(bool large);  // GPUs have as many multiprocessors as real ones
  [[nodiscard]] bool large();
  void separate(bool separated);  // GPUs have no path to one another
  [[nodiscard]] bool separated();
  void fill(bool full);         // there is no room to map anything
  void fill_gpu(uint32_t gpu);  // there is no room on this one for a communicator's memory
  [[nodiscard]] bool full(uint32_t gpu);
  void refuse_streams(uint32_t gpu);  // on this one
  [[nodiscard]] bool streams_refused(uint32_t gpu);
  void refuse_pins(bool refused);  // of host memory off memfds
  [[nodiscard]] bool pins_refused();
  void refuse_pools(bool refused);  // of memory that the transport takes to copy through
  [[nodiscard]] bool pools_refused();
  void let_unpinning_wait(bool waits);  // as drivers do; here only what depends on it
  [[nodiscard]] bool unpinning_waits();
  void note_unpin();
  [[nodiscard]] uint64_t unpinned();
  void refuse_dma(bool refused);  // memory that other devices can fill
  [[nodiscard]] bool dma_refused();
  // Memory given to NICs.
  void note_export();
  [[nodiscard]] uint64_t exports();
  // The application has pinned this, for reading only.
  void pin_for_reading(uint64_t address, uint64_t bytes);
  [[nodiscard]] bool pinned_for_reading(uint64_t address);
  [[nodiscard]] bool full();
  // Queues made from now on have no thread: each step() carries out the next thing of one of them. For
  // simulations, where the order of events comes from a seed.
  void by_hand(bool by_hand);
  [[nodiscard]] bool is_by_hand();
  void reset();

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
    uint32_t gpu;
  };
  struct MadeRange {
    uint64_t begin;
    uint64_t end;
    Made made;
    std::optional<Use> everyones;  // of GPUs that it is not on
    std::set<uint32_t> allowed;
  };
  static bool in_one_of(const std::vector<Range>& ranges, uint64_t address);
  MadeRange* find_made(uint64_t address);
  [[nodiscard]] uint32_t gpu_at(uint64_t address) const;
  std::mutex mutex_;
  std::vector<MadeRange> made_;
  std::set<uint32_t> loaded_;
  uint64_t launched_ = 0;
  uint64_t gathered_ = 0;
  uint64_t exports_ = 0;
  uint64_t unpinned_ = 0;
  bool unpinning_waits_ = false;
  std::set<std::pair<uint32_t, uint32_t>> peers_;
  bool large_ = false;
  bool separated_ = false;
  bool full_ = false;
  std::set<uint32_t> full_gpus_;
  std::set<uint32_t> streamless_gpus_;
  bool pins_refused_ = false;
  bool pools_refused_ = false;
  bool dma_refused_ = false;
  bool by_hand_ = false;
  uint32_t refusals_ = 0;
  Code refusal_ = 0;
  uint32_t refusals_behind_valves_ = 0;
  Code refusal_behind_valves_ = 0;
  Code break_ = 0;
  std::vector<Range> forgotten_;
  std::vector<Range> placed_;
  std::vector<Range> for_reading_;
};

Faults& faults();
// The next thing of one of the queues without a thread: the one that `number` picks. False: it has nothing to do.
bool step(uint64_t number);
Device& fake_device();

// An application's stream: a thread of its own does one thing after the other. Or it records them in a graph.
class FakeStream {
 public:
  using Work = std::function<void()>;
  struct Step {
    Work work;
    std::function<Work()> at_launch;  // if set, makes the work of each replay when that is launched
  };
  struct Graph {
    uint64_t number = 0;
    std::vector<Step> steps;
    std::vector<FakeStream*> joined;
  };

  // green: of a context of some multiprocessors, which is not the GPU's.
  explicit FakeStream(uint32_t gpu, bool green = false);
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  ~FakeStream();  // what it was given is done first

  [[nodiscard]] static bool lives(const void* stream);
  static void drain_all(uint32_t gpu);
  [[nodiscard]] uint32_t gpu() const noexcept { return gpu_; }
  [[nodiscard]] bool green() const noexcept { return green_; }
  void put(Work work);
  void hold(bool held);  // begins nothing meanwhile
  void drain();
  void record();
  Graph* end_record();  // the caller's; never freed here
  // Records in the other's graph until that ends, if it still records this one.
  void join(FakeStream& other, uint64_t number);
  [[nodiscard]] uint64_t recording();  // the graph's number, or 0
  void replay(const Graph& graph);
  // A step of the graph that it records. Returns its place.
  size_t put_at_launch(std::function<Work()> make);
  void take_out(size_t step);

 private:
  void run();

  const uint32_t gpu_;
  const bool green_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool held_ = false;
  bool stop_ = false;
  bool busy_ = false;
  Graph* graph_ = nullptr;
  std::thread thread_;
};

}  // namespace towline::cuda::fake
