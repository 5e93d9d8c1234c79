// KernelDevice over NVIDIA's driver.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu/driver.h"
#include "gpu/driver_queue.h"
#include "gpu/driver_spares.h"
#include "gpu/driver_streams.h"
#include "gpu/kernel_device.h"

namespace towline::cuda {
namespace {

using driver::Api;

class MappedPiece final : public SharedPiece {
 public:
  // Takes the handle.
  MappedPiece(const Api& api, uint32_t gpu, driver::Handle handle, uint64_t bytes)
      : api_(api), handle_(handle), bytes_(bytes) {
    try {
      api_.check(api_.vmm_reserve(&base_, bytes_, 0, 0, 0), "reserving addresses");
      api_.check(api_.vmm_map(base_, bytes_, 0, handle_, 0), "mapping GPU memory");
      mapped_ = true;
      MappedPiece::let_reach(gpu);
    } catch (...) {
      undo();
      throw;
    }
  }
  ~MappedPiece() override { undo(); }
  [[nodiscard]] uint64_t address() const noexcept override { return base_; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] UniqueFd descriptor() const override {
    int fd = -1;
    api_.check(api_.vmm_export(&fd, handle_, driver::kHandlePosixFd, 0),
               "exporting GPU memory as a file descriptor");
    return UniqueFd(fd);
  }
  void let_reach(uint32_t gpu) override {
    // Two calls at once over the same addresses end in CUDA_ERROR_ALREADY_MAPPED.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    const driver::AccessDescriptor access{{driver::kLocationGpu, static_cast<int>(gpu)},
                                          driver::kAccessReadWrite};
    api_.check(api_.vmm_set_access(base_, bytes_, &access, 1),
               "access to shared GPU memory (is there a path between the GPUs?)");
  }

 private:
  void undo() noexcept {
    if (mapped_) api_.vmm_unmap(base_, bytes_);
    if (base_ != 0) api_.vmm_free(base_, bytes_);
    api_.vmm_release(handle_);
  }

  const Api& api_;
  const driver::Handle handle_;
  const uint64_t bytes_;
  driver::Pointer base_ = 0;
  bool mapped_ = false;
};

class PinnedWords final : public Words {
 public:
  PinnedWords(const Api& api, driver::Context context, uint64_t bytes)
      : memory_(api, context, bytes, "pinned memory for the words of kernels") {
    std::memset(memory_.host(), 0, bytes);
  }
  [[nodiscard]] void* host() const noexcept override { return memory_.host(); }
  [[nodiscard]] uint64_t gpu() const noexcept override { return memory_.gpu(); }

 private:
  const OwnPinnedMemory memory_;
};

class DriverMoment final : public Moment {
 public:
  DriverMoment(const Api& api, driver::Context context) : api_(api), context_(context) {
    const Current current(api_, context_);
    api_.check(api_.event_create(&event_, driver::kEventWithoutTime), "cuEventCreate");
  }
  ~DriverMoment() override {
    if (in_graphs_) return;  // which may live on, and go after it
    const Current current(api_, context_);
    api_.event_destroy(event_);
  }
  Code record(void* stream) noexcept override {
    const CurrentForLaunch current(api_, context_);
    return api_.event_record(event_, static_cast<driver::Stream>(stream));
  }
  Code precede(void* stream) noexcept override {
    const CurrentForLaunch current(api_, context_);
    return api_.stream_wait_event(static_cast<driver::Stream>(stream), event_, 0);
  }
  Code precede_replays(void* stream) noexcept override {
    const CurrentForLaunch current(api_, context_);
    in_graphs_ = true;
    return api_.stream_wait_event(static_cast<driver::Stream>(stream), event_, driver::kWaitInReplays);
  }
  // Beside the stream's work, whose kernels stay next to one another. Nodes can't be removed from a graph that is recorded, so
  // the one record is led behind the last operation by its edges.
  Code record_in_replays(void* stream, ReplayPlace& place) noexcept override {
    const CurrentForLaunch current(api_, context_);
    in_graphs_ = true;
    driver::CaptureStatus status = driver::kCaptureNone;
    uint64_t capture = 0;
    driver::Graph graph = nullptr;
    const driver::GraphNode* last = nullptr;
    size_t count = 0;
    if (const Code code = api_.stream_get_capture(static_cast<driver::Stream>(stream), &status, &capture,
                                                  &graph, &last, &count);
        code != driver::kSuccess)
      return code;
    // Behind the kernel that it has just been given a stream is in one place.
    if (status != driver::kCaptureActive || count != 1) return driver::kCaptureUnjoined;
    const driver::GraphNode behind = *last;
    auto record = static_cast<driver::GraphNode>(place.record);
    if (record == nullptr) {
      if (const Code code = api_.graph_add_event_record(&record, graph, &behind, 1, event_);
          code != driver::kSuccess)
        return code;
    } else {
      if (const Code code = api_.graph_add_edges(graph, &behind, &record, 1); code != driver::kSuccess)
        return code;
      const auto before = static_cast<driver::GraphNode>(place.after);
      if (const Code code = api_.graph_remove_edges(graph, &before, &record, 1); code != driver::kSuccess)
        return code;
    }
    place = {record, behind};
    return driver::kSuccess;
  }
  [[nodiscard]] Code state() noexcept override {
    const Current current(api_, context_);
    const driver::Result result = api_.event_query(event_);
    return result == driver::kNotReady ? kBusy : result;
  }

