#include "storage/object/settings.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "storage/object/settings_reader.h"

namespace towline::object {

namespace {

constexpr uint64_t kAmazonLeastPart = 5 << 20;
constexpr uint64_t kLongestBackoffNs = 3600 * kSecondNs;
constexpr const char* kInstanceUrl = "http://169.254.169.254";

constexpr int number(Source source) { return static_cast<int>(source); }

std::vector<ProfileFile> profile_files(const Environment& environment) {
  const std::string home = environment("HOME").value_or("");
  std::vector<ProfileFile> files;
  const auto add = [&](const char* variable, const char* below_home, bool is_config) {
    const auto named = environment(variable);
    if (named || !home.empty()) files.push_back({named ? *named : home + below_home, is_config});
  };
  add("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials", false);
  add("AWS_CONFIG_FILE", "/.aws/config", true);
  return files;
}

CredentialSettings read_credentials(const SettingsReader& reader, const Environment& environment) {
  CredentialSettings credentials;
  credentials.source = reader.choice<Source>("credentials", {{"auto", number(Source::kAuto)},
                                                             {"settings", number(Source::kSettings)},
                                                             {"environment", number(Source::kEnvironment)},
                                                             {"profile", number(Source::kProfile)},
                                                             {"web_identity", number(Source::kWebIdentity)},
                                                             {"instance", number(Source::kInstance)},
                                                             {"none", number(Source::kNone)}});
  credentials.keys = {reader.text("access_key"), read_secret(reader, "secret_key", "secret_key_file"),
                      reader.text("session_token")};
  credentials.profile_name = reader.text_or("profile", {"AWS_PROFILE"});
  if (credentials.profile_name.empty()) credentials.profile_name = "default";
  credentials.profile_files = profile_files(environment);
  credentials.profile = read_profile_files(credentials.profile_files, credentials.profile_name);
  credentials.role_arn = reader.text_or("role_arn", {"AWS_ROLE_ARN"});
  if (credentials.role_arn.empty()) credentials.role_arn = profile_value(credentials.profile, "role_arn");
  credentials.token_file = reader.text_or("web_identity_token_file", {"AWS_WEB_IDENTITY_TOKEN_FILE"});
  if (credentials.token_file.empty())
    credentials.token_file = profile_value(credentials.profile, "web_identity_token_file");
  credentials.session_name = reader.text_or("role_session_name", {"AWS_ROLE_SESSION_NAME"});
  if (credentials.session_name.empty()) credentials.session_name = "towline";
  credentials.sts_url = reader.text_or("sts_endpoint", {"AWS_ENDPOINT_URL_STS"});
  credentials.metadata_url = reader.text_or("metadata_endpoint", {"AWS_EC2_METADATA_SERVICE_ENDPOINT"});
  if (credentials.metadata_url.empty()) credentials.metadata_url = kInstanceUrl;
  while (credentials.metadata_url.ends_with('/')) credentials.metadata_url.pop_back();
  credentials.metadata_off = environment("AWS_EC2_METADATA_DISABLED").value_or("") == "true";
  return credentials;
}

// Settings that both kinds of servers have.
void read_common(const SettingsReader& reader, Settings& settings) {
  settings.proxy = reader.text("proxy");
  settings.threads = reader.count("threads", "2", 1, 64);
  settings.concurrency = reader.count("concurrency", "64", 1, 4096);
  settings.window = reader.bytes("window", "256MiB", 1 << 16, UINT64_MAX);
  settings.part_bytes = reader.bytes("part", "8MiB", settings.least_part_bytes, uint64_t{5} << 30);
  settings.multipart_bytes = reader.bytes("multipart", "16MiB", 1, uint64_t{5} << 30);
  settings.collect_bytes = reader.bytes("collect", "64MiB", 0, UINT64_MAX);
  settings.attempts = reader.count("attempts", "0", 0, 100);
  settings.backoff_ns = reader.duration("backoff", "100ms", 1, kLongestBackoffNs);
  settings.backoff_most_ns = reader.duration("backoff_most", "5s", 1, kLongestBackoffNs);
  settings.connect_timeout_ns = reader.duration("connect_timeout", "5s", 1'000'000);
  settings.stall_timeout_ns = reader.duration("stall_timeout", "20s", 1'000'000'000);
  settings.control_timeout_ns = reader.duration("control_timeout", "60s", 1'000'000);
  settings.writes_whole = reader.choice<int>("writes", {{"within", 0}, {"whole", 1}}) == 1;
}

}  // namespace

Settings read_s3_settings(const SettingsReader& reader, const Environment& environment) {
  Settings settings;
  settings.credentials = read_credentials(reader, environment);
  settings.region = reader.text_or("region", {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = profile_value(settings.credentials.profile, "region");
  if (settings.region.empty()) settings.region = "us-east-1";
  std::string endpoint = reader.text_or("endpoint", {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (endpoint.empty()) endpoint = profile_value(settings.credentials.profile, "endpoint_url");
  settings.style = reader.choice<Style>("style", {{"auto", static_cast<int>(Style::kAuto)},
                                                  {"path", static_cast<int>(Style::kPath)},
                                                  {"virtual", static_cast<int>(Style::kVirtual)}});
  if (!endpoint.empty()) {
    settings.endpoint = Endpoint::parse(endpoint, reader.name("endpoint"));
    if (settings.style != Style::kAuto) settings.endpoint->style = settings.style;
  }
  if (settings.credentials.sts_url.empty())
    settings.credentials.sts_url = fmt::format("https://sts.{}.amazonaws.com", settings.region);
  settings.ca_file = reader.text_or("ca_file", {"AWS_CA_BUNDLE"});
  settings.least_part_bytes = reader.bytes("least_part", "5MiB", 1, kAmazonLeastPart);
  settings.reap_after_ns = reader.duration("reap_after", "infinite");
  settings.checksum = reader.choice<Checksum>("checksum", {{"crc32c", static_cast<int>(Checksum::kCrc32c)},
                                                           {"sha256", static_cast<int>(Checksum::kSha256)},
                                                           {"none", static_cast<int>(Checksum::kNone)}});
  const int sign = reader.choice<int>("sign_payload", {{"auto", 2}, {"always", 1}, {"never", 0}});
  if (sign != 2) settings.sign_payload = sign == 1;
  return settings;
}

Settings Settings::read(ServerKind kind, const plugin::Host& host, const Environment& environment) {
  const SettingsReader reader(host, environment, std::string(backend_name(kind)) + ".");
  Settings settings = kind == ServerKind::kAzure ? read_azure_settings(reader)
                      : kind == ServerKind::kGcs ? read_gcs_settings(reader)
                                                 : read_s3_settings(reader, environment);
  settings.kind = kind;
  read_common(reader, settings);
  return settings;
}

}  // namespace towline::object
