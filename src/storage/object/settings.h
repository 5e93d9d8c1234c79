// The configuration of one instance, keys "object.*", "azure.*" or "gcs.*"; README.md explains them. Where a setting is not
// given, Amazon's, Azure's or Google's own variables are asked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "storage/object/names.h"
#include "storage/object/profile.h"
#include "storage/object/signer.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {

// Values of the process's environment.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

enum class ServerKind { kS3, kAzure, kGcs };

// The name of the backend for such servers, and of its settings.
[[nodiscard]] constexpr const char* backend_name(ServerKind kind) noexcept {
  return kind == ServerKind::kS3 ? "object" : kind == ServerKind::kAzure ? "azure" : "gcs";
}

enum class Checksum { kNone, kCrc32c, kSha256, kMd5, kCrc64 };

// The source of credentials.
enum class Source {
  kAuto,
  kSettings,
  kEnvironment,
  kProfile,
  kWebIdentity,
  kInstance,
  kTokenFile,
  kAccount,
  kNone
};

struct CredentialSettings {
  Source source = Source::kAuto;
  Keys keys{};                 // the settings' own
  std::string profile_name{};  // "default"
  std::vector<ProfileFile> profile_files{};
  Profile profile{};  // as it was when the settings were read
  std::string role_arn{};
  std::string token_file{};    // of a web identity; Google: that holds the token itself
  std::string account_file{};  // Google: JSON of a service account or a user
  std::string session_name{};
  std::string sts_url{};
  std::string metadata_url{};
  bool metadata_off = false;
  std::string missing{};  // Google: what is to be set; a failure only of those who use it
};

struct Settings {
  ServerKind kind = ServerKind::kS3;
  std::string sas;  // Azure: a shared access signature, added to every query
  std::string region;
  std::optional<Endpoint> endpoint;  // none: Amazon's, by region; Azure: nothing names the account
  Style style = Style::kAuto;
  std::string ca_file;
  std::string proxy;
  CredentialSettings credentials;

  uint32_t threads = 0;
  uint32_t concurrency = 0;       // requests at once
  uint64_t window = 0;            // bytes asked for or being sent at once
  uint64_t part_bytes = 0;        // of uploads and range GETs
  uint64_t multipart_bytes = 0;   // uploads from this size on are done in parts
  uint64_t collect_bytes = 0;     // of parts that are collected from staged chunks, at once
  uint64_t least_part_bytes = 0;  // S3's rule for every part but the last
  uint32_t attempts = 0;          // of a request; 0: a few, and until the deadline where a server is away
  uint64_t backoff_ns = 0;        // the first pause is up to this
  uint64_t backoff_most_ns = 0;
  uint64_t connect_timeout_ns = 0;
  uint64_t stall_timeout_ns = 0;    // a request that moves nothing for so long is begun anew
  uint64_t control_timeout_ns = 0;  // for opening, querying, committing
  uint64_t reap_after_ns = 0;       // UINT64_MAX: never
  bool writes_whole = false;        // a WRITE from byte 0 on is all of the new object
  Checksum checksum = Checksum::kCrc32c;
  std::optional<bool> sign_payload;  // none: where the line is not encrypted

  // A whole object that is read is compared with the server's checksum.
  [[nodiscard]] bool checks_reads() const noexcept {
    return checksum == Checksum::kCrc32c || (kind == ServerKind::kGcs && checksum != Checksum::kNone);
  }
  // The full name of one of its keys, for messages.
  [[nodiscard]] std::string name(const char* key) const {
    return std::string(backend_name(kind)) + "." + key;
  }

  // Throws plugin::Failure naming key and value.
  static Settings read(ServerKind kind, const plugin::Host& host, const Environment& environment);
};

}  // namespace towline::object
