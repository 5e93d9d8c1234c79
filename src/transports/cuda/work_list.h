// Converts a plan to the input of the copy kernel. See copy_job.h for the forms.
//
// A plan of one extent on each side and one run needs no list. Otherwise pairs of addresses are written, one
// for each block, or where blocks lie side by side on both sides, longer pieces.
#pragma once

#include <towline/plugin/plan.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/device.h"

namespace towline::cuda {

struct Ways {
  const uint64_t* local;   // for each local region what to add to its addresses
  const uint64_t* remote;  // the same for remote ones
  bool read;               // remote to local
  bool gathered = false;   // instead, to where a byte stands in the plan: to be shifted (CopyJob::to_shift)
};

class WorkList {
 public:
  // Throws Error. The plan must outlive it; the ways are not kept.
  WorkList(const towline_plan& plan, const Ways& ways, std::shared_ptr<CopyQueue> queue);
  WorkList(const WorkList&) = delete;
  WorkList& operator=(const WorkList&) = delete;
  ~WorkList();

  // The whole plan is one contiguous range on both sides.
  [[nodiscard]] bool one_piece() const noexcept { return one_piece_; }
  [[nodiscard]] bool has_list() const noexcept { return list_.host != nullptr; }
  [[nodiscard]] uint64_t to() const noexcept { return job_.to.address; }
  [[nodiscard]] uint64_t from() const noexcept { return job_.from.address; }
  [[nodiscard]] Form form() const noexcept { return job_.form; }

  // The job that moves bytes [begin, end) of the plan.
  [[nodiscard]] CopyJob job(uint64_t begin, uint64_t end) const noexcept;

 private:
  void make_one_piece(const towline_segment& segment, const Ways& ways);
  bool make_strided(const Ways& ways);
  void make_pairs(const Ways& ways);
  void fill_from_lines(Pair* pair, const Ways& ways);
  [[nodiscard]] Side gathered_side() const noexcept;
  void make_pieces(const Ways& ways);
  void set_piece_bytes(uint64_t bytes) noexcept;
  void finish_list();

  const towline_plan& plan_;
  const std::shared_ptr<CopyQueue> queue_;
  bool one_piece_ = false;
  CopyJob job_ = {};
  CopyQueue::List list_;
  uint64_t pieces_ = 0;  // of kPieces
};

// How many thread blocks the job can keep busy, at most `limit`.
uint32_t useful_blocks(const CopyJob& job, uint32_t limit) noexcept;

}  // namespace towline::cuda
