#include "gpu/fake/fake_device.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <thread>

#include "base/error.h"
#include "gpu/fake/fake_dma_memory.h"
#include "memory/shared_memory.h"

namespace towline::cuda::fake {

namespace {

// The pinned ranges, as a driver knows them: without their purpose.
class Registry {
 public:
  void add(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (at(address) != 0) fail(Status::kIo, "fake GPU: pinning host memory: pinned already");
    ranges_[address] = address + bytes;
  }
  void remove(uint64_t address) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(address);
  }
  // No range begins or ends within.
  [[nodiscard]] bool one_piece(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (const uint64_t end = at(address); end != 0) return end >= address + bytes;
    const auto next = ranges_.lower_bound(address);
    return next == ranges_.end() || next->first >= address + bytes;
  }
  [[nodiscard]] uint64_t end_at(uint64_t address) {  // 0: not pinned there
    const std::lock_guard lock(mutex_);
    return at(address);
  }

 private:
  [[nodiscard]] uint64_t at(uint64_t address) const {
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return 0;
    const uint64_t end = std::prev(after)->second;
    return end > address ? end : 0;
  }
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> ranges_;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

// ---- queues

constexpr Code kNoMemory = 2;
constexpr Code kIllegalAddress = 700;
constexpr Code kInvalidHandle = 400;

template <Form kForm>
Code run_form(uint32_t gpu, const CopyJob& job) {
  for (uint64_t i = 0; i < chunks_of(job); ++i) {
    const Chunk chunk = find_chunk<kForm>(job, i);
    if (job.aligned != 0 && ((chunk.to | chunk.from | chunk.bytes) & 15) != 0)
      std::abort();  // the kernel would fault
    if (!faults().may_touch(gpu, chunk.to) || !faults().may_touch(gpu, chunk.from)) return kIllegalAddress;
    std::memmove(reinterpret_cast<void*>(chunk.to), reinterpret_cast<const void*>(chunk.from), chunk.bytes);
  }
  return 0;
}

Code run(uint32_t gpu, const CopyJob& job) {
  switch (job.form) {
    case Form::kStrided:
      return run_form<Form::kStrided>(gpu, job);
    case Form::kPairs:
      return run_form<Form::kPairs>(gpu, job);
    case Form::kPieces:
      return run_form<Form::kPieces>(gpu, job);
  }
  return 1;
}

FakeStream& stream_of(void* stream) {
  static FakeStream standard(0);
  return stream == nullptr ? standard : *static_cast<FakeStream*>(stream);
}

// The kernel's part is what one run does.
class FakeValve final : public Valve {
 public:
  Code launch(const CopyJob& job, uint32_t blocks, void* stream) noexcept override try {
    if (blocks == 0 || job.pieces == 0) return 1;
    if (const Code refusal = faults().take_refusal(); refusal != 0) return refusal;
    if (broken_) return 1;
    FakeStream& theirs = stream_of(stream);
    if (const Code refusal = faults().take_refusal_behind_valve(); refusal != 0) {
      broken_ = true;
      theirs.put([this] { ++begun_; });
      return refusal;
    }
    capture_ = theirs.recording();
    if (capture_ == 0) ++launched_;
    stream_ = &theirs;
    theirs.put([this, job] { run_once(job); });
    return 0;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  Code precede(void* stream) noexcept override {
    FakeStream& theirs = stream_of(stream);
    if (theirs.recording() != capture_) return 1;
    // Another stream's: what it has to come after is counted.
    if (&theirs != stream_)
      theirs.put([this, all = launched_.load()] {
        while (ended_ < all) ended_.wait(ended_);
      });
    return 0;
  }
  void close() noexcept override { closed_ = true; }
  void open() noexcept override { closed_ = false; }
  [[nodiscard]] uint64_t launched() const noexcept override { return launched_; }
  [[nodiscard]] uint64_t begun() const noexcept override { return begun_; }
  [[nodiscard]] uint64_t ended() const noexcept override { return ended_; }
  [[nodiscard]] uint64_t refused() const noexcept override { return refused_; }
  [[nodiscard]] bool quiet() const noexcept override { return broken_ || begun_ == ended_; }

  void give_back() noexcept { free_ = true; }
  bool take() noexcept {
    if (!free_ || broken_ || ended_ != launched_) return false;
    free_ = false;
    open();
    return true;
  }

 private:
  void run_once(const CopyJob& job) {
    ++begun_;
    const bool moves = !closed_;
    faults().launches.pass();
    if (moves)
      (void)run(stream_->gpu(), job);
    else
      ++refused_;
    ++ended_;
    ended_.notify_all();
  }

  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> launched_{0};
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> refused_{0};
  uint64_t capture_ = 0;
  FakeStream* stream_ = nullptr;
  bool free_ = true;
  std::atomic<bool> broken_{false};
};

class FakeQueue;

// The queues without a thread, in the order in which they were made.
struct QueuesByHand {
  std::mutex mutex;
  std::vector<FakeQueue*> queues;
};

QueuesByHand& queues_by_hand() {
  static QueuesByHand instance;
  return instance;
}

class FakeQueue final : public CopyQueue {
 public:
  FakeQueue(uint32_t gpu, uint32_t reserved)
      : gpu_(gpu), reserved_(reserved), by_hand_(faults().is_by_hand()) {
    if (by_hand_) {
      const std::lock_guard lock(queues_by_hand().mutex);
      queues_by_hand().queues.push_back(this);
    } else {
      thread_ = std::thread([this] { work(); });
    }
  }
  ~FakeQueue() override {
    (void)drain();
    if (by_hand_) {
      const std::lock_guard lock(queues_by_hand().mutex);
      std::erase(queues_by_hand().queues, this);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Carries out the next thing. False: nothing is queued.
  bool step() {
    std::unique_lock lock(mutex_);
    if (pending_.empty()) return false;
    next(lock);
    return true;
  }

  List make_list(uint64_t bytes) override {
    // The GPU's copy is another memory, so that what was not uploaded shows.
    return {new uint8_t[bytes](), reinterpret_cast<uint64_t>(new uint8_t[bytes]()), bytes, 0};
  }
  void release_list(const List& list) noexcept override {
    {
      // Whatever is on its way goes nowhere.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return sending_ != list.gpu; });
      count_out(std::erase_if(pending_, [&](const Work& work) { return work.list.gpu == list.gpu; }));
    }
    delete[] static_cast<uint8_t*>(list.host);
    delete[] reinterpret_cast<uint8_t*>(list.gpu);
  }
  Code upload(const List& list) noexcept override {
    Work work{};
    work.list = list;
    const std::lock_guard lock(mutex_);
    if (broken_ != 0) return broken_;
    give(work);
    return 0;
  }
  Code launch(const CopyJob& job, uint32_t blocks, uint32_t slot, uint64_t value) noexcept override {
    if (blocks == 0 || job.pieces == 0) return 1;
    const Code code = enqueue({job, slot, value, {}});
    if (code == 0) faults().note_launch();
    return code;
  }
  Code copy(std::span<const Range> ranges, uint32_t slot, uint64_t value) noexcept override {
    for (const Range& range : ranges)
      if (!registry().one_piece(range.to, range.bytes) || !registry().one_piece(range.from, range.bytes))
        return 1;  // a driver takes that for a mistake
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& range = ranges[i];
      Work work{{}, i + 1 == ranges.size() ? slot : kSlots, value, {}};
      work.job.form = Form::kStrided;
      work.job.end = work.job.piece_bytes = range.bytes;
      work.job.chunk_bytes = 1u << 30;
      work.job.chunks_per_piece = static_cast<uint32_t>(range.bytes / work.job.chunk_bytes + 1);
      work.job.pieces = 1;
      work.job.to.address = range.to;
      work.job.from.address = range.from;
      if (const Code code = enqueue(work); code != 0) return code;
    }
    return 0;
  }
  void make_staging() override {
    if (faults().full()) fail(Status::kOutOfMemory, "fake GPU: no room for staging memory");
    if (staging_.empty()) staging_.resize(2 * kStagingBytes);
  }
  Code relay(const CopyJob& job, uint32_t blocks, std::span<const Range> ranges) noexcept override {
    if (blocks == 0 || job.pieces == 0 || job.end - job.begin > kStagingBytes) return 1;
    const uint64_t slot = reinterpret_cast<uint64_t>(staging_.data()) + relays_ % 2 * kStagingBytes;
    CopyJob mine = job;
    mine.to_shift = slot - job.begin;
    if (const Code code = enqueue({mine, kSlots, 0, {}}); code != 0) return code;
    std::vector<Range> sent(ranges.begin(), ranges.end());
    for (Range& range : sent) range.from += slot;
    ++relays_;
    if (const Code code = copy(sent, kSlots, 0); code != 0) return code;
    faults().note_gathered(job.end - job.begin);
    return enqueue({{}, kSentFlag, relays_, {}});
  }
  [[nodiscard]] uint64_t relays_begun() const noexcept override { return relays_; }
  [[nodiscard]] uint64_t relays_sent() const noexcept override { return flag(kSentFlag); }
  Code mark(uint32_t slot, uint64_t value) noexcept override { return enqueue({{}, slot, value, {}}); }
  [[nodiscard]] uint32_t reserved_sms() const noexcept override { return reserved_; }
  [[nodiscard]] const std::atomic<uint64_t>& flag(uint32_t slot) const noexcept override {
    // Without a thread, time passes by being looked at: a caller that only polls gets there.
    constexpr uint64_t kLooksForOne = 500;
    if (by_hand_ && ++looks_ % kLooksForOne == 0) const_cast<FakeQueue*>(this)->step();
    return flags_[slot];
  }
  [[nodiscard]] Code state() noexcept override {
    const std::lock_guard lock(mutex_);
    if (broken_ != 0) return broken_;
    return pending_.empty() && !running_ ? 0 : kBusy;
  }
  Code drain() noexcept override {
    while (by_hand_ && step()) continue;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pending_.empty() && !running_; });
    return broken_;
  }
  Code precede(void* stream) noexcept override {
    const std::lock_guard lock(mutex_);
    stream_of(stream).put([this, all = given_] {
      std::unique_lock waiting(mutex_);
      changed_.wait(waiting, [&] { return over_ >= all || broken_ != 0; });
    });
    return 0;
  }

