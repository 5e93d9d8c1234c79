#include "replay/trace.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "failure.h"
#include "replay/generator.h"

namespace tool::replay {
namespace {

class TraceFile {
 public:
  explicit TraceFile(const std::string& text) {
    const int fd = mkstemp(path_);
    EXPECT_GE(fd, 0);
    close(fd);
    std::ofstream{path_} << text;
  }
  ~TraceFile() { unlink(path_); }
  [[nodiscard]] std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/towline-trace-XXXXXX";
};

std::string failure_of(const std::string& text) {
  const TraceFile file{text};
  try {
    (void)read_trace(file.path(), 100);
  } catch (const Failure& failure) {
    std::string what = failure.what();
    EXPECT_NE(what.find(file.path()), std::string::npos) << what;
    return what;
  }
  return "";
}

constexpr const char* kGood =
    R"({"timestamp": 3, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]})";

TEST(Trace, ReadsTheMooncakeFormat) {
  const TraceFile file{std::string{kGood} + "\n\n" + kGood + "\r\n" + kGood};
  const auto requests = read_trace(file.path(), 100);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[1].timestamp_ms, 3u);
  EXPECT_EQ(requests[1].input_tokens, 513u);
  EXPECT_EQ(requests[1].output_tokens, 5u);
  EXPECT_EQ(requests[1].hashes, (std::vector<uint64_t>{0, 7}));
  EXPECT_EQ(requests[1].block_tokens(0), 512u);
  EXPECT_EQ(requests[1].block_tokens(1), 1u);
  EXPECT_EQ(read_trace(file.path(), 2).size(), 2u);
}

TEST(Trace, AMalformedLineIsNamedByItsNumber) {
  const std::string good = std::string{kGood} + "\n";
  EXPECT_NE(failure_of(good + "{\"timestamp\": 1").find("line 2: not a JSON object"), std::string::npos);
  EXPECT_NE(failure_of(good + "\n[]").find("line 3: not a JSON object"), std::string::npos);
  EXPECT_NE(
      failure_of(R"({"timestamp": 1, "output_length": 1, "hash_ids": []})").find("'input_length' is missing"),
      std::string::npos);
  EXPECT_NE(failure_of(R"({"timestamp": 1, "input_length": -4, "output_length": 1, "hash_ids": []})")
                .find("'input_length' is -4"),
            std::string::npos);
  EXPECT_NE(failure_of(R"({"timestamp": 1, "input_length": 1e99, "output_length": 1, "hash_ids": []})")
                .find("'input_length'"),
            std::string::npos);
  EXPECT_NE(failure_of(R"({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1]})")
                .find("1 hash_ids for 600 tokens"),
            std::string::npos);
  EXPECT_NE(failure_of(R"({"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["a"]})")
                .find("not a whole number"),
            std::string::npos);
  EXPECT_NE(failure_of("\n").find("no request"), std::string::npos);
  EXPECT_THROW((void)read_trace("/does/not/exist", 1), Failure);
}

TEST(Trace, WhatCanBeReadOnlyOnceIsRefusedBeforeItIsRead) {
  const std::string path = testing::TempDir() + "towline_trace_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  try {
    (void)read_trace(path, 1);
    ADD_FAILURE() << "every prefill process would read a part of it";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string{failure.what()}.find("only once"), std::string::npos) << failure.what();
  }
  unlink(path.c_str());
}

TEST(Generator, HasTheShapeOfTheTrace) {
  const auto requests = generate_trace(12000, 1);
  const TraceShape shape = shape_of(requests);
  EXPECT_NEAR(shape.median_input_tokens, 6909, 350);
  EXPECT_NEAR(shape.mean_input_tokens, 12035, 500);
  EXPECT_LE(shape.largest_input_tokens, 126195u);
  const double distinct = static_cast<double>(shape.distinct_blocks) / static_cast<double>(shape.blocks);
  EXPECT_NEAR(distinct, 182790.0 / 288500.0, 0.04);
  for (const Request& request : requests) {
    ASSERT_EQ(request.hashes.size(), (request.input_tokens + 511) / 512);
    ASSERT_EQ(request.hashes[0], 0u);
  }
  EXPECT_NEAR(static_cast<double>(requests.back().timestamp_ms), 3600e3, 200e3);
}

TEST(Generator, IsGivenByItsSeed) {
  const auto one = generate_trace(50, 7);
  const auto same = generate_trace(50, 7);
  const auto other = generate_trace(50, 8);
  for (size_t index = 0; index < one.size(); ++index) EXPECT_EQ(one[index].hashes, same[index].hashes);
  EXPECT_NE(one[1].input_tokens, other[1].input_tokens);
}

}  // namespace
}  // namespace tool::replay