 private:
  const Api& api_;
  const driver::Context context_;
  driver::Event event_ = nullptr;
  bool in_graphs_ = false;
};

class DriverStream final : public OwnStream {
 public:
  // First in turn on multiprocessors of their own (`green`), since copies may use the same ones.
  DriverStream(const Api& api, driver::Context context, driver::GreenContext green)
      : api_(api), context_(context), green_(green != nullptr) {
    if (!green_) {
      stream_ = take_stream(api_, context_, StreamUse::kKernels);
      return;
    }
    const Current current(api_, context_);
    api_.check(api_.green_stream_create(&stream_, green, driver::kStreamNonBlocking, greatest_priority(api_)),
               "cuGreenCtxStreamCreate");
  }
  ~DriverStream() override {
    const Current current(api_, context_);
    const driver::Result result = api_.stream_synchronize(stream_);
    if (green_ || result != driver::kSuccess)
      api_.stream_destroy(stream_);
    else
      keep_stream(context_, StreamUse::kKernels, stream_);
  }
  [[nodiscard]] void* native() const noexcept override { return stream_; }

 private:
  const Api& api_;
  const driver::Context context_;
  const bool green_;
  driver::Stream stream_ = nullptr;
};

// An image's kernels on a GPU, for all that ask for them: it is never unloaded, since it goes with the context.
const std::vector<driver::Function>& functions_of(const Api& api, driver::Context context,
                                                  const KernelSet& set) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::pair<driver::Context, const void*>, std::vector<driver::Function>>;
  const std::lock_guard lock(mutex);
  std::vector<driver::Function>& functions = loaded[{context, set.image.data()}];
  if (!functions.empty()) return functions;
  const Current current(api, context);
  driver::Module module = nullptr;
  api.check(api.module_load(&module, set.image.data()), "loading kernels (cuModuleLoadData)");
  std::vector<driver::Function> made;
  for (const char* name : set.names) {
    made.push_back(nullptr);
    api.check(api.module_get_function(&made.back(), module, name), name);
    // Else the driver loads it with its first launch, and may wait then for kernels that wait for this one.
    if (api.function_load != nullptr) api.check(api.function_load(made.back()), name);
  }
  functions = std::move(made);
  return functions;
}

