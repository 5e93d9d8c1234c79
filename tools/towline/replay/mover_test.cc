#include "replay/mover.h"

#include <gtest/gtest.h>

namespace tool::replay {
namespace {

TEST(Mover, AFailedTransferIsDescribedInASentence) {
  const std::string route =
      R"({"backend":"tcp","regions":[{"key":7,"how":"framed"}],"others":[{"backend":"shm","why":"far"}]})";
  EXPECT_EQ(describe_failure(3, 512, 10, towline::Status::kPeerLost, route),
            "request 3: a transfer of 512 blocks by tcp (framed) failed at attempt 10: peer lost");
  EXPECT_EQ(
      describe_failure(3, 512, 1, towline::Status::kNoRoute, ""),
      "request 3: a transfer of 512 blocks by none failed at attempt 1: no backend reaches this memory");
}

}  // namespace
}  // namespace tool::replay
