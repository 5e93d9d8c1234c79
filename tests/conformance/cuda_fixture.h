// Agents on GPUs made of host memory, and the command over those.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "transport_fixture.h"

namespace towline::conformance {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kPages = 64;

class CudaTest : public ::testing::Test {
 protected:
  using Command = bool (*)(const char* command, uint64_t a, uint64_t b, uint64_t c);
  using StreamCommand = uint64_t (*)(const char* command, void* stream, uint64_t a, uint64_t b, uint64_t c);

  void SetUp() override {
    library_ = dlopen(TOWLINE_CUDA_FAKE, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
    command_ = reinterpret_cast<Command>(dlsym(library_, "towline_fake_gpu"));
    ASSERT_NE(command_, nullptr);
    stream_command_ = reinterpret_cast<StreamCommand>(dlsym(library_, "towline_fake_stream"));
    ASSERT_NE(stream_command_, nullptr);
    gpu("reset");  // what other suites had these GPUs do is counted, too
    left_ = std::make_unique<Agent>("left", options());
    right_ = std::make_unique<Agent>("right", options());
  }
  void TearDown() override {
    gpu("reset");
    left_.reset();
    right_.reset();
    // An agent that ended leaves to its GPU what stood still there, in memory that the test is about to free.
    while (command_("busy", 0, 0, 0)) std::this_thread::yield();
    dlclose(library_);
  }

  void gpu(const char* command, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    ASSERT_TRUE(command_(command, a, b, c)) << command;
  }
  static AgentOptions options(const char* more = "") {
    return {
        .listen = "none",
        .backends = "cuda",
        .config =
            std::string("plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tuning.cuda]\ndirect = \"false\"\n") + more,
        .default_timeout = 20s};
  }
  static MemoryView vram(const Buffer& memory, uint64_t device = 0) {
    return {.address = memory.data(), .bytes = memory.size(), .kind = Kind::kVram, .device = device};
  }
  static Blocks pages(const Buffer& memory, uint64_t device = 0) {
    return Blocks::at(memory.data(), kPage, Kind::kVram, device).repeat(memory.size() / kPage, kPage);
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(20s) : posted;
  }
  static std::string text_of(const std::function<void()>& attempt) {
    try {
      attempt();
      return "it went well";
    } catch (const Error& error) {
      return error.what();
    }
  }
  // A connected pair of regions.
  void connect() {
    left_region_ =
        std::make_unique<Region>(left_->register_memory(vram(left_memory_), {.access = Access::kAll}));
    right_region_ =
        std::make_unique<Region>(right_->register_memory(vram(right_memory_), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
  }
  // The same, and the transfer between them.
  Transfer make_move(TransferOptions transfer_options = {}) {
    connect();
    return left_->transfer(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)),
                           transfer_options);
  }
  // May be asked while the copy runs. Compares every word once: memcmp reads the first byte that differs again, and
  // answers 0 if the copy has just written that one.
  [[nodiscard]] bool arrived() const {
    for (uint64_t at = 0; at < left_memory_.size(); at += sizeof(uint64_t))
      if (word_of(left_memory_, at) != word_of(right_memory_, at)) return false;
    return true;
  }
  [[nodiscard]] static uint64_t word_of(const Buffer& memory, uint64_t at) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(memory.data() + at)).load();
  }
  void restart(const char* more) {
    peer_.reset();
    left_region_.reset();
    left_ = std::make_unique<Agent>("left", options(more));
  }
  // Host memory of ours, there and back, and what the routes say.
  std::string there_and_back(uint64_t bytes) { return there_and_back(Buffer(bytes, false)); }
  std::string there_and_back(const Buffer& ours) {
    const uint64_t bytes = ours.size();
    const Buffer theirs(bytes, true);
    const Region here = left_->register_memory(dram(ours.data(), ours.size()), {.access = Access::kAll});
    const Region there = right_->register_memory(vram(theirs), {.access = Access::kAll});
    const Peer peer = left_->add_peer(right_->metadata());
    const BlockList mine = left_->block_list(blocks_of(ours.data(), ours.size(), kPage));
    const BlockList far = peer.block_list(pages(theirs));
    stamp(ours.data(), bytes, 11);
    const Transfer write = left_->transfer(mine, far);
    EXPECT_EQ(run(write), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), bytes), 0);
    const std::string written = write.route();  // tells of the connection as it is now
    stamp(theirs.data(), bytes, 12);
    const Transfer read = left_->transfer(far, mine);
    EXPECT_EQ(run(read), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), bytes), 0);
    return written + "\n" + read.route();
  }

  void* library_ = nullptr;
  Command command_ = nullptr;
  StreamCommand stream_command_ = nullptr;
  Buffer left_memory_{kPage * kPages, true};
  Buffer right_memory_{kPage * kPages, true};
  std::unique_ptr<Agent> left_;
  std::unique_ptr<Agent> right_;
  std::unique_ptr<Region> left_region_;
  std::unique_ptr<Region> right_region_;
  std::unique_ptr<Peer> peer_;
};

// The same with a stream, and the left agent's memory stamped.
class CudaStreamTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (HasFatalFailure()) return;
    stream_ = reinterpret_cast<void*>(stream_command_("make", nullptr, 0, 0, 0));
    stamp(left_memory_.data(), left_memory_.size(), 1);
  }
  void TearDown() override {
    if (command_ != nullptr) gpu("reset");
    if (stream_command_ != nullptr) (void)stream_command_("free", stream_, 0, 0, 0);
    CudaTest::TearDown();
  }

  // Copies wait in the middle until let_go().
  void get_stuck() { gpu("hold", 1); }
  void let_go() { gpu("hold", 0); }
  void wait_until_stuck() {
    while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  }

  void* stream_ = nullptr;
};

}  // namespace towline::conformance
