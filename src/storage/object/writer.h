// WRITE: stretches of objects as PUTs, multipart uploads, or multipart copies around what is new.
//
// An object can only be written whole. So the server copies the bytes outside a WRITE, as parts of a
// multipart upload, if S3's rules for part sizes allow it. A region that replaces (TOWLINE_STORAGE_REPLACE)
// collects parts over many transfers instead, on a grid, until it is committed.
#pragma once

#include <memory>
#include <vector>

#include "storage/object/job.h"
#include "storage/object/object_write.h"

namespace towline::object {

// Of the plan's objects, every `count`th from `first` on.
struct Share {
  size_t first = 0;
  size_t count = 1;
};

// The objects are begun one after the other, as there is room for their requests: what is made before it can be sent holds up the first.
class Writer final : public Task, public WriteListener, private Feeder {
 public:
  // A share of the plan's objects, for all of the plan's parts.
  Writer(Client& task_client, Prepared& prepared, const std::vector<Job*>& parts, Share share);
  ~Writer() override;

 private:
  void failed(Status status, long http_status, uint64_t begin, uint64_t end) override;
  void moved(uint64_t bytes) override;
  void not_fenced() override;
  [[nodiscard]] bool urgent() const noexcept override { return is_urgent(); }
  void one_over() override;
  void start() override;
  void stop(Status status, bool now) override;
  bool feed() override;

  Prepared& prepared_;
  const Share share_;
  std::vector<std::unique_ptr<ObjectWrite>> writes_;
  size_t next_ = 0;  // to be begun
  size_t left_ = 0;
};

}  // namespace towline::object
