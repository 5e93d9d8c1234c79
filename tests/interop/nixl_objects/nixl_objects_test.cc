// Objects through the backend OBJ of the drop-in for NIXL, at a real S3 server.
#include <cstdlib>

#include "support.h"
#include "support/s3_server.h"

namespace compat {
namespace {

using towline::support::S3Server;

class Objects : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!S3Server::program().empty()) server_ = std::make_unique<S3Server>();
  }
  static void TearDownTestSuite() { server_.reset(); }

  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << S3Server::kMissing;
    nixl_mem_list_t memories;
    nixl_b_params_t parameters;
    if (side.agent->getPluginParams("OBJ", memories, parameters) != NIXL_SUCCESS)
      GTEST_SKIP() << towline::nixl::last_error();
    ASSERT_EQ(memories, (nixl_mem_list_t{DRAM_SEG, OBJ_SEG}));
    ASSERT_EQ(side.agent->createBackend("OBJ", given("bucket"), side.backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side.agent->registerMem(side.registered()), NIXL_SUCCESS) << towline::nixl::last_error();
    side.fill('a');
  }

  // NIXL's parameters, the endpoint with and without its scheme.
  static nixl_b_params_t given(const std::string& bucket) {
    nixl_b_params_t parameters = {{"access_key", S3Server::kAccessKey},
                                  {"secret_key", S3Server::kSecretKey},
                                  {"endpoint_override", server_->url()},
                                  {"region", "us-east-1"},
                                  {"num_threads", "2"},
                                  {"crtMinLimit", "1048576"}};
    if (!bucket.empty()) parameters["bucket"] = bucket;
    return parameters;
  }
  static nixl_reg_dlist_t keys(const std::vector<std::string>& names, size_t bytes) {
    nixl_reg_dlist_t list(OBJ_SEG);
    for (size_t i = 0; i < names.size(); ++i) list.addDesc(nixlBlobDesc(0, bytes, i + 1, names[i]));
    return list;
  }
  static nixl_xfer_dlist_t whole(size_t count, size_t bytes, uint64_t first = 1) {
    nixl_xfer_dlist_t list(OBJ_SEG);
    for (size_t i = 0; i < count; ++i) list.emplace(uintptr_t{0}, bytes, first + i);
    return list;
  }

  static inline std::unique_ptr<S3Server> server_;
  Side side{"objects", 16 * 4096, nixlAgentConfig{}, false};
};

