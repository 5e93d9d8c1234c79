// WRITEs on their way. An object is written whole, so the parts that a plan was split into, each posted on a
// worker of its own, come together here before anything is begun.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/object/job.h"

namespace towline::object {

class Backend;

// Any thread.
class Joins {
 public:
  explicit Joins(Backend& backend) : backend_(backend) {}
  Joins(const Joins&) = delete;
  Joins& operator=(const Joins&) = delete;

  // Starts the plan's tasks once all of its parts are there. Throws std::bad_alloc, and then knows nothing of
  // this one; the others still wait for it.
  void add(Job& job);
  // True: the job still waited for others, and does no more.
  [[nodiscard]] bool take_back(Job& job) noexcept;
  // Hurries the job's tasks, also those of a READ.
  void stop(const Job& job, Status status, bool now);
  void forget(const Job& job) noexcept;

 private:
  struct Gathered {
    std::vector<Job*> jobs;
    uint64_t bytes = 0;
  };

  void start(const std::vector<Job*>& jobs);

  Backend& backend_;
  std::mutex mutex_;
  std::map<const towline_plan*, Gathered> gathering_;
  std::map<const Job*, std::vector<std::shared_ptr<Task>>> running_;
};

}  // namespace towline::object
