#include "storing/own_connection.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/failing_new.h"
#include "towline/towline.h"

namespace towline::storing {
namespace {

class Connection : public OwnConnection {
 public:
  using OwnConnection::OwnConnection;
};

// Takes the messages that arrive.
class OwnMessages : public ::testing::Test {
 protected:
  OwnMessages() {
    table_.struct_size = sizeof table_;
    table_.context = this;
    table_.wake = [](void*, uint32_t) {};
    table_.message = [](void*, void* peer, const void* data, size_t bytes) {
      static_cast<OwnMessages*>(peer)->arrived_.assign(static_cast<const char*>(data), bytes);
    };
  }

  std::string arrived_;
  towline_host_v1_t table_ = {};
  Names names_ = {"test", "things"};
};

TEST_F(OwnMessages, follow_a_part_that_is_done) {
  const plugin::Host host(&table_);
  Connection connection(host, names_, 0, this);
  const std::array<uint8_t, 4> message = {'d', 'o', 'n', 'e'};
  towline_part_result failed = {sizeof failed, TOWLINE_IO, 5, 3, 0, 0, 0, 10};
  connection.send_after(message, failed);
  EXPECT_EQ(connection.deliver(), 0u);
  towline_part_result done = {sizeof done, TOWLINE_OK, 0, 3, 0, 10, 0, 0};
  connection.send_after(message, done);
  EXPECT_EQ(done.status, TOWLINE_OK);
  EXPECT_EQ(connection.deliver(), 1u);
  EXPECT_EQ(arrived_, "done");
}

TEST_F(OwnMessages, that_can_not_be_sent_are_the_parts_failure) {
  const plugin::Host host(&table_);
  Connection connection(host, names_, 0, this);
  const std::array<uint8_t, 4> message = {'d', 'o', 'n', 'e'};
  towline_part_result result = {sizeof result, TOWLINE_OK, 0, 3, 0, 10, 0, 0};
  support::fail_allocations();
  connection.send_after(message, result);
  support::stop_failing();
  EXPECT_EQ(result.status, TOWLINE_OUT_OF_MEMORY);
  EXPECT_EQ(connection.deliver(), 0u);
}

}  // namespace
}  // namespace towline::storing
