// Compiles two lists and what is picked from them into a plan (towline/plugin/plan.h).
#pragma once

#include <towline/plugin/plan.h>
#include <towline/towline.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "plan/resolved_list.h"

namespace towline {

inline constexpr uint64_t kMaxPickedBlocks = 10'000'000;  // by index; ranges of one run may be longer
inline constexpr uint64_t kMinCutBytes = 64;              // where no block size divides the other

// Immutable. Looks into its lists, which outlive it. Moving it moves view(): give backends the address only
// once it has its place.
class Plan {
 public:
  // Pairs the picked blocks of both lists in order; null picks mean all blocks. Index arrays are read during
  // the call only. Throws Error, naming positions and values:
  //   kInvalidArgument   index_bytes not 4 or 8, nothing picked, a block picked twice or overlapping another
  //   where the
  //                      bytes land (local for TOWLINE_READ, remote for TOWLINE_WRITE)
  //   kOutOfRange        an index or range that leaves its list
  //   kMismatch          sides of different size, or block sizes that cannot be cut to fit
  //   kPermissionDenied  a remote region without the access that op needs
  //   kLimitExceeded     more than kMaxPickedBlocks by index (or after cutting), or 2^32 blocks and more
  static Plan compile(const ResolvedList& local, const towline_picks_t* local_picks,
                      const ResolvedList& remote, const towline_picks_t* remote_picks, uint32_t op);

  // Nothing, to be compiled again.
  [[nodiscard]] static Plan none() { return {}; }
  // The same in place, with the memory of the last time: nothing is allocated once that suffices. After an error
  // there is nothing to be used until it succeeds.
  void compile_again(const ResolvedList& local, const towline_picks_t* local_picks,
                     const ResolvedList& remote, const towline_picks_t* remote_picks, uint32_t op);

  // Block i of one against block i of the other, all of them, as one run. The target's blocks may overlap:
  // the caller must not post overlapping ranges at the same time. Throws Error as compile does.
  static Plan in_order(const ResolvedList& local, const ResolvedList& remote, uint32_t op);

  Plan(Plan&& other) noexcept;
  ~Plan();
  Plan& operator=(Plan&&) = delete;

  [[nodiscard]] const towline_plan& view() const noexcept { return view_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return view_.bytes; }
  // As picked on the local side, before cutting.
  [[nodiscard]] uint64_t picked_blocks() const noexcept { return view_.blocks / local_parts_; }
  // Which picked block of the local side holds this byte of the plan; picked_blocks() at the end.
  [[nodiscard]] uint64_t picked_block_at(uint64_t position) const noexcept;
  // The size of the plan itself, without its lists.
  [[nodiscard]] uint64_t memory_bytes() const noexcept;

 private:
  friend class PlanCompiler;
  struct Memory;
  Plan();
  [[nodiscard]] bool take_one(const ResolvedList& local, const towline_picks_t* local_picks,
                              const ResolvedList& remote, const towline_picks_t* remote_picks,
                              uint32_t op) noexcept;
  [[nodiscard]] towline_run* runs() noexcept { return runs_ != nullptr ? runs_.get() : &one_run_; }

  towline_plan view_ = plugin::sized<towline_plan>();
  uint64_t local_parts_ = 1;
  towline_run one_run_ = {};             // most plans have no more
  std::unique_ptr<towline_run[]> runs_;  // null: that one
  uint64_t run_capacity_ = 0;
  std::unique_ptr<Memory> memory_;  // of compile_again(), from the first time on
};

}  // namespace towline