TEST_F(Objects, AreWrittenQueriedAndRead) {
  const nixl_reg_dlist_t objects = keys({"page/0", "page/1", "", "page/3"}, 4096);  // the third by its device
  ASSERT_EQ(side.agent->registerMem(objects), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_opt_args_t with;
  with.backends = {side.backend};
  std::vector<nixl_query_resp_t> found;
  ASSERT_EQ(side.agent->queryMem(objects, found, &with), NIXL_SUCCESS);
  for (const auto& one : found) EXPECT_FALSE(one.has_value());

  nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(4, 4096), whole(4, 4096), side.name);
  ASSERT_NE(write, nullptr);
  ASSERT_EQ(run(*side.agent, write), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_EQ(side.agent->queryMem(objects, found, &with), NIXL_SUCCESS);
  for (const auto& one : found) {
    ASSERT_TRUE(one.has_value());
    EXPECT_EQ(one->at("size"), "4096");
  }
  nixlBackendH* by = nullptr;
  EXPECT_EQ(side.agent->queryXferBackend(write, by), NIXL_SUCCESS);
  EXPECT_EQ(by, side.backend);

  // Another agent, which knows nothing of this one, by the device alone.
  Side other{"objects-reader", 16 * 4096, nixlAgentConfig{}, false};
  ASSERT_EQ(other.agent->createBackend("OBJ", given("bucket"), other.backend), NIXL_SUCCESS);
  ASSERT_EQ(other.agent->registerMem(other.registered()), NIXL_SUCCESS);
  nixl_reg_dlist_t third(OBJ_SEG);
  third.addDesc(nixlBlobDesc(0, 4096, 3, ""));
  ASSERT_EQ(other.agent->registerMem(third), NIXL_SUCCESS) << towline::nixl::last_error();
  nixlXferReqH* read = request(other, NIXL_READ, other.blocks(1, 4096), whole(1, 4096, 3), other.name);
  ASSERT_NE(read, nullptr);
  ASSERT_EQ(run(*other.agent, read), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(std::memcmp(other.memory.data(), &side.memory[2 * size_t{4096}], 4096), 0);
  EXPECT_EQ(other.agent->releaseXferReq(read), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(objects), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(side.registered()), NIXL_SUCCESS);
}

TEST_F(Objects, AreReplacedByShorterOnes) {
  const nixl_reg_dlist_t object = keys({"shrinks"}, 16384);
  ASSERT_EQ(side.agent->registerMem(object), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_opt_args_t with;
  with.backends = {side.backend};
  for (const size_t bytes : {16384, 4096, 8192, 1}) {
    nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(1, bytes), whole(1, bytes), side.name);
    ASSERT_NE(write, nullptr);
    ASSERT_EQ(run(*side.agent, write), NIXL_SUCCESS) << towline::nixl::last_error();
    EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
    std::vector<nixl_query_resp_t> found;
    ASSERT_EQ(side.agent->queryMem(object, found, &with), NIXL_SUCCESS);
    ASSERT_TRUE(found.at(0).has_value());
    EXPECT_EQ(found[0]->at("size"), std::to_string(bytes));
  }
  nixlXferReqH* read = request(side, NIXL_READ, side.blocks(1, 4096), whole(1, 4096), side.name);
  ASSERT_NE(read, nullptr);
  EXPECT_LT(run(*side.agent, read), 0) << "one byte is there";
  EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
}

TEST_F(Objects, StandBesideATransportInPreparedLists) {
  nixlBackendH* transport = nullptr;
  ASSERT_EQ(side.agent->createBackend("UCX", {}, transport), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->registerMem(keys({"a", "b"}, 4096)), NIXL_SUCCESS);
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  nixlDlistH* pages = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(side.blocks(4, 4096), here), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->prepXferDlist(side.name, whole(2, 4096), there), NIXL_SUCCESS)
      << towline::nixl::last_error();
  ASSERT_EQ(side.agent->prepXferDlist(side.name, side.blocks(4, 4096), pages), NIXL_SUCCESS);
  nixlXferReqH* store = nullptr;
  nixlXferReqH* move = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_WRITE, here, {3, 0}, there, {0, 1}, store), NIXL_SUCCESS)
      << towline::nixl::last_error();
  ASSERT_EQ(side.agent->makeXferReq(NIXL_WRITE, here, {0}, pages, {1}, move), NIXL_SUCCESS);
  EXPECT_EQ(run(*side.agent, store), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(run(*side.agent, move), NIXL_SUCCESS);
  nixlXferReqH* load = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_READ, here, {2}, there, {0}, load), NIXL_SUCCESS);
  ASSERT_EQ(run(*side.agent, load), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&side.memory[2 * size_t{4096}], &side.memory[3 * size_t{4096}], 4096), 0);
  for (nixlXferReqH* made : {store, move, load}) EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
}

TEST_F(Objects, ThatAreNotThereAreAnError) {
  ASSERT_EQ(side.agent->registerMem(keys({"absent"}, 4096)), NIXL_SUCCESS);
  nixlXferReqH* read = request(side, NIXL_READ, side.blocks(1, 4096), whole(1, 4096), side.name);
  ASSERT_NE(read, nullptr);
  EXPECT_LT(run(*side.agent, read), 0);
  nixlXferReqH* made = nullptr;
  EXPECT_EQ(side.agent->createXferReq(NIXL_READ, side.blocks(1, 4096), whole(1, 4096, 77), side.name, made),
            NIXL_ERR_NOT_FOUND);
}

TEST_F(Objects, ParametersAreChecked) {
  Side other{"objects-other", 4096, nixlAgentConfig{}, false};
  nixl_b_params_t parameters = given("bucket");
  parameters["num_threads"] = "many";
  EXPECT_EQ(other.agent->createBackend("OBJ", parameters, other.backend), NIXL_ERR_INVALID_PARAM);
  parameters = given("bucket");
  parameters["req_checksum"] = "sometimes";
  EXPECT_EQ(other.agent->createBackend("OBJ", parameters, other.backend), NIXL_ERR_INVALID_PARAM);
  ASSERT_EQ(other.agent->createBackend("OBJ", given(""), other.backend), NIXL_SUCCESS);
  EXPECT_EQ(other.agent->registerMem(other.registered()), NIXL_SUCCESS);
  if (std::getenv("AWS_DEFAULT_BUCKET") == nullptr) {  // NOLINT(concurrency-mt-unsafe)
    EXPECT_EQ(other.agent->registerMem(keys({"x"}, 4096)), NIXL_ERR_BACKEND);
  }
}

}  // namespace
}  // namespace compat
