#include "metadata/etcd/codec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace towline::etcd {
namespace {

using nlohmann::json;

TEST(EtcdCodec, Base64GoesBothWays) {
  for (const auto& [bytes, text] :
       std::initializer_list<std::pair<std::string, std::string>>{{"", ""},
                                                                  {"f", "Zg=="},
                                                                  {"fo", "Zm8="},
                                                                  {"foo", "Zm9v"},
                                                                  {"foob", "Zm9vYg=="},
                                                                  {"\xff\xfe\xfd", "//79"}}) {
    EXPECT_EQ(to_base64(bytes), text);
    std::string back;
    EXPECT_TRUE(from_base64(text, back));
    EXPECT_EQ(back, bytes);
  }
}

TEST(EtcdCodec, WhatIsNotBase64IsRefused) {
  std::string bytes;
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg==Zg==", "Zh==", "Zm9=", "Zm 9", "Zm9\n", "====", "Z===", "-_-_"}) {
    EXPECT_FALSE(from_base64(text, bytes)) << text;
  }
}

TEST(EtcdCodec, ThePrefixsEndIsTheNextOne) {
  EXPECT_EQ(end_of_prefix("a/"), "a0");
  EXPECT_EQ(end_of_prefix("a\xff\xff"), "b");
  EXPECT_EQ(end_of_prefix("\xff"), std::string(1, '\0'));
}

TEST(EtcdCodec, RequestsAreAsTheGatewayWantsThem) {
  EXPECT_EQ(json::parse(put_request("k", "v", 7)),
            json::parse(R"({"key": "aw==", "value": "dg==", "lease": "7"})"));
  EXPECT_EQ(json::parse(range_request({{"k", "l"}, 3, 5, true})),
            json::parse(
                R"({"key": "aw==", "range_end": "bA==", "limit": "3", "revision": "5", "keys_only": true})"));
  EXPECT_EQ(
      json::parse(create_request("k", "v", 0)),
      json::parse(
          R"({"compare": [{"key": "aw==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                            "success": [{"request_put": {"key": "aw==", "value": "dg=="}}],
                            "failure": [{"request_range": {"key": "aw=="}}]})"));
  EXPECT_EQ(json::parse(grant_request(10)), json::parse(R"({"TTL": "10"})"));
  EXPECT_EQ(json::parse(lease_request(9)), json::parse(R"({"ID": "9"})"));
  EXPECT_EQ(json::parse(watch_request({"k", "l"}, 4, true)),
            json::parse(R"({"create_request": {"key": "aw==", "range_end": "bA==", "start_revision": "4",
                            "progress_notify": true, "filters": ["NOPUT"]}})"));
}

TEST(EtcdCodec, AnswersAreRead) {
  const RangeAnswer range = decode_range(
      R"({"header": {"cluster_id": "5", "revision": "12"}, "kvs": [{"key": "aw==", "value": "dg==",
          "mod_revision": "11", "lease": "3"}, {"key": "bA=="}], "more": true, "unknown": [1, {}]})");
  EXPECT_EQ(range.header.cluster_id, 5u);
  EXPECT_EQ(range.header.revision, 12u);
  EXPECT_TRUE(range.more);
  ASSERT_EQ(range.items.size(), 2u);
  EXPECT_EQ(range.items[0].value, "v");
  EXPECT_EQ(range.items[0].revision, 11u);
  EXPECT_EQ(range.items[0].lease, 3u);
  EXPECT_EQ(range.items[1].key, "l");
  EXPECT_EQ(range.items[1].value, "");

  const WatchAnswer watch = decode_watch(
      R"({"result": {"header": {"revision": 7}, "events": [{"kv": {"key": "aw==", "mod_revision": "6"}},
          {"type": "DELETE", "kv": {"key": "aw==", "mod_revision": "7"}}]}})");
  ASSERT_EQ(watch.events.size(), 2u);
  EXPECT_FALSE(watch.events[0].gone);
  EXPECT_TRUE(watch.events[1].gone);
  EXPECT_FALSE(watch.created);

  EXPECT_EQ(decode_keepalive(R"({"result": {"header": {}, "ID": "4", "TTL": "9"}})").ttl_s, 9u);
  EXPECT_EQ(decode_keepalive(R"({"result": {"header": {}, "ID": "4"}})").ttl_s, 0u);
  EXPECT_EQ(decode_token(R"({"header": {}, "token": "abc.12"})"), "abc.12");
  const CreateAnswer refused = decode_create(
      R"({"header": {}, "responses": [{"response_range": {"kvs": [{"key": "aw==", "value": "dg=="}]}}]})");
  EXPECT_FALSE(refused.created);
  ASSERT_EQ(refused.present.size(), 1u);
  EXPECT_EQ(refused.present[0].value, "v");
}

