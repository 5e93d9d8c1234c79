// A WRITE whose bytes arrive in chunks: one post is staged through memory that later chunks use again
// (TOWLINE_SUBMIT_COLLECT). Each chunk is a job. It is copied into its part, and its job may end before that
// part is sent. So the staging memory may be smaller than a part.
//
// Chunks are copied in the order of the objects' bytes, whatever order they arrive in. A job ends when
//   - all of it is copied,
//   - every object whose last byte it holds has been written,
//   - and a later chunk has arrived. So until the post is over it always has a job, and cancel and the end of
//     the connection reach the collection through that.
// It can't deadlock: one part is filled at a time, a collection may always have one part (part_memory.h), and a
// part that is sent ends by itself.
// When an object fails, all jobs that have not ended fail with it, and the other writes are stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/object/job.h"
#include "storage/object/object_write.h"
#include "storage/object/part_memory.h"

namespace towline::object {

class Collection final : public Task, public WriteListener {
 public:
  Collection(Client& task_client, Reaper& reaper, std::atomic<uint64_t>& part_bytes);
  ~Collection() override;

  // One more of the post's chunks. Any thread. Throws std::bad_alloc, and then does not know of it.
  void add(Job& job);

 private:
  void start() override {}  // with the first chunk
  void stop(Status status, bool now) override;
  void take(Job& job) noexcept;
  void plan_writes(const Job& job);
  void failed(Status status, long http_status, uint64_t begin, uint64_t end) override;
  void moved(uint64_t) override {}  // jobs count what they bring
  void not_fenced() override;
  [[nodiscard]] bool urgent() const noexcept override { return is_urgent(); }
  void one_over() override { step_soon(); }
  void has_room() override { step_soon(); }

  struct NextStep final : object::Ending {
    explicit NextStep(Collection& its_collection) : collection(its_collection) {}
    void end() noexcept override;
    Collection& collection;
    std::shared_ptr<Task> kept;  // the collection, until then
  };

  void step_soon() noexcept;
  void step() noexcept;
  void fail(Status status, const char* text);
  void copy_chunks();
  // False: there is no room for the next byte.
  [[nodiscard]] bool copy(const Job& job);
  [[nodiscard]] ObjectWrite& writing(const Job& job);
  void end_jobs();
  [[nodiscard]] bool objects_are_there(const Job& job) const noexcept;

  Reaper& reaper_;
  PartMemory memory_;               // outlives the writes
  std::vector<Stretch> stretches_;  // one for each object, without segments
  uint64_t bytes_ = 0;              // of all
  size_t next_stretch_ = 0;
  std::deque<std::unique_ptr<ObjectWrite>> writes_;  // begun and not over
  uint64_t position_ = 0;                            // so much of the plan is copied
  Status status_ = Status::kOk;                      // why it failed, the first time
  long http_status_ = 0;
  uint64_t failed_begin_ = 0;
  uint64_t failed_end_ = 0;
  bool ending_ = false;
  NextStep next_step_{*this};
};

// The collections of posts that are under way. Any thread.
class Collections {
 public:
  // The post's; `make` makes one if it does not exist.
  template <class Make>
  [[nodiscard]] std::shared_ptr<Collection> join(const towline_post& post, Make&& make) {
    std::lock_guard lock(mutex_);
    std::erase_if(by_post_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Collection>& known = by_post_[post.number];
    std::shared_ptr<Collection> collection = known.lock();
    if (collection == nullptr) {
      collection = make();
      known = collection;
    }
    return collection;
  }

  std::atomic<uint64_t> part_bytes{0};  // that all of them hold

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Collection>> by_post_;
};

}  // namespace towline::object
