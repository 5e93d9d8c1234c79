// A communicator on GPUs of one host with two backends: the GPUs' own, and NCCL for the shapes that a table gives to it.
// Every rank decides alike: by what all ranks know of an operation, and by a table that they compare when they open.
//
// Each backend keeps its own operations in order. Operations of the two are in order within a stream only.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "towline/plugin/collective.h"

namespace towline::collectives {

// From how many bytes on NCCL does an operation: the larger of a rank's input and output.
class NcclShapes {
 public:
  // `text`: "all_reduce=512MiB, all_to_all=64MiB", "none", or "measured". Throws Error.
  NcclShapes(const std::string& text, int ranks);
  [[nodiscard]] bool has(const towline_collective_t& call, int ranks) const noexcept;
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::string text() const;

 private:
  std::array<uint64_t, TOWLINE_COLLECTIVE_BATCH> from_;  // by operation; UINT64_MAX: never
};

class PairedBackend {
 public:
  // `own`: the table of the GPUs' backend. Collective. Throws Error. Where NCCL can't be used, there is the own one only.
  PairedBackend(const towline_collective_open_args& args, const towline_collective_table_v1_t& own);
  PairedBackend(const PairedBackend&) = delete;
  PairedBackend& operator=(const PairedBackend&) = delete;
  ~PairedBackend();

  // One of the two backends.
  struct Side {
    const towline_collective_table_v1_t& table;
    towline_collective_backend* backend;
  };
  [[nodiscard]] Side side_of(const towline_collective_t& call) noexcept;
  [[nodiscard]] Side own() const noexcept { return {own_table_, own_}; }
  // The status of a call into either backend. A failure ends the operations of both; gives the status for which they ended.
  int32_t ended(int32_t status);
  // What either says of what its GPU reported. The own backend has `look`.
  [[nodiscard]] int32_t look() const noexcept;
  void abort(int32_t status, const char* text) { stop_both(status, text, false); }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const towline_collective_host_v1_t* host() const noexcept { return host_; }
  [[nodiscard]] std::string key_prefix() const { return "beside/"; }  // of NCCL's keys in the store

 private:
  void open_nccl(const towline_collective_open_args& args);
  void agree(const towline_collective_open_args& args);
  // Aborts both backends, once: true for the call that does. Any thread. `ask`: other ranks may have told a better reason.
  bool stop_both(int32_t status, const char* text, bool ask);
  // The reason that another rank has written, or nothing.
  [[nodiscard]] std::string reason_of_others();
  void close_one(const towline_collective_table_v1_t& table, towline_collective_backend*& side);

  [[nodiscard]] towline_collective_host_v1_t make_host();

  const towline_collective_host_v1_t* const host_;
  const towline_collective_table_v1_t& own_table_;
  const towline_collective_table_v1_t* nccl_table_ = nullptr;
  const int rank_;
  const int size_;
  const NcclShapes shapes_;
  towline_collective_host_v1_t own_host_ = {};
  towline_collective_host_v1_t nccl_host_ = {};
  std::string why_not_;  // there is no NCCL
  std::atomic<uint64_t> given_to_nccl_{0};
  std::mutex open_mutex_;  // guards the rest against threads of either that tell a failure
  std::condition_variable stopped_changed_;
  bool stopping_ = false;
  bool busy_stopping_ = false;
  bool has_reason_ = false;  // then the next two stay as they are
  std::string reason_;
  int32_t stopped_ = 0;
  towline_collective_backend* own_ = nullptr;
  towline_collective_backend* nccl_ = nullptr;
};

inline constexpr const char* kNcclFrom = "tuning.collectives.nccl_from";

// The table of such backends over `own`, but for open: use open_paired. The functions of windows are those of `own`.
towline_collective_table_v1_t paired_table(const towline_collective_table_v1_t& own);
int32_t open_paired(const towline_collective_open_args& args, const towline_collective_table_v1_t& own,
                    towline_collective_backend** backend);

}  // namespace towline::collectives
