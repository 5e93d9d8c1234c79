#include "gpu/fake/fake_kernels.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/os/memfd.h"
#include "gpu/fake/fake_device.h"

namespace towline::cuda::fake {
namespace {

class FilePiece final : public SharedPiece {
 public:
  FilePiece(UniqueFd file, uint64_t bytes)
      : file_(std::move(file)),
        mapping_(Mapping::map_shared(file_.get(), bytes, MapAccess::kReadWrite)),
        bytes_(bytes) {}
  [[nodiscard]] uint64_t address() const noexcept override {
    return reinterpret_cast<uint64_t>(mapping_.address());
  }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] UniqueFd descriptor() const override { return duplicate_fd(file_.get()); }
  void let_reach(uint32_t gpu) override {
    if (faults().separated())
      fail(Status::kUnsupported, "fake GPU: GPU {} has no path to this memory (no peer access)", gpu);
  }

 private:
  const UniqueFd file_;
  const Mapping mapping_;
  const uint64_t bytes_;
};

class PlainWords final : public Words {
 public:
  explicit PlainWords(uint64_t bytes) : words_(bytes / 8 + 1) {}
  [[nodiscard]] void* host() const noexcept override { return words_.data(); }
  [[nodiscard]] uint64_t gpu() const noexcept override { return reinterpret_cast<uint64_t>(words_.data()); }

 private:
  mutable std::vector<uint64_t> words_;
};

// As an event of CUDA's: what waits for it waits for the record that was the last when it began to, whatever is recorded later.
class FakeMoment final : public Moment {
 public:
  Code record(void* stream) noexcept override {
    auto* const theirs = static_cast<FakeStream*>(stream);
    const std::lock_guard lock(mutex_);
    recorded_in_ = theirs;
    graph_ = theirs->recording();
    if (graph_ != 0) return 0;  // a graph's moments order what joins it
    theirs->put(newest_->renew());
    return 0;
  }
  Code precede(void* stream) noexcept override {
    const std::lock_guard lock(mutex_);
    if (graph_ != 0)
      static_cast<FakeStream*>(stream)->join(*recorded_in_, graph_);
    else if (FakeStream::Work wait = newest_->wait(); wait != nullptr)
      static_cast<FakeStream*>(stream)->put(std::move(wait));
    return 0;
  }
  Code precede_replays(void* stream) noexcept override {
    static_cast<FakeStream*>(stream)->put_at_launch([newest = newest_]() -> FakeStream::Work {
      FakeStream::Work wait = newest->wait();
      return wait != nullptr ? wait : [] {};
    });
    return 0;
  }
  Code record_in_replays(void* stream, ReplayPlace& place) noexcept override {
    auto* const theirs = static_cast<FakeStream*>(stream);
    if (place.record != nullptr) theirs->take_out(reinterpret_cast<size_t>(place.record) - 1);
    const size_t step = theirs->put_at_launch([newest = newest_] { return newest->renew(); });
    place.record = reinterpret_cast<void*>(step + 1);
    return 0;
  }
  [[nodiscard]] Code state() noexcept override { return newest_->reached() ? 0 : kBusy; }

 private:
  // The last record. What streams and graphs still hold may come later than the moment goes.
  class Newest {
   public:
    // The work that a new record is.
    FakeStream::Work renew() {
      const std::lock_guard lock(mutex_);
      last_ = std::make_shared<std::atomic<bool>>(false);
      return [reached = last_] {
        *reached = true;
        reached->notify_all();
      };
    }
    // The work that waits for it; null: there is none yet.
    FakeStream::Work wait() {
      const std::lock_guard lock(mutex_);
      if (last_ == nullptr) return nullptr;
      return [reached = last_] { reached->wait(false); };
    }
    bool reached() {
      const std::lock_guard lock(mutex_);
      return last_ == nullptr || *last_;
    }

   private:
    std::mutex mutex_;
    std::shared_ptr<std::atomic<bool>> last_;
  };

  const std::shared_ptr<Newest> newest_ = std::make_shared<Newest>();
  std::mutex mutex_;
  FakeStream* recorded_in_ = nullptr;
  uint64_t graph_ = 0;
};

// Streams of each GPU that are there already.
class AheadCounts {
 public:
  void add(uint32_t gpu, int64_t count) {
    const std::lock_guard lock(mutex_);
    counts_[gpu] += count;
  }
  bool take(uint32_t gpu) {
    const std::lock_guard lock(mutex_);
    return counts_[gpu] > 0 && counts_[gpu]-- > 0;
  }

 private:
  std::mutex mutex_;
  std::map<uint32_t, int64_t> counts_;
};
AheadCounts& ahead() {
  static auto& counts = *new AheadCounts;
  return counts;
}
class CountedAhead final : public StreamsAhead {
 public:
  CountedAhead(uint32_t gpu, uint32_t count) : gpu_(gpu), count_(count) { ahead().add(gpu_, count_); }
  ~CountedAhead() override { ahead().add(gpu_, -int64_t{count_}); }

