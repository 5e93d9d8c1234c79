// The GPU functions that Towline needs, behind one small interface: driver.h implements it with
// NVIDIA's driver, and fake/ one that keeps "GPU" memory in host memory, so that everything above it runs
// where there is no GPU.
//
// Addresses are GPU addresses as applications hold them. Control path: throws Error, naming the vendor's
// code. Data path (noexcept): a Code, 0 or the vendor's. Any thread may call anything; the calling thread's
// current GPU and context are left as found.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "gpu/copy_job.h"
#include "gpu/pinned_ranges.h"

namespace towline::cuda {

using Code = int32_t;  // 0: well

// Host memory is pinned and mapped by whole pages.
inline constexpr uint64_t kHostPage = 4096;
struct HostPages {
  uint64_t begin = 0;
  uint64_t end = 0;
  [[nodiscard]] uint64_t bytes() const noexcept { return end - begin; }
};
inline HostPages pages_around(uint64_t begin, uint64_t bytes) noexcept {
  return {begin / kHostPage * kHostPage, (begin + bytes + kHostPage - 1) / kHostPage * kHostPage};
}

// Names a GPU across processes: an ordinal depends on CUDA_VISIBLE_DEVICES.
using Uuid = std::array<uint8_t, 16>;
std::string uuid_text(const Uuid& uuid, bool partitioned = false);  // "GPU-xxxxxxxx-xxxx-...", "MIG-..."

struct Gpu {
  Uuid uuid = {};
  std::string name;
  uint32_t multiprocessors = 0;
  std::optional<uint32_t> host_node;  // of NUMA, the nearest
  std::string pci_address;            // "0000:04:00.0", as the kernel writes it; empty: not known
  // 128 aligned bytes that a warp stores with one instruction arrive whole in the memory of every other GPU of this process.
  bool whole_lines = false;
  bool partitioned = false;  // an instance that MIG made of a GPU, which reaches no other one's memory
};

enum class Where : uint8_t {
  kUnknown = 0,  // not known to the GPU's driver: plain host memory, or nothing at all
  kHost = 1,     // pinned
  kGpu = 2,
  kManaged = 3,
};

enum class Sharing : uint8_t {
  kNone = 0,
  kDescriptor = 1,  // by file descriptor
  kHandle = 2,      // by 64 bytes
  kHostFile = 3,    // host memory that lies in a file
};

// The call that made memory on a GPU, which decides how another GPU gets to reach it.
enum class Made : uint8_t {
  kPlain = 0,   // cudaMalloc: contexts that have peer access reach it
  kMapped = 1,  // cuMemMap: GPUs that have access to the mapping
  kPool = 2,    // cudaMallocAsync: GPUs that have access to the pool
};

// The access that a GPU makes to memory, or may make.
enum class Use : uint8_t {
  kRead = 0,
  kWrite = 1,  // and read
};

// The allocation that an address lies in, as whole.
struct Allocation {
  Where where = Where::kUnknown;
  uint32_t gpu = 0;  // ordinal here
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;  // of this process; another allocation at the same address has another
  Made made = Made::kPlain;
  Sharing sharing = Sharing::kNone;
  std::string why_not;  // it can't be shared
};

// A part of a region as its owner gives it to a peer.
struct Shared {
  Sharing sharing = Sharing::kNone;
  uint64_t address = 0;  // at the owner: of the whole allocation
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint64_t file_offset = 0;             // kHostFile: of address
  std::array<uint8_t, 64> handle = {};  // kHandle
  UniqueFd fd;                          // kDescriptor, kHostFile
};

// Memory of a peer, mapped for one of this process's GPUs until this is destroyed.
class Mapped {
 public:
  Mapped() = default;
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  virtual ~Mapped() = default;
  [[nodiscard]] virtual uint64_t address() const noexcept = 0;  // of the first part's first byte
};

// Host memory that GPUs reach, until this goes. `delta`: what to add to a host address. For Use::kRead it may be
// memory that the application has pinned for reading only.
class Pinned {
 public:
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  virtual ~Pinned() = default;
  [[nodiscard]] virtual uint64_t delta() const noexcept = 0;
  [[nodiscard]] virtual Use use() const noexcept { return Use::kWrite; }
  // The end of what was pinned in one piece with this address: the copy engine can't go beyond it at a time.
  [[nodiscard]] virtual uint64_t end_of(uint64_t /*address*/) const noexcept { return UINT64_MAX; }
};

// Memory on a GPU that other devices, such as NICs, can fill, until this goes.
class DmaMemory {
 public:
  DmaMemory() = default;
  DmaMemory(const DmaMemory&) = delete;
  DmaMemory& operator=(const DmaMemory&) = delete;
  virtual ~DmaMemory() = default;
  [[nodiscard]] virtual uint64_t address() const noexcept = 0;
  [[nodiscard]] virtual uint64_t bytes() const noexcept = 0;
  // By which the kernel knows it; this object's.
  [[nodiscard]] virtual int dma_buf() const noexcept = 0;
  // The processor's address of it; null: none.
  [[nodiscard]] virtual void* host() const noexcept { return nullptr; }
};

// Memory of the application on a GPU as a dma-buf, which begins at or before it.
struct DmaExport {
  UniqueFd dma_buf;
  uint64_t offset = 0;  // of the memory in it
};

// Multiprocessors that the application leaves to copies (a green context), so that these need not wait for its
// own blocks to end.
struct ReserveWish {
  uint32_t sms = 0;              // so many: the application takes the others
  uint32_t application_sms = 0;  // those that a context of so many, made by the application, leaves over
  uint64_t context = 0;          // those of this CUgreenCtx, which the application has made for us and keeps
  [[nodiscard]] bool any() const noexcept { return sms != 0 || application_sms != 0 || context != 0; }
  auto operator<=>(const ReserveWish&) const = default;
};
struct Reserve {
  uint32_t sms = 0;
  std::string why_not;  // why nothing is reserved
};

// Work for one GPU, in order. One thread at a time, but for release_list. Going waits for what was begun.
class CopyQueue {
 public:
  static constexpr uint32_t kSlots = 256;

