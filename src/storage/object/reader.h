// READ: a stretch of a plan as range GETs, several at a time, each straight into the memory it belongs to.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "storage/object/job.h"
#include "towline/plugin/cursor.hpp"

namespace towline::object {

class Reader final : public Task, private Feeder {
 public:
  // Bytes [begin, end) of the job's plan.
  Reader(Client& task_client, Job& job, uint64_t begin, uint64_t end);

 private:
  // One GET: neighbours in the plan and in one object.
  struct Fetch {
    Call call;
    std::vector<towline_segment> segments;
    uint64_t plan_begin = 0;
    uint64_t offset = 0;  // in the object
    uint64_t bytes = 0;
    uint64_t done = 0;       // came so far
    uint64_t on_server = 0;  // of `bytes`, what the server has
    bool whole = false;      // the object is asked for, not a range: of ranges most servers tell no checksum
    size_t segment = 0;      // where the next byte goes
    uint64_t in_segment = 0;
    uint32_t crc = 0;
    bool under_way = false;
    std::string version;  // that the request insists on
  };

  [[nodiscard]] bool urgent() const noexcept override { return job_.urgent; }
  void start() override;
  void stop(Status status, bool now) override;
  bool feed() override;

  [[nodiscard]] Object& object_of(const Fetch& fetch) const noexcept {
    return *job_.prepared.objects[fetch.segments[0].remote_region];
  }
  [[nodiscard]] bool fill();
  void take(Fetch& fetch);
  void ask(Fetch& fetch);
  void learn(const Answer& answer, uint64_t bytes);
  [[nodiscard]] Verdict begins(Fetch& fetch, const Answer& answer);
  [[nodiscard]] Verdict takes(Fetch& fetch, std::span<const std::byte> bytes);
  [[nodiscard]] Verdict check(Fetch& fetch, const Answer& answer);
  void done(Fetch& fetch, const Answer& answer);
  void end_if_over();
  [[nodiscard]] bool has_more() const noexcept {
    return !stopped_ && position_ < end_ && position_ < job_.failed_from();
  }

  Job& job_;
  plugin::Cursor cursor_;
  std::vector<towline_segment> segments_;
  size_t next_segment_ = 0;
  size_t segment_count_ = 0;
  const uint64_t objects_;  // that it reads, about
  uint64_t position_ = 0;   // in the plan, of what is taken next
  const uint64_t end_;
  bool stopped_ = false;
  uint32_t under_way_ = 0;
  std::deque<Fetch> fetches_;  // all that were ever needed at once
  std::vector<Fetch*> free_;
};

}  // namespace towline::object
