// Tables that another thread of the application writes to while a call reads them: each value is used as it was checked.
// (Indices are Towline's to read: see plan_test.)
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "support.h"

// The name is on ThreadSanitizer's list: it writes without order on purpose.
namespace towline::testing {

// Calls `use` for half a second, meanwhile another thread writes one value and the other.
template <class Value>
void while_written(Value& place, Value one, Value other, const std::function<void()>& use) {
  const std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      __atomic_store_n(&place, other, __ATOMIC_RELAXED);
      __atomic_store_n(&place, one, __ATOMIC_RELAXED);
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure()) use();
}

}  // namespace towline::testing

namespace compat {
namespace {

using towline::nixl::StridedRows;
using towline::testing::while_written;
using Row = std::array<uint64_t, 5>;  // address, length, device, stride, number of descriptors

class Refilled : public testing::Test {
 protected:
  // The list over these rows, which is freed again.
  nixl_status_t prepare(nixl_mem_t type, const std::vector<Row>& rows) const {
    nixlDlistH* list = nullptr;
    const nixl_status_t status = towline::nixl::prep_strided_dlist(
        *side.agent, side.name, type, StridedRows{rows.front().data(), rows.size()}, list);
    if (status == NIXL_SUCCESS) {
      EXPECT_EQ(side.agent->releasedDlistH(list), NIXL_SUCCESS);
    }
    return status;
  }

  Side side{"refilled"};
};

// They are counted, and then written out one by one.
TEST_F(Refilled, RowsOfAFileAreWrittenOutAsTheyWereCounted) {
  constexpr uint64_t kMany = 5000;
  constexpr uint64_t kDevice = 7;
  const std::string path = testing::TempDir() + "compat_nixl_refilled_" + std::to_string(getpid());
  nixlBackendH* backend = nullptr;
  ASSERT_EQ(side.agent->createBackend("POSIX", {}, backend), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_reg_dlist_t file(FILE_SEG);
  file.addDesc(nixlBlobDesc(0, kMany * 16, kDevice, "rw,create:" + path));
  ASSERT_EQ(side.agent->registerMem(file), NIXL_SUCCESS) << towline::nixl::last_error();
  // Rows that were not written out would else be those of the call before, which lay in the same memory.
  (void)mallopt(M_PERTURB, 0xa5);
  std::vector<Row> rows = {{0, 16, kDevice, 16, kMany}};
  while_written(rows[0][4], kMany, uint64_t{2},
                [&] { EXPECT_EQ(prepare(FILE_SEG, rows), NIXL_SUCCESS) << towline::nixl::last_error(); });
  (void)mallopt(M_PERTURB, 0);
  EXPECT_EQ(side.agent->deregisterMem(file), NIXL_SUCCESS);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace compat
