// Object storage over TLS: a server is trusted through an authority of one's own.
#include <cstdlib>
#include <fstream>

#include "fixture.h"
#include "support/directed.h"

namespace towline::interop {
namespace {

class ObjectTls : public ObjectTest {
 protected:
  void SetUp() override {
    ObjectTest::SetUp();
    if (IsSkipped()) return;
    if (std::system("command -v openssl >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no openssl here";
    for (const std::string name : {"ca", "stranger"}) {
      shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
            name + " -keyout " + name + ".key -out " + name + ".pem");
    }
    std::ofstream(file("server.ext")) << "subjectAltName=IP:127.0.0.1\n";
    shell(
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server -keyout "
        "server.key -out server.csr");
    shell(
        "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile "
        "server.ext -out server.pem");
  }
  [[nodiscard]] std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  void shell(const std::string& command) const {
    if (std::system(("cd " + folder_.path() + " && " + command + " >openssl.log 2>&1").c_str()) != 0)
      throw std::runtime_error("openssl fails: " + command);
  }
  TemporaryFolder folder_;
};

TEST_F(ObjectTls, AServerOfATrustedAuthorityIsTalkedToAndNoOther) {
  const S3Server secure({"bucket"}, file("server.pem"), file("server.key"));
  connect(secure.url(), "ca_file = \"" + file("ca.pem") + "\"\nmultipart = \"6MiB\"\n");
  const Region object = open("secure", {.create = true, .bytes = 12 << 20});
  stamp_bytes(memory_.data(), 12 << 20, 1);
  ASSERT_EQ(move(Op::write, 0, object, 0, 12 << 20), Status::kOk);
  std::memset(memory_.data(), 0, 12 << 20);
  ASSERT_EQ(move(Op::read, 0, object, 0, 12 << 20), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 12 << 20, 1), uint64_t{12} << 20);

  const Agent wary("wary",
                   options_for(config_for(secure.url(), "ca_file = \"" + file("stranger.pem") + "\"\n")));
  const auto [status, text] = refusal(wary, "s3://bucket/secure");
  EXPECT_EQ(status, Status::kPermissionDenied) << text;
  EXPECT_NE(text.find("object.ca_file"), std::string::npos) << text;
}

}  // namespace
}  // namespace towline::interop