  // Room for a list: written by the host, read by the GPU once it was uploaded.
  struct List {
    void* host = nullptr;
    uint64_t gpu = 0;
    uint64_t bytes = 0;
    uint64_t node = 0;  // the queue's
  };

  CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  virtual ~CopyQueue() = default;

  virtual List make_list(uint64_t bytes) = 0;  // throws Error
  virtual void release_list(const List& list) noexcept = 0;
  virtual Code upload(const List& list) noexcept = 0;

  // Begin work that ends with `value` in flag(slot). Several may be in flight with different slots.
  virtual Code launch(const CopyJob& job, uint32_t blocks, uint32_t slot, uint64_t value) noexcept = 0;
  // With the copy engine, one range after the other.
  struct Range {
    uint64_t to = 0;
    uint64_t from = 0;
    uint64_t bytes = 0;
  };
  virtual Code copy(std::span<const Range> ranges, uint32_t slot, uint64_t value) noexcept = 0;

  // In two steps (to_host.h): gathers what the job writes, kStagingBytes at most, in memory on the GPU, and sends
  // ranges of it on by the copy engine; their `from` count from the job's begin. Jobs go one after the other.
  static constexpr uint64_t kStagingBytes = 8 << 20;
  virtual void make_staging() = 0;  // before the first; throws Error
  virtual Code relay(const CopyJob& job, uint32_t blocks, std::span<const Range> ranges) noexcept = 0;
  [[nodiscard]] virtual uint64_t relays_begun() const noexcept = 0;
  [[nodiscard]] virtual uint64_t relays_sent()
      const noexcept = 0;  // of those, in order: their ranges are there
  [[nodiscard]] uint64_t relays_under_way() const noexcept { return relays_begun() - relays_sent(); }
  // Ends with `value` in flag(slot) after all that was relayed.
  virtual Code mark(uint32_t slot, uint64_t value) noexcept = 0;
  // On which its kernels run; 0: on whichever are free.
  [[nodiscard]] virtual uint32_t reserved_sms() const noexcept = 0;
  [[nodiscard]] virtual const std::atomic<uint64_t>& flag(uint32_t slot) const noexcept = 0;
  // 0: idle, all flags are set; kBusy; anything else: broken, nothing more lands.
  static constexpr Code kBusy = -1;
  [[nodiscard]] virtual Code state() noexcept = 0;
  // Waits until nothing is in flight.
  virtual Code drain() noexcept = 0;
  // Orders later work of the application's stream after the queue's work.
  virtual Code precede(void* stream) noexcept = 0;
};

// Work in the application's streams checks a valve before it moves anything: such a run begins when its stream
// reaches it, which may be late, often (in a graph), or never. A valve's words are never freed, so a run that
// comes after everything else was destroyed finds it closed.
//
// After close(), once quiet() is true, nothing moves any more. One thread at a time may launch; any thread
// may call the rest.
class Valve {
 public:
  Valve() = default;
  Valve(const Valve&) = delete;
  Valve& operator=(const Valve&) = delete;
  virtual ~Valve() = default;