 private:
  const uint32_t gpu_;
  const uint32_t count_;
};

class ThreadStream final : public OwnStream {
 public:
  ThreadStream(uint32_t gpu, bool was_ahead, bool green)
      : gpu_(gpu), was_ahead_(was_ahead), stream_(gpu, green) {}
  ~ThreadStream() override {
    if (was_ahead_) ahead().add(gpu_, 1);
  }
  [[nodiscard]] void* native() const noexcept override { return &stream_; }

 private:
  const uint32_t gpu_;
  const bool was_ahead_;
  mutable FakeStream stream_;
};

class Models final : public LoadedKernels {
 public:
  explicit Models(const KernelSet& set) : set_(set) {}
  [[nodiscard]] bool clusters(uint32_t, uint32_t) const noexcept override { return true; }
  Code launch(uint32_t kernel, const void* argument, const Grid& grid, void* stream) noexcept override {
    if (const Code refusal = faults().take_refusal(); refusal != 0) return refusal;
    std::vector<uint64_t> copy(set_.argument_bytes / 8 + 1);
    std::memcpy(copy.data(), argument, set_.argument_bytes);
    static_cast<FakeStream*>(stream)->put(
        [model = set_.models[kernel], copy = std::move(copy), blocks = grid.blocks, meeting = grid.meeting] {
          for (uint32_t first = 0; first < blocks; first += meeting) {
            std::vector<std::jthread> others;
            for (uint32_t block = first + 1; block < first + meeting; ++block)
              others.emplace_back([&, block] { model(copy.data(), block, blocks); });
            model(copy.data(), first, blocks);
          }
        });
    return 0;
  }

 private:
  const KernelSet set_;
};

class FakeKernels final : public KernelDevice {
 public:
  void start() override {}
  [[nodiscard]] const std::vector<Gpu>& gpus() const override { return fake_device().gpus(); }
  [[nodiscard]] uint32_t current_gpu() const override { return 0; }
  void with_gpu(uint32_t, const std::function<void()>& body) override { body(); }
  std::shared_ptr<SharedPiece> allocate(uint32_t gpu, uint64_t bytes) override {
    if (faults().full(gpu)) fail(Status::kOutOfMemory, "fake GPU: no room for {} bytes", bytes);
    const uint64_t whole = (bytes + 4095) / 4096 * 4096;
    return std::make_shared<FilePiece>(create_memfd("towline-fake-gpu", whole, {.reserve = false}), whole);
  }
  std::shared_ptr<SharedPiece> import(uint32_t, const UniqueFd& descriptor, uint64_t bytes) override {
    require_sealed(descriptor.get(), bytes);
    return std::make_shared<FilePiece>(duplicate_fd(descriptor.get()), bytes);
  }
  std::unique_ptr<Words> make_words(uint32_t, uint64_t bytes) override {
    return std::make_unique<PlainWords>(bytes);
  }
  std::unique_ptr<Moment> make_moment(uint32_t) override { return std::make_unique<FakeMoment>(); }
  std::unique_ptr<OwnStream> make_stream(uint32_t gpu, const ReserveWish& wish) override {
    const bool was_ahead = ahead().take(gpu);
    if (!was_ahead) refuse_streams(gpu);
    return std::make_unique<ThreadStream>(gpu, was_ahead, wish.any());
  }
  std::unique_ptr<StreamsAhead> make_streams_ahead(uint32_t gpu, uint32_t count) override {
    if (count != 0) refuse_streams(gpu);
    return std::make_unique<CountedAhead>(gpu, count);
  }
  [[nodiscard]] Reserve reserve(uint32_t gpu, const ReserveWish& wish) override {
    return fake_device().reserve(gpu, wish);
  }
  void settle(uint32_t gpu) noexcept override { FakeStream::drain_all(gpu); }
  std::unique_ptr<LoadedKernels> load(uint32_t, const KernelSet& set) override {
    return std::make_unique<Models>(set);
  }
  [[nodiscard]] StreamState stream_state(uint32_t gpu, void* stream, uint64_t& graph) override {
    auto* const theirs = static_cast<FakeStream*>(stream);
    graph = 0;
    if (theirs->gpu() != gpu || theirs->green()) return StreamState::kForeign;
    graph = theirs->recording();
    return graph != 0 ? StreamState::kRecords : StreamState::kRuns;
  }
  [[nodiscard]] uint64_t recorded_graph(uint32_t, void* stream) noexcept override {
    return static_cast<FakeStream*>(stream)->recording();
  }
  [[nodiscard]] bool on_host() const noexcept override { return true; }
  [[nodiscard]] bool usable(uint32_t gpu, uint64_t address) const override {
    return !faults().forgotten(address) && faults().gpu_of(address) == gpu;
  }
  [[nodiscard]] std::string code_text(Code code) const override {
    return fmt::format("FAKE_ERROR ({})", code);
  }

 private:
  static void refuse_streams(uint32_t gpu) {
    if (faults().streams_refused(gpu)) fail(Status::kOutOfMemory, "fake GPU: no stream on GPU {}", gpu);
  }
};

}  // namespace

KernelDevice& fake_kernel_device() {
  static FakeKernels device;
  return device;
}

}  // namespace towline::cuda::fake
