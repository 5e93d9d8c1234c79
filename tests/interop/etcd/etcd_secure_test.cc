// Users and passwords, TLS.
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "support.h"

namespace towline::interop {
namespace {

constexpr const char* kPassword = "p4ss,w\\\"ord'";

class EtcdUsers : public WithEtcd {
 protected:
  // root with its password, and `agent` that may use /team/ only.
  static void turn_on(const Etcd& etcd) {
    (void)etcd.post("/v3/auth/user/add", R"({"name": "root", "password": "r00t"})");
    (void)etcd.post("/v3/auth/user/grant", R"({"user": "root", "role": "root"})");
    (void)etcd.post("/v3/auth/user/add", R"({"name": "agent", "password": "p4ss,w\\\"ord'"})");
    (void)etcd.post("/v3/auth/role/add", R"({"name": "team"})");
    // "/team/" to "/team0"
    (void)etcd.post(
        "/v3/auth/role/grant",
        R"({"name": "team", "perm": {"permType": 2, "key": "L3RlYW0v", "range_end": "L3RlYW0w"}})");
    (void)etcd.post("/v3/auth/user/grant", R"({"user": "agent", "role": "team"})");
    (void)etcd.post("/v3/auth/enable", "{}");
  }
  static std::string as(const std::string& user, const std::string& password) {
    return std::string(kQuick) + "[etcd]\nuser = '" + user + "'\npassword = '''" + password + "'''\n";
  }
};

TEST_F(EtcdUsers, AUserWithTheRightPasswordDoesWhatItMay) {
  Etcd etcd;
  turn_on(etcd);
  const Agent agent = make_agent("a", as("agent", kPassword));
  const Directory directory(agent, "etcd://" + etcd.address() + "/team");
  directory.publish().get();
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch).substr(0, 14), "put a/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  ASSERT_TRUE(eventually([&] { return watch.status() == Status::kOk; }));
  // The server forgets its tokens when it starts anew.
  etcd.stop(SIGTERM);
  etcd.start();
  directory.put("k", "v").get();
  EXPECT_EQ(next_of(watch), "put k=v");
  EXPECT_EQ(next_of(watch, 4s), "NOT_YET");  // the lease is kept alive with a new token
  const Directory elsewhere(agent, "etcd://" + etcd.address() + "/others");
  const DirectoryCall call = elsewhere.put("k", "v");
  EXPECT_EQ(call.wait(), Status::kPermissionDenied);
  EXPECT_NE(call.error().find("permission denied"), std::string_view::npos) << call.error();
  const Watch forbidden = elsewhere.watch();
  EXPECT_EQ(next_of(forbidden), "PERMISSION_DENIED");
  EXPECT_EQ(directory.info().find("p4ss"), std::string::npos);
}

TEST_F(EtcdUsers, AWrongPasswordOrNoneIsDeniedAndNeverShown) {
  Etcd etcd;
  turn_on(etcd);
  const Agent wrong = make_agent("a", as("agent", "s3cret"));
  const Directory directory(wrong, "etcd://" + etcd.address() + "/team");
  for (const DirectoryCall& call : {directory.get("k"), directory.publish()}) {
    EXPECT_EQ(call.wait(), Status::kPermissionDenied);
    EXPECT_NE(call.error().find("'agent'"), std::string_view::npos) << call.error();
    EXPECT_EQ(call.error().find("s3cret"), std::string_view::npos) << call.error();
  }
  EXPECT_EQ(directory.info().find("s3cret"), std::string::npos);
  const Agent none = make_agent("b");
  const Directory asking(none, "etcd://" + etcd.address() + "/team");
  const DirectoryCall call = asking.get("k");
  EXPECT_EQ(call.wait(), Status::kPermissionDenied);
  EXPECT_NE(call.error().find("etcd.user"), std::string_view::npos) << call.error();
}

TEST_F(EtcdUsers, AUserWhereNobodyIsAskedForOneIsNoError) {
  const Etcd etcd;
  const Agent agent = make_agent("a", as("agent", kPassword));
  const Directory directory(agent, "etcd://" + etcd.address());
  directory.put("k", "v").get();
  EXPECT_EQ(directory.get("k").get_value(), "v");
}