  // Puts a run into the stream, or into the graph that it records. Runs of one valve don't overlap. Refused, the
  // valve is not to be launched again.
  virtual Code launch(const CopyJob& job, uint32_t blocks, void* stream) noexcept = 0;
  // Orders later work of the stream after the last launch; if that was captured in a graph, the stream must
  // be recording the same graph.
  virtual Code precede(void* stream) noexcept = 0;
  virtual void close() noexcept = 0;
  // Nothing that was launched can still come.
  virtual void open() noexcept = 0;
  [[nodiscard]] virtual uint64_t launched() const noexcept = 0;  // not counting graphs
  [[nodiscard]] virtual uint64_t begun() const noexcept = 0;
  [[nodiscard]] virtual uint64_t ended() const noexcept = 0;
  [[nodiscard]] virtual uint64_t refused() const noexcept = 0;  // of those that ended
  [[nodiscard]] virtual bool quiet() const noexcept = 0;        // no run is in progress
};

// An application's stream as a GPU sees it.
enum class StreamState : uint8_t {
  kRuns = 0,
  kRecords = 1,  // a graph
  kForeign = 2,  // of another GPU or context
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Makes the driver ready for this process, once; everything below needs it. Throws Error that says what is
  // missing.
  virtual void start() = 0;
  // Loads the kernels for a GPU, once. Drivers load only when no kernel runs there: left to the first copy, it would
  // wait for one that may be waiting for that very copy. Throws Error.
  virtual void load(uint32_t gpu) = 0;
  [[nodiscard]] virtual const std::vector<Gpu>& gpus() const noexcept = 0;
  // Throws Error unless this process sees a GPU of that number.
  void check_gpu(uint64_t gpu) const;
  // Does this process use the GPU already? No context is made by asking.
  [[nodiscard]] virtual bool in_use(uint32_t gpu) const noexcept = 0;
  [[nodiscard]] virtual Allocation look_up(uint64_t address) const = 0;
  // As look_up(), but only where the allocation lies, at a fraction of the time: for the data path.
  [[nodiscard]] virtual Allocation locate(uint64_t address) const { return look_up(address); }
  [[nodiscard]] virtual Shared share(const Allocation& allocation) const = 0;
  // Neighbouring parts of one owner, in order, mapped as one range that `gpu` reaches.
  virtual std::unique_ptr<Mapped> map(uint32_t gpu, std::span<const Shared> parts, bool writable) = 0;
  // Lets `gpu` reach memory of this process, however it was allocated. Throws Error if it can't, or must not.
  void reach(uint32_t gpu, uint64_t address, uint64_t bytes, Use use);
  // The host and GPUs reach pinned memory at the same addresses.
  [[nodiscard]] virtual bool same_addresses() const noexcept = 0;
  // False: they certainly have no path. No context is made by asking.
  [[nodiscard]] virtual bool may_reach(uint32_t gpu, const Uuid& other) const noexcept = 0;
  // Null: it is not pinned.
  virtual std::unique_ptr<Pinned> find_pinned(uint64_t address, uint64_t bytes) = 0;
  // For reading and writing, what is not pinned yet. Memory of the application is pinned by pinned_ranges().
  virtual std::unique_ptr<Pinned> pin(uint64_t address, uint64_t bytes) = 0;
  // To let go of what is pinned waits until no kernel runs, and no launch of the process goes ahead meanwhile.
  [[nodiscard]] virtual bool unpinning_waits() const noexcept = 0;
  [[nodiscard]] PinnedRanges& pinned_ranges() noexcept { return pinned_ranges_; }
  // At least so many bytes. Throws Error that says what the GPU, its driver or the kernel lack.
  virtual std::unique_ptr<DmaMemory> make_dma_memory(uint32_t gpu, uint64_t bytes) = 0;
  // Memory of this process that is all on that GPU. Throws in the same way.
  [[nodiscard]] virtual DmaExport export_memory(uint32_t gpu, uint64_t address, uint64_t bytes) = 0;
  // after_default: work on the queue comes after what the application has put on the GPU's default stream
  // before, and what it puts there later comes after that work. Such a queue reserves nothing.
  // urgent: it never stands behind work of a queue that is not.
  virtual std::unique_ptr<CopyQueue> make_queue(uint32_t gpu, bool after_default,
                                                const ReserveWish& wish = {}, bool urgent = false) = 0;
  // The reservation that a request gets on that GPU. Made once for the process, and kept.
  [[nodiscard]] virtual Reserve reserve(uint32_t gpu, const ReserveWish& wish) = 0;
  [[nodiscard]] virtual StreamState stream_state(uint32_t gpu, void* stream) = 0;  // throws Error
  // An open one, of which nothing is under way. It lives as long as the process.
  virtual Valve& take_valve(uint32_t gpu) = 0;
  // It was never launched into a graph. It is taken again once all that was launched has ended.
  virtual void give_valve_back(Valve& valve) noexcept = 0;
  [[nodiscard]] virtual std::string code_text(Code code) const = 0;  // "CUDA_ERROR_ILLEGAL_ADDRESS (700)"

 protected:
  // The steps of reach(). For Made::kPlain memory: lets a GPU's context reach the other's memory.
  virtual void enable_peer(uint32_t gpu, uint32_t other) = 0;
  // For other memory: returns the GPU's access, and grants read and write access if it has none.
  [[nodiscard]] virtual std::optional<Use> access(uint32_t gpu, const Allocation& allocation) const = 0;
  virtual void grant(uint32_t gpu, const Allocation& allocation) = 0;

 private:
  PinnedRanges pinned_ranges_;
};

}  // namespace towline::cuda