class DriverKernels final : public LoadedKernels {
 public:
  DriverKernels(const Api& api, driver::Context context, const KernelSet& set)
      : api_(api), context_(context), threads_(set.threads), functions_(functions_of(api, context, set)) {
    const Current current(api_, context_);
    // Kernels that were translated from an image for older GPUs lack the wait, and the code of clusters.
    int made_for = 0;
    if (!functions_.empty() && api_.function_get_attribute(&made_for, driver::kFunctionPtxVersion,
                                                           functions_[0]) == driver::kSuccess)
      may_begin_early_ = made_for >= 90 && set.wait_themselves;
    // GPUs of compute capability 12 have up to 12 groups of multiprocessors, and room for clusters is counted for 8.
    driver::Device gpu = 0;
    int major = 0;
    clusters_ = made_for >= 90 && api_.context_get_device(&gpu) == driver::kSuccess &&
                api_.device_get_attribute(&major, driver::kAttributeMajor, gpu) == driver::kSuccess &&
                major < 12;
  }
  [[nodiscard]] bool clusters(uint32_t kernel, uint32_t blocks) const noexcept override {
    if (!clusters_ || api_.occupancy_clusters == nullptr) return false;
    const CurrentForLaunch current(api_, context_);
    Attributes attributes;
    const driver::LaunchConfig config = config_of({blocks, 0, blocks, true}, nullptr, attributes);
    int most = 0;
    return api_.occupancy_clusters(&most, functions_[kernel], &config) == driver::kSuccess && most > 0;
  }
  Code launch(uint32_t kernel, const void* argument, const Grid& grid, void* stream) noexcept override {
    const CurrentForLaunch current(api_, context_);
    void* arguments[] = {const_cast<void*>(argument)};
    Attributes attributes;
    const driver::LaunchConfig config = config_of(grid, stream, attributes);
    return api_.launch_with(&config, functions_[kernel], arguments, nullptr);
  }

 private:
  using Attributes = std::array<driver::LaunchAttribute, 2>;
  driver::LaunchConfig config_of(const Grid& grid, void* stream, Attributes& attributes) const noexcept {
    unsigned count = 0;
    if (may_begin_early_) {
      attributes[count].id = driver::kLaunchMayBeginEarly;
      attributes[count++].value.number = 1;
    }
    if (grid.clustered) {
      attributes[count].id = driver::kLaunchInClusters;
      const unsigned blocks_of_cluster[] = {grid.meeting, 1, 1};
      std::ranges::copy(blocks_of_cluster, attributes[count++].value.cluster);
    }
    return {.grid = {grid.blocks, 1, 1},
            .block = {grid.threads != 0 ? grid.threads : threads_, 1, 1},
            .shared_bytes = 0,
            .stream = static_cast<driver::Stream>(stream),
            .attributes = attributes.data(),
            .attribute_count = count};
  }

  const Api& api_;
  const driver::Context context_;
  const uint32_t threads_;
  const std::vector<driver::Function>& functions_;
  bool clusters_ = false;
  bool may_begin_early_ = false;
};

class NvidiaKernels final : public KernelDevice {
 public:
  NvidiaKernels() : device_(nvidia_device()), api_(nvidia_api()) {}

