#include "storage/posix/job.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "towline/towline.h"

namespace towline::posix {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBlocks = 8;

// A job of blocks that lie apart in the file.
class JobResult : public ::testing::Test {
 protected:
  JobResult() {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      local_.push_back({reinterpret_cast<uint64_t>(memory_.data()) + i * kBlock, kBlock, 0});
      remote_.push_back({2 * i * kBlock, kBlock, 0});
    }
    local_list_ = {sizeof local_list_, nullptr, local_.data(), kBlocks, kBlocks, kBlock, 1,
                   &memory_region_,    1};
    remote_list_ = {sizeof remote_list_, nullptr, remote_.data(), kBlocks, kBlocks, kBlock, 1,
                    &file_region_,       1};
    plan_ = {sizeof plan_, &local_list_, &remote_list_, &run_, 1, 1, 1, kBlocks, kBlocks * kBlock, kBlock};
    prepared_.plan = &plan_;
    job_.begin(prepared_, {sizeof(towline_submit_args), 1, 0, kBlocks * kBlock, nullptr, 0, 0, 0, nullptr});
  }

  Slice take(uint64_t blocks) {
    Slice slice;
    EXPECT_TRUE(job_.take(slice, blocks * kBlock));
    return slice;
  }
  void expect_named(uint64_t first, uint64_t end, Status status, int code) {
    const towline_part_result result = job_.result();
    EXPECT_EQ(result.failed_begin, first * kBlock);
    EXPECT_EQ(result.failed_end, end * kBlock);
    EXPECT_EQ(result.status, static_cast<int32_t>(status));
    EXPECT_EQ(result.vendor_code, code);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kBlocks * kBlock);
  std::vector<towline_flat_block> local_;
  std::vector<towline_flat_block> remote_;
  towline_region_ref memory_region_ = {0, 0, UINT64_MAX, 0, TOWLINE_MEMORY_DRAM, TOWLINE_ACCESS_ALL, 0, 0};
  towline_region_ref file_region_ = {0, 0, UINT64_MAX, 0, TOWLINE_MEMORY_FILE, TOWLINE_ACCESS_ALL, 0, 0};
  towline_run run_ = {0, 0, kBlocks, 0};
  towline_list local_list_ = {};
  towline_list remote_list_ = {};
  towline_plan plan_ = {};
  Prepared prepared_;
  Job job_;
};

TEST_F(JobResult, names_what_failed) {
  (void)take(4);
  job_.moved(3 * kBlock);
  job_.failed(Status::kIo, EIO, 3 * kBlock, 4 * kBlock);
  expect_named(3, 4, Status::kIo, EIO);
}

TEST_F(JobResult, names_what_others_left_before_the_failure) {
  (void)take(2);
  (void)take(2);
  job_.failed(Status::kIo, EIO, 3 * kBlock, 4 * kBlock);
  job_.moved(kBlock);
  job_.left(kBlock);  // the second block of the first slice
  expect_named(1, 4, Status::kIo, EIO);
}

TEST_F(JobResult, names_what_was_put_back_before_the_failure) {
  const Slice first = take(2);
  (void)take(2);
  job_.failed(Status::kIo, EIO, 3 * kBlock, 4 * kBlock);
  job_.put_back(first);
  expect_named(0, 4, Status::kIo, EIO);
}

TEST_F(JobResult, names_what_a_stop_has_left) {
  (void)take(2);
  job_.moved(2 * kBlock);
  job_.stop(Status::kCancelled);
  expect_named(2, kBlocks, Status::kCancelled, 0);
}

TEST_F(JobResult, names_nothing_of_a_job_that_is_done) {
  (void)take(kBlocks);
  job_.moved(kBlocks * kBlock);
  expect_named(0, 0, Status::kOk, 0);
}

}  // namespace
}  // namespace towline::posix