 private:
  struct Work {
    CopyJob job;
    uint32_t slot;
    uint64_t value;
    List list;  // to be sent, and nothing else
  };

  void give(const Work& work) {
    pending_.push_back(work);
    ++given_;
    if (!by_hand_) ++faults().queued;
    changed_.notify_all();
  }
  void count_out(uint64_t works) noexcept {
    if (!by_hand_) faults().queued -= works;
  }
  Code enqueue(const Work& work) {
    if (const Code refusal = faults().take_refusal(); refusal != 0) return refusal;
    const std::lock_guard lock(mutex_);
    if (broken_ != 0) return broken_;
    give(work);
    return 0;
  }

  Code carry_out(const Work& next) {
    if (next.list.host != nullptr) {
      faults().lists.pass();
      std::memcpy(reinterpret_cast<void*>(next.list.gpu), next.list.host, next.list.bytes);
      return 0;
    }
    faults().launches.pass();
    if (const Code broken = faults().take_break(); broken != 0) return broken;
    if (const Code broken = run(gpu_, next.job); broken != 0) return broken;
    if (next.slot != kSlots) flags_[next.slot].store(next.value, std::memory_order_release);
    return 0;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !pending_.empty(); });
      if (stop_) return;
      next(lock);
    }
  }

  // Under the lock, which it gives up meanwhile.
  void next(std::unique_lock<std::mutex>& lock) {
    const Work next = pending_.front();
    pending_.pop_front();
    running_ = true;
    sending_ = next.list.gpu;
    lock.unlock();
    const Code broken = carry_out(next);
    lock.lock();
    running_ = false;
    sending_ = 0;
    ++over_;
    count_out(1);
    if (broken != 0) {
      broken_ = broken;
      count_out(pending_.size());
      pending_.clear();
    }
    changed_.notify_all();
  }

  static constexpr uint32_t kSentFlag = kSlots + 1;  // kSlots: nobody's

  const uint32_t gpu_;
  const uint32_t reserved_;
  const bool by_hand_;
  std::vector<uint8_t> staging_;
  uint64_t relays_ = 0;
  mutable std::atomic<uint64_t> looks_{0};  // at flags
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> pending_;
  uint64_t given_ = 0;
  uint64_t over_ = 0;
  uint64_t sending_ = 0;  // a list
  bool running_ = false;
  bool stop_ = false;
  Code broken_ = 0;
  std::array<std::atomic<uint64_t>, kSentFlag + 1> flags_ = {};
  std::thread thread_;
};

}  // namespace

