// An urgent post to storage overtakes those that wait, and doesn't starve them.
#include <mutex>
#include <optional>
#include <thread>

#include "storage_fixture.h"

namespace towline::conformance {
namespace {

// One operation at a time, so that the order is seen; what is under way already is not overtaken.
#define TOWLINE_ONE_THREAD "threads = 1\nbatch = 1\npiece = \"1MiB\"\n"
const Store kNarrowStores[] = {
    {"pread", "[tuning.posix]\nengine = \"pread\"\ninline_bytes = 0\n"},
    {"threads", "[tuning.posix]\nengine = \"threads\"\nthreads = 1\ninline_bytes = 0\n"},
    {"uring_direct", "[tuning.posix]\nengine = \"uring\"\nqueue_depth = 1\ninline_bytes = 0\n", true},
    {"aio_direct", "[tuning.posix]\nengine = \"aio\"\nqueue_depth = 1\ninline_bytes = 0\n", true},
    {"gds", TOWLINE_GDS TOWLINE_ONE_THREAD, false, false, "gds"},
    {"hf3fs", TOWLINE_HF3FS TOWLINE_ONE_THREAD, false, false, "hf3fs"},
    {"object", "threads = 1\nconcurrency = 1\n", false, true, "s3"},
};

class StorageUrgentTest : public StorageTest {
 protected:
  static constexpr uint64_t kPageBytes = 1 << 20;  // as much as a backend does in one go
  static constexpr uint32_t kPages = 8;

  static constexpr uint32_t kPosts = 48;
  static constexpr size_t kOvertaken = 8;
  static constexpr int kTries = 20;

  struct Letter {
    StorageUrgentTest* test;
    char letter;
  };

  // The letters of posts, in the order in which they were done.
  [[nodiscard]] std::string order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  [[nodiscard]] std::string final_order() {
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (order().size() != posts_.size() && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    return order();
  }
  void open_file() {
    make_file("file", kPageBytes * kPages, 7);
    file_.emplace(open("file"));
    const BlockList in_file = agent_->block_list(file_->blocks(0, kPageBytes).repeat(kPages, kPageBytes));
    const BlockList in_memory =
        agent_->block_list(Blocks::at(memory_.data(), kPageBytes).repeat(kPages, kPageBytes));
    plan_.emplace(agent_->plan(in_file, in_memory));
  }
  void post(Letter& letter, Priority priority) {
    const uint32_t pages[] = {static_cast<uint32_t>(posts_.size()) % kPages};
    posts_.push_back(plan_->post({.from = pages,
                                  .to = pages,
                                  .deadline = 60s,
                                  .priority = priority,
                                  .user_data = &letter,
                                  .callback = [](const towline_completion_t* completion) {
                                    const auto& ended = *static_cast<Letter*>(completion->user_data);
                                    const std::lock_guard lock(ended.test->mutex_);
                                    ended.test->order_ += ended.letter;
                                  }}));
    ASSERT_FALSE(is_error(posts_.back().poll())) << posts_.back().error();
  }

  // One post after many of another priority ends before several of them. On a busy machine they may all be done when it is
  // posted, so it has several tries; where posts end in the order of their coming, no try succeeds.
  [[nodiscard]] bool overtakes(Letter& many, Priority their_priority, Letter& one, Priority priority) {
    for (int tries = 0; tries < kTries; ++tries) {
      posts_.clear();
      order_.clear();
      for (uint32_t i = 0; i < kPosts; ++i) post(many, their_priority);
      post(one, priority);
      const std::string seen = final_order();
      if (seen.size() != posts_.size()) return false;
      for (const Post& post : posts_) EXPECT_EQ(post.poll(), Status::kOk) << post.error();
      if (seen.find(one.letter) + kOvertaken < kPosts) return true;
    }
    return false;
  }

  Letter bulk_{this, 'b'};
  Letter urgent_{this, 'u'};
  std::optional<Region> file_;
  std::optional<Plan> plan_;
  std::vector<Post> posts_;
  std::mutex mutex_;
  std::string order_;
};

INSTANTIATE_TEST_SUITE_P(Narrow, StorageUrgentTest, ::testing::ValuesIn(kNarrowStores),
                         [](const auto& store) { return std::string(store.param.name); });

TEST_P(StorageUrgentTest, AnUrgentPostOvertakesThoseThatWait) {
  open_file();
  EXPECT_TRUE(overtakes(bulk_, Priority::bulk, urgent_, Priority::latency)) << order();
  EXPECT_EQ(first_difference(memory_.data(), kPageBytes * kPages, 7), kPageBytes * kPages);
}

// One turn in eight is its own.
TEST_P(StorageUrgentTest, UrgentPostsLeaveTheOthersATurn) {
  open_file();
  EXPECT_TRUE(overtakes(urgent_, Priority::latency, bulk_, Priority::bulk)) << order();
}

// The region can't go while its posts are under way. It and the posts may be released after the agent.
TEST_P(StorageUrgentTest, AFileThatWaitsForItsPostsIsClosedWithTheAgent) {
  open_file();
  for (uint32_t i = 0; i < kPosts; ++i) post(bulk_, Priority::bulk);
  (void)file_->deregister(Deadline{0ns});
  agent_->close();
  for (const Post& post : posts_) EXPECT_NE(post.poll(), Status::kInProgress);
  posts_.clear();
  plan_.reset();
  file_.reset();
  region_.reset();
  agent_.reset();
}

}  // namespace
}  // namespace towline::conformance
