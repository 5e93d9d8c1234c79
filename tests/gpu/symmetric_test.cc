// Symmetric memory between processes. The test is the other process: it speaks as rank 1, and as strangers.
#include "gpu/symmetric.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/os/packets.h"
#include "gpu/fake/fake_kernels.h"
#include "gpu/symmetric_wire.h"

namespace towline::cuda {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr int kStrangers = 60;

Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }

class Board {
 public:
  Noticeboard noticeboard() {
    return {[this](const std::string& key, std::span<const uint8_t> value) { set(key, value); },
            [this](const std::string& key, Deadline) { return get(key); }};
  }
  void set(const std::string& key, std::span<const uint8_t> value) {
    const std::lock_guard lock(mutex_);
    values_[key].assign(value.begin(), value.end());
    changed_.notify_all();
  }
  std::vector<uint8_t> get(const std::string& key) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return values_.contains(key); }))
      throw Error(Status::kTimedOut, "the test waited for " + key);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<uint8_t>> values_;
};

class SymmetricMemoryTest : public testing::Test {
 protected:
  // Rank 0 runs until it has both pieces.
  void start() {
    device_.start();
    if (!listener_) listener_ = packets::listen_on({true, name_});
    notice_.key = 77;
    notice_.bytes = notice_.length = kBytes;
    notice_.host = read_host_identity();
    notice_.host.pid += 1;  // another process
    notice_.gpu = device_.gpus()[other_gpu_ ? 1 : 0].uuid;
    notice_.socket = name_;
    board_.set("gpu/1", encode(notice_));
    rank0_ = std::thread([this] {
      try {
        memory_.emplace(device_, 0, device_.allocate(0, kBytes), kBytes, device_.make_words(0, 4096), 0, 2,
                        board_.noticeboard(), in_time());
      } catch (const std::exception& error) {
        failure_ = error.what();
      }
    });
    const auto theirs = decode_piece_notice(board_.get("gpu/0"));
    ASSERT_TRUE(theirs);
    theirs_ = *theirs;
  }
  UniqueFd connect() {
    UniqueFd socket = packets::make_socket();
    while (packets::connect_to(socket.get(), {true, theirs_.socket}) == EAGAIN) std::this_thread::yield();
    return socket;
  }
  void say(const UniqueFd& socket, const PieceHello& hello, const SharedPiece* piece) {
    if (piece == nullptr) {
      (void)packets::send_packet(socket.get(), encode(hello), {});
      return;
    }
    const UniqueFd descriptor = piece->descriptor();
    const int fds[] = {descriptor.get()};
    (void)packets::send_packet(socket.get(), encode(hello), fds);
  }
  void finish() {
    board_.set("gpu/1/in", {});
    rank0_.join();
  }

  KernelDevice& device_ = fake::fake_kernel_device();
  Board board_;
  const std::string name_ = "towline-symmetric-test-" + Id::random().to_hex();
  UniqueFd listener_;
  PieceNotice notice_;
  PieceNotice theirs_;
  std::optional<SymmetricMemory> memory_;
  std::string failure_;
  bool other_gpu_ = false;
  std::thread rank0_;
};

TEST_F(SymmetricMemoryTest, StrangersNeitherHoldUpTheRanksNorAreTakenForOne) {
  start();
  const auto piece = device_.allocate(0, kBytes);
  const auto evil = device_.allocate(0, kBytes);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < kStrangers; ++i) silent.push_back(connect());
  std::vector<UniqueFd> liars;
  for (int i = 0; i < 5; ++i) liars.push_back(connect());
  const uint8_t noise[] = {1, 2, 3};
  (void)packets::send_packet(liars[0].get(), noise, {});
  say(liars[1], {notice_.key + 1, 1}, evil.get());  // another key
  say(liars[2], {notice_.key, 0}, evil.get());      // the rank that is there
  say(liars[3], {notice_.key, 9}, evil.get());      // none of the job
  say(liars[4], {notice_.key, 1}, nullptr);         // without memory
  UniqueFd spare = packets::open_spare();
  const UniqueFd real = connect();
  std::memset(reinterpret_cast<void*>(piece->address()), 0x5a, kBytes);
  say(real, {notice_.key, 1}, piece.get());
  finish();
  ASSERT_EQ(failure_, "");
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(memory_->address(1)), 0x5a);
  EXPECT_EQ(memory_->lost(), std::nullopt);
}

// Descriptors could be swapped, but neither GPU reaches the other's memory.
TEST_F(SymmetricMemoryTest, RanksOnInstancesOfMigAreToldWhy) {
  notice_.partitioned = true;
  other_gpu_ = true;
  start();
  rank0_.join();
  EXPECT_NE(failure_.find("gpu: rank 0 is on GPU-f0f0f0f0"), std::string::npos) << failure_;
  EXPECT_NE(failure_.find("and rank 1 on MIG-f1f1f1f1"), std::string::npos) << failure_;
  EXPECT_NE(failure_.find("an instance of MIG reaches no other GPU's memory"), std::string::npos) << failure_;
  const std::vector<uint8_t> told = board_.get("gpu/0/in");
  EXPECT_NE(std::string(told.begin(), told.end()).find("an instance of MIG"), std::string::npos);
}