template <class Decode>
void expect_refused(Decode decode, std::string_view text) {
  try {
    (void)decode(text);
    ADD_FAILURE() << "taken: " << text.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kProtocol) << error.what();
    EXPECT_LT(error.message().size(), 1000u);
  }
}

TEST(EtcdCodec, GarbageIsRefused) {
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(), std::string("nonsense"), std::string("{}"),
        std::string(R"({"header": []})"), std::string(R"({"header": {"revision": "x"}})"),
        std::string(R"({"header": {"revision": -1}})"),
        std::string(R"({"header": {"revision": "99999999999999999999"}})"),
        std::string(R"({"header": {}, "kvs": {}})"), std::string(R"({"header": {}, "kvs": [1]})"),
        std::string(R"({"header": {}, "kvs": [{"key": "%"}]})"), std::string(R"({"header": {}, "more": 1})"),
        "{\"header\": " + std::string(100'000, '[')}) {
    expect_refused(decode_range, text);
  }
  expect_refused(decode_watch, R"({"result": {"header": {}, "events": [{"type": "ODD", "kv": {}}]}})");
  expect_refused(decode_watch, R"({"result": {"header": {}, "events": [{"type": "PUT"}]}})");
  expect_refused(decode_grant, R"({"header": {}})");
  expect_refused(decode_token, R"({"header": {}})");
  expect_refused(decode_token, R"({"token": "a\r\nHost: elsewhere"})");
}

TEST(EtcdCodec, RefusalsSayWhatToDoNext) {
  using Kind = Refusal::Kind;
  const auto kind = [](long status, const char* body) { return decode_refusal(status, body).kind; };
  EXPECT_EQ(kind(503, "busy"), Kind::kAgain);
  EXPECT_EQ(kind(404, "<html>"), Kind::kFinal);
  EXPECT_EQ(kind(401, R"({"error": "etcdserver: invalid auth token", "code": 16})"), Kind::kToken);
  EXPECT_EQ(kind(404, R"({"error": "etcdserver: requested lease not found", "code": 5})"), Kind::kNoLease);
  EXPECT_EQ(kind(400, R"({"message": "etcdserver: authentication is not enabled", "code": 9})"),
            Kind::kNoAuth);
  EXPECT_EQ(kind(400, R"({"error": "etcdserver: mvcc: required revision has been compacted", "code": 11})"),
            Kind::kCompacted);
  EXPECT_EQ(kind(503, R"({"error": "etcdserver: no leader", "code": 14})"), Kind::kAgain);
  EXPECT_EQ(kind(200, R"({"error": {"grpc_code": 7, "message": "etcdserver: permission denied"}})"),
            Kind::kFinal);
  EXPECT_EQ(decode_refusal(403, R"({"error": "etcdserver: permission denied", "code": 7})").status,
            Status::kPermissionDenied);
  EXPECT_NE(
      decode_refusal(400, R"({"error": "etcdserver: user name is empty", "code": 3})").text.find("etcd.user"),
      std::string::npos);
}

}  // namespace
}  // namespace towline::etcd