bool step(uint64_t number) {
  QueuesByHand& all = queues_by_hand();
  const std::lock_guard lock(all.mutex);
  return !all.queues.empty() && all.queues[number % all.queues.size()]->step();
}

namespace {

// ---- memory

struct Vma {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t inode = 0;
  bool memfd = false;
};

Vma find_vma(uint64_t address) {
  Vma found;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return found;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long inode = 0;
    char access[8] = "";
    char name[256] = "";
    if (std::sscanf(line, "%lx-%lx %7s %*x %*s %lu %255s", &begin, &end, access, &inode, name) < 4) continue;
    if (address < begin || address >= end) continue;
    if (access[0] == 'r') found = {begin, end, inode, std::strncmp(name, "/memfd:", 7) == 0};
    break;
  }
  std::fclose(maps);
  return found;
}

class Files : public Mapped {
 public:
  Files(std::span<const Shared> parts, bool writable) {
    for (const Shared& part : parts) bytes_ += part.bytes;
    base_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) fail_errno(errno, "fake GPU: reserving {} bytes", bytes_);
    uint64_t at = 0;
    for (const Shared& part : parts) {
      const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
      if (mmap(static_cast<uint8_t*>(base_) + at, part.bytes, access, MAP_SHARED | MAP_FIXED, part.fd.get(),
               static_cast<off_t>(part.file_offset)) == MAP_FAILED) {
        const int error = errno;
        munmap(base_, bytes_);
        fail_errno(error, "fake GPU: mapping a part of {} bytes", part.bytes);
      }
      at += part.bytes;
    }
  }
  ~Files() override { munmap(base_, bytes_); }
  [[nodiscard]] uint64_t address() const noexcept override { return reinterpret_cast<uint64_t>(base_); }

 private:
  void* base_ = nullptr;
  uint64_t bytes_ = 0;
};

