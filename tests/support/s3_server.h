// A real S3 server: versitygw, or MinIO where TOWLINE_TEST_MINIO names its program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/server_process.h"
#include "support/temporary_folder.h"

namespace towline::support {

class S3Server {
 public:
  static constexpr const char* kAccessKey = "test";
  static constexpr const char* kSecretKey = "testtest1";
  static constexpr const char* kMissing =
      "there is no versitygw here: scripts/install-deps test installs it where there is Go";

  static std::string program();  // empty: not installed
  explicit S3Server(const std::vector<std::string>& buckets = {"bucket"}, std::string cert_file = {},
                    std::string key_file = {});

  void start();  // waits until it answers
  void stop(int signal) { process_.stop(signal); }
  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] std::string url() const;
  // TOML for an agent that is to reach this server through `endpoint` (itself, or a proxy before it).
  // `backend`: of the plugin's, "object" or "gcs".
  [[nodiscard]] static std::string config(const std::string& endpoint, const std::string& more = {},
                                          const std::string& backend = "object");
  // Multipart uploads that it still has parts of, in "bucket".
  [[nodiscard]] size_t unfinished_uploads() const;
  // Whether an object is a file of the same bytes, and which.
  [[nodiscard]] bool has_files() const { return !minio_; }
  [[nodiscard]] std::string file(const std::string& bucket, const std::string& key) const;

 private:
  [[nodiscard]] std::string answer_to(const std::string& request) const;  // without TLS

  TemporaryFolder folder_;
  const std::string cert_file_;
  const std::string key_file_;
  const bool minio_;
  const uint16_t port_;
  ServerProcess process_;
};

}  // namespace towline::support
