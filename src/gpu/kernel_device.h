// The GPU interface for kernels that work together: memory that other processes and GPUs map, words that the host
// shares with kernels, and launches in any stream. NVIDIA's driver implements it, and fake/ a model on processors.
//
// Control path: throws Error. noexcept: a Code, 0 or the vendor's. Any thread may call anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "gpu/device.h"

namespace towline::cuda {

// Memory on a GPU that others may map. It stays as long as anybody has it mapped, its maker or not.
class SharedPiece {
 public:
  SharedPiece() = default;
  SharedPiece(const SharedPiece&) = delete;
  SharedPiece& operator=(const SharedPiece&) = delete;
  virtual ~SharedPiece() = default;
  [[nodiscard]] virtual uint64_t address() const noexcept = 0;
  [[nodiscard]] virtual uint64_t bytes() const noexcept = 0;
  // For another process of the host.
  [[nodiscard]] virtual UniqueFd descriptor() const = 0;
  // Lets another GPU of this process reach it.
  virtual void let_reach(uint32_t gpu) = 0;
  // The application's own memory, which stays its: it can't be shared by descriptor.
  [[nodiscard]] virtual bool lent() const noexcept { return false; }
};

// Host memory that kernels read and write, zeroed.
class Words {
 public:
  Words() = default;
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  virtual ~Words() = default;
  [[nodiscard]] virtual void* host() const noexcept = 0;
  [[nodiscard]] virtual uint64_t gpu() const noexcept = 0;
};

// Where a graph has a Moment, as its device knows it: the record, and what that comes after. Null: nowhere yet.
struct ReplayPlace {
  void* record = nullptr;
  void* after = nullptr;
};

// A moment in a stream's work.
class Moment {
 public:
  static constexpr Code kBusy = -1;
  Moment() = default;
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;
  virtual ~Moment() = default;
  virtual Code record(void* stream) noexcept = 0;
  // Orders later work of the stream after it.
  virtual Code precede(void* stream) noexcept = 0;
  // In a graph, which the stream records: later work of each replay is ordered after the record that is the last when that
  // replay is launched, whether a stream's or another replay's.
  virtual Code precede_replays(void* stream) noexcept = 0;
  // Each replay records it once, after what the stream that records the graph holds now. `place` is the graph's: empty at first,
  // and later calls move the record. The graph's other work does not come after it.
  virtual Code record_in_replays(void* stream, ReplayPlace& place) noexcept = 0;
  // 0: reached, or never recorded.
  [[nodiscard]] virtual Code state() noexcept = 0;
};

// A stream of Towline's own: never ordered with the default stream. Going waits for its work.
class OwnStream {
 public:
  OwnStream() = default;
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  virtual ~OwnStream() = default;
  [[nodiscard]] virtual void* native() const noexcept = 0;
};

// While it lives, streams are there for calls of make_stream that are to come.
class StreamsAhead {
 public:
  StreamsAhead() = default;
  StreamsAhead(const StreamsAhead&) = delete;
  StreamsAhead& operator=(const StreamsAhead&) = delete;
  virtual ~StreamsAhead() = default;
};

// A kernel as processors run it: one block at a time, or those that wait for one another, of one thread.
using KernelModel = void (*)(const void* argument, uint32_t block, uint32_t blocks);

// Kernels with one argument.
struct KernelSet {
  std::span<const unsigned char> image;
  std::span<const char* const> names;
  std::span<const KernelModel> models;
  uint32_t argument_bytes = 0;
  uint32_t threads = 0;
  // Before a kernel touches memory it waits until the one ahead of it in the stream has ended: so it may be started
  // earlier than that, where the GPU can.
  bool wait_themselves = false;
};

struct Grid {
  uint32_t blocks = 1;
  uint32_t threads = 0;    // of a block; 0: the set's
  uint32_t meeting = 1;    // neighbouring blocks that wait for one another; divides those of the grid
  bool clustered = false;  // they are a cluster
};

// A set on one GPU.
class LoadedKernels {
 public:
  LoadedKernels() = default;
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;
  virtual ~LoadedKernels() = default;
  // Whether the GPU runs the kernel in clusters of so many blocks (up to 8), which begin together and near one another, and this
  // image has code for them. Not on GPUs with more than 8 groups of multiprocessors that are near one another.
  [[nodiscard]] virtual bool clusters(uint32_t kernel, uint32_t blocks) const noexcept = 0;
  // The argument is copied.
  virtual Code launch(uint32_t kernel, const void* argument, const Grid& grid, void* stream) noexcept = 0;
};

class KernelDevice {
 public:
  KernelDevice() = default;
  KernelDevice(const KernelDevice&) = delete;
  KernelDevice& operator=(const KernelDevice&) = delete;
  virtual ~KernelDevice() = default;

  // Must be called first; throws Error that says what is missing.
  virtual void start() = 0;
  [[nodiscard]] virtual const std::vector<Gpu>& gpus() const = 0;
  // The calling thread's, or 0.
  [[nodiscard]] virtual uint32_t current_gpu() const = 0;
  // Runs it with the GPU as the calling thread's, for libraries that look for one there.
  virtual void with_gpu(uint32_t gpu, const std::function<void()>& body) = 0;
  // Zeroed.
  virtual std::shared_ptr<SharedPiece> allocate(uint32_t gpu, uint64_t bytes) = 0;
  // Another process's piece, mapped for this GPU.
  virtual std::shared_ptr<SharedPiece> import(uint32_t gpu, const UniqueFd& descriptor, uint64_t bytes) = 0;
  virtual std::unique_ptr<Words> make_words(uint32_t gpu, uint64_t bytes) = 0;
  virtual std::unique_ptr<Moment> make_moment(uint32_t gpu) = 0;
  // If `wish` reserves multiprocessors, its kernels run on these alone.
  virtual std::unique_ptr<OwnStream> make_stream(uint32_t gpu, const ReserveWish& wish = {}) = 0;
  // So that the next `count` calls of make_stream without a wish ask the driver for nothing: it may wait for kernels that run.
  virtual std::unique_ptr<StreamsAhead> make_streams_ahead(uint32_t gpu, uint32_t count) = 0;
  // As Device has it.
  [[nodiscard]] virtual Reserve reserve(uint32_t gpu, const ReserveWish& wish) = 0;
  // Waits for all that this process has put onto the GPU: unmapping memory does not. Streams that record graphs
  // keep it from waiting, and what they record is spoilt.
  virtual void settle(uint32_t gpu) noexcept = 0;
  // The set outlives the process's use of it.
  virtual std::unique_ptr<LoadedKernels> load(uint32_t gpu, const KernelSet& set) = 0;
  // `graph`: the number of the graph that the stream records, or 0.
  [[nodiscard]] virtual StreamState stream_state(uint32_t gpu, void* stream, uint64_t& graph) = 0;
  // The same of a stream of make_stream's, which may have another context than its GPU's. 0 as well: the graph was spoilt.
  [[nodiscard]] virtual uint64_t recorded_graph(uint32_t gpu, void* stream) noexcept = 0;
  // Its memory is host memory: a model's.
  [[nodiscard]] virtual bool on_host() const noexcept { return false; }
  // Can kernels on this GPU use the address? Otherwise they would break the process's context.
  [[nodiscard]] virtual bool usable(uint32_t gpu, uint64_t address) const = 0;
  [[nodiscard]] virtual std::string code_text(Code code) const = 0;
};

// Throws Error where the driver is absent or too old.
KernelDevice& nvidia_kernel_device();

}  // namespace towline::cuda