  void start() override { device_.start(); }
  [[nodiscard]] const std::vector<Gpu>& gpus() const override { return device_.gpus(); }
  [[nodiscard]] uint32_t current_gpu() const override {
    // Asking for the GPU of no context would be an error, which tools report.
    driver::Context context = nullptr;
    driver::Device gpu = 0;
    if (api_.context_get_current(&context) != driver::kSuccess || context == nullptr) return 0;
    return api_.context_get_device(&gpu) == driver::kSuccess ? static_cast<uint32_t>(gpu) : 0;
  }
  void with_gpu(uint32_t gpu, const std::function<void()>& body) override {
    const Current current(api_, nvidia_context(gpu));
    body();
  }
  std::shared_ptr<SharedPiece> allocate(uint32_t gpu, uint64_t bytes) override {
    const Current current(api_, nvidia_context(gpu));
    driver::AllocationProperties properties;
    properties.location.id = static_cast<int>(gpu);
    size_t grain = 0;
    api_.check(api_.vmm_granularity(&grain, &properties, 0), "cuMemGetAllocationGranularity");
    const uint64_t whole = (bytes + grain - 1) / grain * grain;
    driver::Handle handle = 0;
    api_.check(api_.vmm_create(&handle, whole, &properties, 0), "allocating shared GPU memory (cuMemCreate)");
    auto piece = std::make_shared<MappedPiece>(api_, gpu, handle, whole);
    api_.check(api_.memory_set32(piece->address(), 0, whole / 4), "cuMemsetD32");
    api_.check(api_.stream_synchronize(nullptr), "clearing shared GPU memory");
    return piece;
  }
  std::shared_ptr<SharedPiece> import(uint32_t gpu, const UniqueFd& descriptor, uint64_t bytes) override {
    const Current current(api_, nvidia_context(gpu));
    driver::Handle handle = 0;
    api_.check(api_.vmm_import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get())),
                               driver::kHandlePosixFd),
               "importing another process's GPU memory");
    return std::make_shared<MappedPiece>(api_, gpu, handle, bytes);
  }
  std::unique_ptr<Words> make_words(uint32_t gpu, uint64_t bytes) override {
    return std::make_unique<PinnedWords>(api_, nvidia_context(gpu), bytes);
  }
  std::unique_ptr<Moment> make_moment(uint32_t gpu) override {
    return std::make_unique<DriverMoment>(api_, nvidia_context(gpu));
  }
  std::unique_ptr<OwnStream> make_stream(uint32_t gpu, const ReserveWish& wish) override {
    return std::make_unique<DriverStream>(api_, nvidia_context(gpu), nvidia_green(gpu, wish));
  }
  std::unique_ptr<StreamsAhead> make_streams_ahead(uint32_t gpu, uint32_t count) override {
    return std::make_unique<PreparedStreams>(api_, nvidia_context(gpu), count);
  }
  [[nodiscard]] Reserve reserve(uint32_t gpu, const ReserveWish& wish) override {
    return device_.reserve(gpu, wish);
  }
  void settle(uint32_t gpu) noexcept override {
    const Current current(api_, nvidia_context(gpu));
    (void)api_.context_synchronize();
  }
  std::unique_ptr<LoadedKernels> load(uint32_t gpu, const KernelSet& set) override {
    if (set.image.empty())
      fail(Status::kUnsupported, "cuda: built without CUDA's compiler: there are no kernels");
    return std::make_unique<DriverKernels>(api_, nvidia_context(gpu), set);
  }
  [[nodiscard]] StreamState stream_state(uint32_t gpu, void* stream, uint64_t& graph) override {
    graph = 0;
    // This thread has already asked which context owns the stream, and the driver would refuse a launch in another's.
    thread_local void* known = nullptr;
    thread_local uint32_t known_on = 0;
    if (known != stream || known_on != gpu) {
      const StreamState state = device_.stream_state(gpu, stream);
      if (state == StreamState::kForeign) return state;
      known = stream;
      known_on = gpu;
      if (state == StreamState::kRuns) return state;
    }
    const CurrentForLaunch current(api_, nvidia_context(gpu));
    driver::CaptureStatus status = driver::kCaptureNone;
    uint64_t recorded = 0;
    api_.check(api_.stream_get_capture(static_cast<driver::Stream>(stream), &status, &recorded, nullptr,
                                       nullptr, nullptr),
               "asking which graph the stream records");
    if (status == driver::kCaptureInvalidated)
      fail(Status::kInvalidArgument, "cuda: the graph that the stream records was spoilt before");
    if (status != driver::kCaptureActive) return StreamState::kRuns;
    graph = recorded;
    return StreamState::kRecords;
  }
  [[nodiscard]] uint64_t recorded_graph(uint32_t gpu, void* stream) noexcept override {
    const CurrentForLaunch current(api_, nvidia_context(gpu));
    driver::CaptureStatus status = driver::kCaptureNone;
    uint64_t recorded = 0;
    const driver::Result asked = api_.stream_get_capture(static_cast<driver::Stream>(stream), &status,
                                                         &recorded, nullptr, nullptr, nullptr);
    return asked == driver::kSuccess && status == driver::kCaptureActive ? recorded : 0;
  }
  [[nodiscard]] bool usable(uint32_t gpu, uint64_t address) const override {
    int types[] = {driver::kMemoryType, driver::kDeviceOrdinal, driver::kIsManaged};
    unsigned type = 0;
    int ordinal = 0;
    unsigned managed = 0;
    void* answers[] = {&type, &ordinal, &managed};
    if (api_.pointer_get_attributes(3, types, answers, address) != driver::kSuccess) return false;
    if (type == driver::kMemoryTypeHost || managed != 0) return true;
    return type == driver::kMemoryTypeDevice && static_cast<uint32_t>(ordinal) == gpu;
  }
  [[nodiscard]] std::string code_text(Code code) const override { return api_.text(code); }

 private:
  Device& device_;
  const Api& api_;
};

}  // namespace

KernelDevice& nvidia_kernel_device() {
  static NvidiaKernels* const device = new NvidiaKernels;  // as the driver itself: never destroyed
  return *device;
}

}  // namespace towline::cuda
