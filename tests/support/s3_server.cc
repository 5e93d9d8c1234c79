#include "support/s3_server.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "support/loopback.h"
#include "support/object_settings.h"

namespace towline::support {

namespace {

// Empty: versitygw. Taken out of the environment before main, since agents and the command line warn of variables that look
// like settings and are none, which would be in the way of tests that read their output.
const std::string kMinio = [] {
  const char* const value = getenv("TOWLINE_TEST_MINIO");
  std::string program = value == nullptr ? "" : value;
  (void)unsetenv("TOWLINE_TEST_MINIO");
  return program;
}();

}  // namespace

std::string S3Server::program() { return kMinio.empty() ? found_program("versitygw") : kMinio; }

S3Server::S3Server(const std::vector<std::string>& buckets, std::string cert_file, std::string key_file)
    : cert_file_(std::move(cert_file)),
      key_file_(std::move(key_file)),
      minio_(!kMinio.empty()),
      port_(free_port()) {
  for (const std::string& bucket : buckets)
    std::filesystem::create_directories(folder_.path() + "/data/" + bucket);
  if (minio_ && !cert_file_.empty()) {
    const std::string certificates = folder_ / "certificates";
    std::filesystem::create_directories(certificates);
    std::filesystem::copy_file(cert_file_, certificates + "/public.crt");
    std::filesystem::copy_file(key_file_, certificates + "/private.key");
  }
  start();
}

void S3Server::start() {
  const std::string address = loopback_address(port_);
  const std::string data = folder_ / "data";
  std::vector<std::string> words;
  if (minio_) {
    words = {program(), "server", "--quiet", "--anonymous", "--address", address};
    if (!cert_file_.empty()) words.insert(words.end(), {"--certs-dir", folder_ / "certificates"});
    words.push_back(data);
  } else {
    words = {program(), "--port", address, "--region", "us-east-1", "-q", "--keep-alive"};
    if (!cert_file_.empty()) words.insert(words.end(), {"--cert", cert_file_, "--key", key_file_});
    words.insert(words.end(), {"posix", data});
  }
  process_.start(std::move(words),
                 {{"ROOT_ACCESS_KEY", kAccessKey},
                  {"ROOT_SECRET_KEY", kSecretKey},
                  {"MINIO_ROOT_USER", kAccessKey},
                  {"MINIO_ROOT_PASSWORD", kSecretKey},
                  {"MINIO_BROWSER", "off"},
                  {"MINIO_UPDATE", "off"},
                  {"MINIO_CI_CD", "1"}},
                 folder_ / "log", port_);
  // MinIO takes requests before it can answer them.
  while (minio_ && cert_file_.empty() &&
         answer_to("GET /bucket HTTP/1.0\r\n\r\n").find(" 503 ") != std::string::npos)
    (void)poll(nullptr, 0, kLookMs);
}

std::string S3Server::answer_to(const std::string& request) const {
  std::string answer;
  const int fd = connect_to(port_);
  if (fd < 0) return answer;
  char text[4096];
  ssize_t bytes = send_all(fd, request) ? 1 : 0;
  while (bytes > 0) {
    bytes = read(fd, text, sizeof text);
    if (bytes > 0) answer.append(text, static_cast<size_t>(bytes));
  }
  close(fd);
  return answer;
}

std::string S3Server::url() const {
  return (cert_file_.empty() ? "http://" : "https://") + loopback_address(port_);
}

std::string S3Server::config(const std::string& endpoint, const std::string& more,
                             const std::string& backend) {
  return "plugins = \"object\"\n" +
         object_settings(backend, "endpoint = \"" + endpoint + "\"\naccess_key = \"" + kAccessKey +
                                      "\"\nsecret_key = \"" + kSecretKey +
                                      "\"\nbackoff = \"1ms\"\nbackoff_most = \"20ms\"\n" + more);
}

size_t S3Server::unfinished_uploads() const {
  const std::string all = folder_ / (minio_ ? "data/.minio.sys/multipart" : "data/bucket/.sgwtmp/multipart");
  size_t uploads = 0;
  std::error_code none;
  for (const auto& key : std::filesystem::directory_iterator(all, none)) {
    for (const auto& upload : std::filesystem::directory_iterator(key.path(), none))
      uploads += upload.is_directory(none) ? 1u : 0u;
  }
  return uploads;
}

std::string S3Server::file(const std::string& bucket, const std::string& key) const {
  return folder_ / ("data/" + bucket + "/" + key);
}

}  // namespace towline::support