// The board is gone when the rank wants to tell the others why it failed.
TEST_F(SymmetricMemoryTest, ARankThatCannotTellItsFailureStillGivesIt) {
  device_.start();
  board_.set("gpu/1", std::vector<uint8_t>{1, 2, 3});
  Noticeboard board = board_.noticeboard();
  board.set = [this](const std::string& key, std::span<const uint8_t> value) {
    if (key == "gpu/0/in") throw Error(Status::kPeerLost, "the board is gone");
    board_.set(key, value);
  };
  try {
    const SymmetricMemory memory(device_, 0, device_.allocate(0, kBytes), kBytes, device_.make_words(0, 4096),
                                 0, 2, board, in_time());
    FAIL() << "it took a notice of another build";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kMismatch);
    EXPECT_EQ(error.message(), "gpu: rank 1 runs another build of Towline");
  }
}

TEST_F(SymmetricMemoryTest, ARankThatFailsTellsTheOthersItsWords) {
  start();
  const auto piece = device_.allocate(0, kBytes);
  const UniqueFd real = connect();
  say(real, {notice_.key, 1}, piece.get());
  const std::string why = "the GPU is on fire";
  board_.set("gpu/1/in", {reinterpret_cast<const uint8_t*>(why.data()), why.size()});
  rank0_.join();
  EXPECT_NE(failure_.find("rank 1 failed: " + why), std::string::npos) << failure_;
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(SymmetricMemoryTest, MemoryThatIsNotWatchedHoldsNoDescriptors) {
  start();
  const auto piece = device_.allocate(0, kBytes);
  const UniqueFd real = connect();
  say(real, {notice_.key, 1}, piece.get());
  finish();
  ASSERT_EQ(failure_, "");
  const size_t watching = open_descriptors();
  memory_->stop_watching();
  EXPECT_EQ(open_descriptors(), watching - 3);
  EXPECT_EQ(memory_->lost(), std::nullopt);
}

// Else ranks of other processes would wait for its memory, and not hear that it failed.
TEST_F(SymmetricMemoryTest, ARankGivesItsMemoryAwayBeforeItFails) {
  device_.start();
  listener_ = packets::listen_on({true, name_});
  PieceNotice beside;
  beside.key = 78;  // no piece of this process
  beside.bytes = beside.length = kBytes;
  beside.host = read_host_identity();
  beside.gpu = device_.gpus()[0].uuid;
  beside.socket = name_;
  PieceNotice elsewhere = beside;
  elsewhere.key = 77;
  elsewhere.host.pid += 1;
  board_.set("gpu/1", encode(beside));
  board_.set("gpu/2", encode(elsewhere));
  try {
    const SymmetricMemory memory(device_, 0, device_.allocate(0, kBytes), kBytes, device_.make_words(0, 4096),
                                 0, 3, board_.noticeboard(), in_time());
    FAIL() << "it found a piece that nobody has";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "gpu: rank 1 of this process has freed its memory already");
  }
  UniqueFd spare = packets::open_spare();
  int none = 0;
  const UniqueFd visitor = packets::accept_visitor(listener_.get(), spare, none);
  packets::Packet hello;
  ASSERT_TRUE(visitor);
  EXPECT_EQ(packets::receive_packet(visitor.get(), hello), Status::kOk);
  EXPECT_EQ(hello.fd_count, 1u);
}

// A process that listens in rank 1's place, and a child of it that keeps what it had open.
class ProcessWithAChild {
 public:
  explicit ProcessWithAChild(const std::string& name) {
    int ready[2];
    int stays[2];
    EXPECT_EQ(pipe(ready), 0);
    EXPECT_EQ(pipe(stays), 0);
    process_ = fork();
    if (process_ == 0) {
      close(stays[1]);
      const UniqueFd listener = packets::listen_on({true, name});
      if (fork() != 0) pause();
      char ended = 0;
      // Until the test ends.
      _exit(write(ready[1], "", 1) == 1 && read(stays[0], &ended, 1) == 0 ? 0 : 1);
    }
    close(ready[1]);
    close(stays[0]);
    const UniqueFd heard(ready[0]);
    end_of_child_ = UniqueFd(stays[1]);
    char one = 0;
    EXPECT_EQ(read(heard.get(), &one, 1), 1);
  }
  ProcessWithAChild(const ProcessWithAChild&) = delete;
  ProcessWithAChild& operator=(const ProcessWithAChild&) = delete;
  ~ProcessWithAChild() { end(); }
  void end() {
    if (std::exchange(ended_, true)) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = -1;
  bool ended_ = false;
  UniqueFd end_of_child_;
};

TEST_F(SymmetricMemoryTest, ARankWhoseProcessIsGoneIsLostThoughItsChildrenLive) {
  ProcessWithAChild process(name_);
  listener_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));  // the process listens
  start();
  const auto piece = device_.allocate(0, kBytes);
  const UniqueFd real = connect();
  say(real, {notice_.key, 1}, piece.get());
  finish();
  ASSERT_EQ(failure_, "");
  EXPECT_EQ(memory_->lost(), std::nullopt);
  process.end();
  EXPECT_EQ(memory_->lost(), 1u);
  EXPECT_EQ(memory_->lost(), std::nullopt);  // told once
}

}  // namespace
}  // namespace towline::cuda