TEST_F(EtcdUsers, ThePasswordMayLieInAFile) {
  Etcd etcd;
  turn_on(etcd);
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/password") << kPassword << "\n";
  const Agent agent = make_agent("a", std::string(kQuick) + "[etcd]\nuser = 'agent'\npassword_file = '" +
                                          folder.path() + "/password'\n");
  Directory(agent, "etcd://" + etcd.address() + "/team").put("k", "v").get();
  const Agent missing =
      make_agent("b", std::string(kQuick) + "[etcd]\nuser = 'agent'\npassword_file = '/no/such/file'\n");
  const std::string text = error_of([&] { const Directory directory(missing, "etcd://" + etcd.address()); });
  EXPECT_NE(text.find("/no/such/file"), std::string::npos) << text;
}

// An authority, a server's certificate for 127.0.0.1 and a client's, made anew.
class Certificates {
 public:
  Certificates() {
    authority("ca");
    authority("other");
    issue("server", "subjectAltName=IP:127.0.0.1");
    issue("client", "extendedKeyUsage=clientAuth");
  }
  [[nodiscard]] std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  void run(const std::string& command) const {
    const std::string quiet = "cd " + folder_.path() + " && " + command + " >openssl.log 2>&1";
    if (std::system(quiet.c_str()) != 0) throw std::runtime_error("openssl fails: " + command);
  }
  void authority(const std::string& name) const {
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
        name + " -keyout " + name + ".key -out " + name + ".pem");
  }
  void issue(const std::string& name, const std::string& extension) const {
    std::ofstream(file(name + ".ext")) << extension << "\n";
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
        " -keyout " + name + ".key -out " + name + ".csr");
    run("openssl x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile " +
        name + ".ext -out " + name + ".pem");
  }

  TemporaryFolder folder_;
};

class EtcdTls : public WithEtcd {
 protected:
  void SetUp() override {
    WithEtcd::SetUp();
    if (IsSkipped()) return;
    if (std::system("command -v openssl >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no openssl here";
    certificates_ = std::make_unique<Certificates>();
  }
  [[nodiscard]] std::string with(const std::string& authority, bool client) const {
    std::string config =
        std::string(kQuick) + "[etcd]\nca_file = '" + certificates_->file(authority + ".pem") + "'\n";
    if (client) {
      config += "cert_file = '" + certificates_->file("client.pem") + "'\nkey_file = '" +
                certificates_->file("client.key") + "'\n";
    }
    return config;
  }
  std::unique_ptr<Certificates> certificates_;
};

TEST_F(EtcdTls, AServerOfATrustedAuthorityIsTalkedTo) {
  const Etcd etcd(
      {.cert_file = certificates_->file("server.pem"), .key_file = certificates_->file("server.key")});
  const Agent agent = make_agent("a", with("ca", false));
  const Directory directory(agent, "etcd+tls://" + etcd.address());
  directory.publish().get();
  const Watch watch = directory.watch();
  EXPECT_EQ(next_of(watch).substr(0, 14), "put a/metadata");
  EXPECT_EQ(next_of(watch), "synced");
  directory.put("k", "v").get();
  EXPECT_EQ(next_of(watch), "put k=v");

  const Agent wary = make_agent("b", with("other", false));
  const Directory distrusting(wary, "etcd+tls://" + etcd.address());
  const DirectoryCall denied = distrusting.get("k");
  EXPECT_EQ(denied.wait(), Status::kPermissionDenied);
  EXPECT_NE(denied.error().find("etcd.ca_file"), std::string_view::npos) << denied.error();
  const Directory plain(agent, "etcd://" + etcd.address());
  EXPECT_TRUE(is_error(plain.get("k", {.timeout = 2s}).wait()));
}

TEST_F(EtcdTls, AServerThatWantsACertificateGetsOne) {
  const Etcd etcd({.cert_file = certificates_->file("server.pem"),
                   .key_file = certificates_->file("server.key"),
                   .client_ca_file = certificates_->file("ca.pem")});
  const Agent agent = make_agent("a", with("ca", true));
  const Directory directory(agent, "etcd+tls://" + etcd.address());
  directory.put("k", "v").get();
  EXPECT_EQ(directory.get("k").get_value(), "v");
  const Agent without = make_agent("b", with("ca", false));
  const Directory refused(without, "etcd+tls://" + etcd.address());
  const DirectoryCall call = refused.get("k", {.timeout = 3s});
  EXPECT_TRUE(is_error(call.wait()));
  EXPECT_FALSE(call.error().empty());
}

}  // namespace
}  // namespace towline::interop
