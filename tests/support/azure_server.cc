#include "support/azure_server.h"

#ifdef TOWLINE_TEST_OPENSSL
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>
#include <stdexcept>

#include "support/loopback.h"
#include "support/object_settings.h"

namespace towline::support {

namespace {

#ifdef TOWLINE_TEST_OPENSSL
std::string decoded(const std::string& text) {
  std::string bytes(text.size(), '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  bytes.resize(static_cast<size_t>(length) - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0));
  return bytes;
}

std::string signature(const std::string& text) {
  const std::string key = decoded(AzureServer::kKey);
  std::array<unsigned char, 32> mac{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length);
  std::array<unsigned char, 64> encoded{};
  EVP_EncodeBlock(encoded.data(), mac.data(), static_cast<int>(mac.size()));
  return reinterpret_cast<const char*>(encoded.data());
}
#else
std::string signature(const std::string&) { return {}; }
#endif

}  // namespace

std::string AzureServer::program() {
#ifdef TOWLINE_TEST_OPENSSL
  return found_program("azurite-blob");
#else
  return {};
#endif
}

// It takes seconds to start, in which another process may get the port that was free.
AzureServer::AzureServer() {
  constexpr int kTries = 3;
  for (int attempt = 1;; ++attempt) {
    port_ = free_port();
    try {
      start();
      make_container();
      return;
    } catch (const std::runtime_error&) {
      if (attempt == kTries) throw;
      stop(SIGKILL);
    }
  }
}

void AzureServer::start() {
  process_.start({program(), "--blobHost", "127.0.0.1", "--blobPort", std::to_string(port_), "--location",
                  folder_.path(), "--silent", "--disableTelemetry"},
                 {}, folder_ / "log", port_);
}

std::string AzureServer::endpoint(uint16_t port) {
  return "http://" + loopback_address(port) + "/" + kAccount;
}

std::string AzureServer::config(uint16_t port, const std::string& more) {
  return "plugins = \"object\"\n" +
         object_settings("azure", "account = \"" + std::string(kAccount) + "\"\naccount_key = \"" + kKey +
                                      "\"\nendpoint = \"" + endpoint(port) +
                                      "\"\nbackoff = \"1ms\"\nbackoff_most = \"20ms\"\n" + more);
}

// The library makes no containers.
void AzureServer::make_container() const {
  const std::time_t now = std::time(nullptr);
  std::array<char, 64> date{};
  std::tm utc = {};
  gmtime_r(&now, &utc);
  std::strftime(date.data(), date.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  const std::string headers = "x-ms-date:" + std::string(date.data()) + "\nx-ms-version:2021-12-02\n";
  const std::string path = "/" + std::string(kAccount) + "/bucket";
  const std::string text =
      "PUT\n\n\n\n\n\n\n\n\n\n\n\n" + headers + "/" + kAccount + path + "\nrestype:container";
  const std::string request =
      "PUT " + path + "?restype=container HTTP/1.1\r\nHost: " + loopback_address(port_) +
      "\r\nx-ms-date: " + date.data() + "\r\nx-ms-version: 2021-12-02\r\nAuthorization: SharedKey " +
      kAccount + ":" + signature(text) + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  const int fd = connect_to(port_);
  std::string answer(4096, '\0');
  const ssize_t bytes = fd >= 0 && send_all(fd, request) ? read(fd, answer.data(), answer.size()) : -1;
  if (fd >= 0) close(fd);
  answer.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  if (answer.find(" 201 ") == std::string::npos)
    throw std::runtime_error("the emulator makes no container: " + answer);
}

}  // namespace towline::support
