// Takes back multipart uploads that came to nothing: what is left of one takes up room, and is paid for,
// until it is aborted. Where the server can't be reached it tries again until it can, or the instance ends.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>

#include "storage/object/client.h"

namespace towline::object {

// The request that begins an upload. Its answer names the upload.
struct Beginning {
  explicit Beginning(Client& its_client) : client(its_client) {}

  Client& client;
  Call call{};
  std::string upload_id{};
  std::atomic<bool> left{false};  // nobody heard its answer, for lack of memory
};

class Reaper {
 public:
  explicit Reaper(Client& client) : client_(client) {}
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // Any thread. Throws std::bad_alloc: the upload stays behind.
  void add(const ObjectName& name, const std::string& upload_id);
  // An upload that nobody wants any more, whose name may still come. On its client's thread.
  void await(std::shared_ptr<Beginning> beginning) noexcept;
  // Waits until all are gone, or the deadline; gives up the rest, naming them in the log. Any thread but the
  // client's.
  void finish(uint64_t deadline_ns);
  [[nodiscard]] uint32_t waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }

 private:
  struct Orphan {
    ObjectName name{};
    std::string upload_id{};
    Call call{};
    uint32_t aborted = 0;  // how often the server has said so
    uint64_t pause_ns = 0;
    Timers::Id timer = 0;
    bool left = false;  // nobody asks any more, for lack of memory
  };
  using Orphans = std::list<Orphan>;

  void adopt(const ObjectName& name, const std::string& upload_id);
  void ask(Orphans::iterator orphan) noexcept;
  void ended(Orphans::iterator orphan, const Answer& answer) noexcept;

  Client& client_;
  Orphans orphans_;                                   // on the client's thread
  std::list<std::shared_ptr<Beginning>> beginnings_;  // on the client's thread
  bool finished_ = false;
  std::atomic<uint32_t> waiting_{0};
};

}  // namespace towline::object
