// Limit: process_vm_writev and process_vm_readv with as many blocks a call as the kernel takes, on one thread
// or two.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "../contender.h"
#include "../target.h"
#include "support/pause.h"

namespace bench {
namespace {

constexpr std::size_t kBlocksPerCall = 1024;  // UIO_MAXIOV
constexpr std::size_t kPage = 4096;

struct Batch {
  std::vector<iovec> here;
  std::vector<iovec> there;

  void add(std::byte* local, std::uint64_t remote, std::size_t bytes) {
    here.push_back({local, bytes});
    there.push_back({reinterpret_cast<void*>(remote), bytes});
  }

  void move(Op op, pid_t pid) const {
    for (std::size_t i = 0; i < here.size(); i += kBlocksPerCall) {
      const std::size_t n = std::min(kBlocksPerCall, here.size() - i);
      const auto call = op == Op::kWrite ? process_vm_writev : process_vm_readv;
      if (call(pid, &here[i], n, &there[i], n, 0) != static_cast<ssize_t>(n * here[i].iov_len))
        throw std::runtime_error("process_vm moved less than asked");
    }
  }
};

// A second thread that runs the other half: spins while runs follow one another closely, sleeps otherwise.
class Helper {
 public:
  ~Helper() {
    stop_ = true;
    start();
    thread_.join();
  }
  template <class Work>
  explicit Helper(Work work)
      : thread_([this, work] {
          for (std::uint64_t seen = 0;; ++seen) {
            spin_then_wait(started_, seen);
            if (stop_) return;
            work();
            finished_.store(seen + 1, std::memory_order_release);
          }
        }) {}
  void start() {
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_one();
  }
  void join() {
    while (finished_.load(std::memory_order_acquire) != started_.load(std::memory_order_relaxed)) pause();
  }

 private:
  std::atomic<bool> stop_ = false;
  alignas(64) std::atomic<std::uint64_t> started_ = 0;
  alignas(64) std::atomic<std::uint64_t> finished_ = 0;
  std::thread thread_;
};

class ProcessVmLimit final : public PairedContender {
 public:
  ProcessVmLimit(std::string name, Session& session, int threads)
      : PairedContender(std::move(name), session), threads_(threads) {}

 private:
  void connect(const Json& target) override {
    pid_ = target.at("pid");
    remote_ = target.at("address");
    if (threads_ == 2) helper_ = std::make_unique<Helper>([this] { second_.move(cell().op, pid_); });
  }

  void prepare_cell() override {
    first_ = {};
    second_ = {};
    const std::size_t block = cell().block;
    const bool split_blocks = threads_ == 2 && cell().count == 1 && block >= 2 * kPage;
    const std::size_t pieces = split_blocks ? 2 : 1;
    for (std::size_t i = 0; i < cell().count; ++i)
      for (std::size_t piece = 0; piece < pieces; ++piece) {
        const std::size_t bytes = block / pieces;
        const bool other = threads_ == 2 && (split_blocks ? piece == 1 : i >= (cell().count + 1) / 2);
        (other ? second_ : first_)
            .add(local() + lists().local[i] * block + piece * bytes,
                 remote_ + lists().remote[i] * block + piece * bytes, bytes);
      }
  }

  void run_once() override {
    const bool both = !second_.here.empty();
    if (both) helper_->start();
    first_.move(cell().op, pid_);
    if (both) helper_->join();
  }

  int threads_;
  pid_t pid_ = -1;
  std::uint64_t remote_ = 0;
  Batch first_;
  Batch second_;
  std::unique_ptr<Helper> helper_;  // last: its thread uses the batches
};

class ProcessVmResponder final : public Responder {
 public:
  explicit ProcessVmResponder(TargetMemory& memory) : memory_(memory) {}
  Json setup(const Json&) override {
    return {{"pid", getpid()}, {"address", reinterpret_cast<std::uint64_t>(memory_.anonymous())}};
  }
  std::byte* memory() override { return memory_.anonymous(); }

 private:
  TargetMemory& memory_;
};

}  // namespace

const Family kProcessVmFamily = {
    [](Session& session, Contenders& out) {
      out.push_back(std::make_unique<ProcessVmLimit>("pv", session, 1));
      out.push_back(std::make_unique<ProcessVmLimit>("pv2", session, 2));
    },
    [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
      if (name != "pv" && name != "pv2") return nullptr;
      return std::make_unique<ProcessVmResponder>(memory);
    }};

}  // namespace bench
