// WRITE: stretches of objects as PUTs, multipart uploads, or multipart copies around what is new.
//
// An object can only be written whole. So the server copies the bytes outside a WRITE, as parts of a
// multipart upload, if S3's rules for part sizes allow it. A region that replaces (TOWLINE_STORAGE_REPLACE)
// collects parts over many transfers instead, on a grid, until it is committed.
#pragma once

#include <memory>
#include <vector>

#include "storage/object/job.h"

namespace towline::object {

class ObjectWrite;

class Writer final : public Task {
 public:
  // The whole plan, for all of its parts.
  Writer(Client& task_client, Prepared& prepared, const std::vector<Job*>& parts);
  ~Writer() override;

  void failed(Status status, long http_status, uint64_t begin, uint64_t end);
  void moved(uint64_t bytes);
  void not_fenced();
  void one_over();

 private:
  void start() override;
  void stop(Status status, bool now) override;

  Prepared& prepared_;
  std::vector<std::unique_ptr<ObjectWrite>> writes_;
  size_t left_ = 0;
};

}  // namespace towline::object