class AsItLies : public Mapped {
 public:
  explicit AsItLies(uint64_t address) : address_(address) {}
  [[nodiscard]] uint64_t address() const noexcept override { return address_; }

 private:
  uint64_t address_;
};

class Registered : public Pinned {
 public:
  Registered(uint64_t address, uint64_t bytes) : address_(address) { registry().add(address, bytes); }
  ~Registered() override {
    registry().remove(address_);
    faults().note_unpin();
  }
  [[nodiscard]] uint64_t delta() const noexcept override { return 0; }

 private:
  const uint64_t address_;
};

class PinnedAlready : public Pinned {
 public:
  explicit PinnedAlready(Use use) : use_(use) {}
  [[nodiscard]] uint64_t delta() const noexcept override { return 0; }
  [[nodiscard]] Use use() const noexcept override { return use_; }

 private:
  const Use use_;
};

class FakeDevice final : public Device {
 public:
  FakeDevice() {
    for (uint8_t i = 0; i < 2; ++i) {
      Gpu gpu;
      gpu.uuid.fill(static_cast<uint8_t>(0xf0 + i));
      gpu.name = "fake GPU";
      gpu.multiprocessors = 4;
      gpu.pci_address = fmt::format("0000:f{}:00.0", i);
      gpus_.push_back(gpu);
      gpu.multiprocessors = 132;
      large_.push_back(gpu);
    }
  }

