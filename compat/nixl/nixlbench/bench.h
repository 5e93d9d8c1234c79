// The measurement: one step for each block and batch size, between two processes or against storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nixl.h>
#include "flags.h"
#include "meeting.h"

namespace nixlbench {

struct Samples {
  std::vector<double> us;
  [[nodiscard]] double average() const;
  [[nodiscard]] double p99();
};

struct Stats {
  Samples prepare, post, transfer;
  double total_us = 0;  // of the slowest thread
};

// Throws std::exception where this process can't make --backend: better than when both processes have met.
void need_backend(const Flags& flags);

class Bench {
 public:
  // `meeting`: null for storage. Throws std::exception.
  Bench(const Flags& flags, const Meeting* meeting);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // All steps. False: bytes were found that should not be there.
  [[nodiscard]] bool run();

 private:
  struct Storage;

  [[nodiscard]] bool initiates() const { return meeting_ == nullptr || meeting_->rank() == 0; }
  [[nodiscard]] bool run_step(uint64_t block, uint64_t batch);
  [[nodiscard]] bool serve_step(uint64_t block, uint64_t batch);
  void measure_thread(uint64_t thread, uint64_t block, uint64_t batch, Stats& stats) const;
  [[nodiscard]] nixlXferReqH* make_request(nixl_xfer_op_t operation, uint64_t thread, uint64_t block,
                                           uint64_t batch, uint64_t slot) const;
  void await(nixlXferReqH* request) const;
  // The offset of a thread's block `index` in its share.
  [[nodiscard]] uint64_t offset_of(uint64_t index, uint64_t block) const;
  void fill(uint64_t block, uint64_t count, unsigned char value) const;
  [[nodiscard]] bool holds(uint64_t block, uint64_t count, unsigned char value) const;
  void prepare_storage(uint64_t block, uint64_t count);
  void move_all(nixl_xfer_op_t operation, uint64_t block, uint64_t count) const;
  void exchange();

  const Flags flags_;
  const Meeting* const meeting_;
  const uint64_t share_;  // bytes of a thread
  char* memory_ = nullptr;
  uint64_t remote_ = 0;  // where the target's memory begins
  std::string remote_name_;
  std::unique_ptr<Storage> storage_;  // null: memory
  std::unique_ptr<nixlAgent> agent_;
  nixlBackendH* backend_ = nullptr;
};

}  // namespace nixlbench