  void start() override {}
  void load(uint32_t gpu) override { faults().note_load(gpu); }
  [[nodiscard]] const std::vector<Gpu>& gpus() const noexcept override {
    return faults().large() ? large_ : gpus_;
  }
  [[nodiscard]] bool in_use(uint32_t) const noexcept override { return true; }
  [[nodiscard]] bool same_addresses() const noexcept override { return true; }

  [[nodiscard]] Allocation look_up(uint64_t address) const override {
    const Vma vma = find_vma(address);
    if (vma.end == 0 || faults().forgotten(address)) return {};
    Allocation result;
    result.where = Where::kGpu;
    result.gpu = faults().gpu_of(address);
    result.address = vma.begin;
    result.bytes = vma.end - vma.begin;
    result.id = vma.memfd ? vma.inode : vma.begin;
    result.made = faults().made(address);
    result.sharing = vma.memfd ? Sharing::kDescriptor : Sharing::kHandle;
    return result;
  }

  [[nodiscard]] Shared share(const Allocation& allocation) const override {
    Shared shared;
    shared.sharing = allocation.sharing;
    shared.address = allocation.address;
    shared.bytes = allocation.bytes;
    shared.id = allocation.id;
    const auto process = static_cast<uint64_t>(getpid());
    std::memcpy(shared.handle.data(), &process, sizeof process);
    if (allocation.sharing == Sharing::kHandle) return shared;
    std::string why;
    const SharedRange range =
        find_shared_range(reinterpret_cast<const void*>(allocation.address), allocation.bytes, why);
    if (range.file == nullptr) fail(Status::kUnsupported, "fake GPU: {}", why);
    shared.fd = duplicate_fd(range.file->fd());
    shared.file_offset = range.offset;
    return shared;
  }

  std::unique_ptr<Mapped> map(uint32_t, std::span<const Shared> parts, bool writable) override {
    if (faults().separated()) fail(Status::kUnsupported, "fake GPU: no path between the GPUs");
    if (faults().full()) fail(Status::kOutOfMemory, "fake GPU: no room to map a peer's memory");
    const Shared& first = parts.front();
    if (first.sharing == Sharing::kDescriptor) return std::make_unique<Files>(parts, writable);
    uint64_t process = 0;
    std::memcpy(&process, first.handle.data(), sizeof process);
    if (process != static_cast<uint64_t>(getpid()))
      fail(Status::kUnsupported, "fake GPU: a handle works in its own process only");
    return std::make_unique<AsItLies>(first.address);
  }

  [[nodiscard]] bool may_reach(uint32_t, const Uuid&) const noexcept override {
    return !faults().separated();
  }
  std::unique_ptr<Pinned> find_pinned(uint64_t address, uint64_t bytes) override {
    if (faults().pinned_for_reading(address)) return std::make_unique<PinnedAlready>(Use::kRead);
    const uint64_t end = registry().end_at(address);
    if (end == 0) return nullptr;
    if (end < address + bytes) fail(Status::kUnsupported, "fake GPU: only a part is pinned");
    return std::make_unique<PinnedAlready>(Use::kWrite);
  }
  std::unique_ptr<Pinned> pin(uint64_t address, uint64_t bytes) override {
    if (!find_vma(address).memfd) {
      faults().pins.pass();
      if (faults().pins_refused()) fail(Status::kIo, "fake GPU: pinning host memory: refused");
    } else if (faults().pools_refused()) {
      fail(Status::kOutOfMemory, "fake GPU: no room to pin staging memory");
    }
    return std::make_unique<Registered>(address, bytes);
  }
  [[nodiscard]] bool unpinning_waits() const noexcept override { return faults().unpinning_waits(); }
  std::unique_ptr<DmaMemory> make_dma_memory(uint32_t, uint64_t bytes) override {
    if (faults().dma_refused()) fail(Status::kUnsupported, "fake GPU: no memory that is a dma-buf");
    return std::make_unique<FakeDmaMemory>(bytes);
  }
  // As the driver does it: in whole pages. A memfd stands for the dma-buf where the kernel makes none; tests can map either.
  [[nodiscard]] DmaExport export_memory(uint32_t gpu, uint64_t address, uint64_t bytes) override {
    if (faults().dma_refused())
      fail(Status::kUnsupported, "fake GPU {}: cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)",
           gpu);
    const uint64_t begin = address / kHostPage * kHostPage;
    std::string why;
    const SharedRange range =
        find_shared_range(reinterpret_cast<const void*>(begin), address + bytes - begin, why);
    if (range.file == nullptr) fail(Status::kUnsupported, "fake GPU {}: no dma-buf: {}", gpu, why);
    faults().note_export();
    return {dma_buf_of(range.file->fd()), range.offset + (address - begin)};
  }
  std::unique_ptr<CopyQueue> make_queue(uint32_t gpu, bool after_default, const ReserveWish& wish,
                                        bool) override {
    if (faults().streams_refused(gpu)) fail(Status::kOutOfMemory, "fake GPU: no stream on GPU {}", gpu);
    return std::make_unique<FakeQueue>(gpu, after_default ? 0 : reserve(gpu, wish).sms);
  }
  // Each of the fake's four multiprocessors is an application's or ours.
  [[nodiscard]] Reserve reserve(uint32_t gpu, const ReserveWish& wish) override {
    if (!wish.any()) return {0, "not asked for"};
    const uint32_t all = gpus_[gpu].multiprocessors;
    if (wish.context != 0) {
      // Fakes of green contexts: their number is that of their multiprocessors.
      if (wish.context > all) return {0, "fake GPU: CUDA_ERROR_INVALID_HANDLE (400)"};
      return {static_cast<uint32_t>(wish.context), {}};
    }
    if (wish.sms + wish.application_sms >= all)
      return {0, fmt::format("fake GPU: {} of {} multiprocessors leave none", wish.sms + wish.application_sms,
                             all)};
    return {wish.sms != 0 ? wish.sms : all - wish.application_sms, {}};
  }
  [[nodiscard]] StreamState stream_state(uint32_t gpu, void* stream) override {
    if (stream != nullptr && !FakeStream::lives(stream))
      fail(Status::kInvalidArgument, "cuda: there is no stream {}: it was destroyed, or never was one ({})",
           fmt::ptr(stream), code_text(kInvalidHandle));
    FakeStream& theirs = stream_of(stream);
    if (stream != nullptr && theirs.gpu() != gpu) return StreamState::kForeign;
    return theirs.recording() != 0 ? StreamState::kRecords : StreamState::kRuns;
  }
  Valve& take_valve(uint32_t) override {
    const std::lock_guard lock(valves_mutex_);
    for (FakeValve& valve : valves_)
      if (valve.take()) return valve;
    (void)valves_.emplace_back().take();
    return valves_.back();
  }
  void give_valve_back(Valve& valve) noexcept override {
    const std::lock_guard lock(valves_mutex_);
    static_cast<FakeValve&>(valve).give_back();
  }
  [[nodiscard]] std::string code_text(Code code) const override {
    return fmt::format("FAKE_ERROR ({})", code);
  }

 protected:
  void enable_peer(uint32_t gpu, uint32_t other) override {
    check_path(gpu, other);
    faults().enable_peer(gpu, other);
  }
  [[nodiscard]] std::optional<Use> access(uint32_t gpu, const Allocation& allocation) const override {
    return faults().access(gpu, allocation.address);
  }
  void grant(uint32_t gpu, const Allocation& allocation) override {
    check_path(gpu, allocation.gpu);
    faults().allow(gpu, allocation.address);
  }

 private:
  static void check_path(uint32_t gpu, uint32_t other) {
    if (gpu != other && faults().separated())
      fail(Status::kUnsupported, "fake GPU: no path between GPUs {} and {}", gpu, other);
  }

  std::vector<Gpu> gpus_;
  std::vector<Gpu> large_;  // the same, where tests enlarge them
  std::mutex valves_mutex_;
  std::deque<FakeValve> valves_;
};

}  // namespace

Device& fake_device() {
  static FakeDevice device;
  return device;
}

}  // namespace towline::cuda::fake
