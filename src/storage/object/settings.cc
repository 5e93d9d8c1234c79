#include "storage/object/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/config/config.h"
#include "base/os/unique_fd.h"

namespace towline::object {

namespace {

constexpr uint64_t kAmazonLeastPart = 5 << 20;
constexpr const char* kInstanceUrl = "http://169.254.169.254";

struct Named {
  const char* name;
  int value;
};

// Reads one setting after another; refuses with key, value and what is wanted.
class SettingsReader {
 public:
  SettingsReader(const plugin::Host& host, const Environment& environment)
      : host_(host), environment_(environment) {}

  [[nodiscard]] std::string text(const char* key, const char* fallback = "") const {
    return host_.config(key, fallback);
  }
  // The setting, else the first of the variables that is set.
  [[nodiscard]] std::string text_or(const char* key, std::initializer_list<const char*> variables) const {
    std::string value = text(key);
    for (const char* name : variables) {
      if (value.empty()) value = environment_(name).value_or("");
    }
    return value;
  }
  [[nodiscard]] uint64_t bytes(const char* key, const char* fallback, uint64_t low, uint64_t high) const {
    const std::string value = text(key, fallback);
    const auto parsed = parse_bytes(value);
    if (!parsed || *parsed < low || *parsed > high)
      refuse(key, value, fmt::format("a size from {} to {} bytes, such as {}", low, high, fallback));
    return *parsed;
  }
  [[nodiscard]] uint64_t duration(const char* key, const char* fallback, uint64_t low_ns = 1) const {
    const std::string value = text(key, fallback);
    const auto parsed = parse_duration_ns(value);
    if (!parsed || *parsed < low_ns)
      refuse(key, value, fmt::format("a time of at least {} ns, such as {}", low_ns, fallback));
    return *parsed;
  }
  [[nodiscard]] uint32_t count(const char* key, const char* fallback, uint32_t low, uint32_t high) const {
    const std::string value = text(key, fallback);
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || number < low || number > high)
      refuse(key, value, fmt::format("a number from {} to {}", low, high));
    return number;
  }
  template <class Choice>
  [[nodiscard]] Choice choice(const char* key, std::initializer_list<Named> choices) const {
    const std::string value = text(key, choices.begin()->name);
    std::string names;
    for (const Named& named : choices) {
      if (value == named.name) return static_cast<Choice>(named.value);
      names += (names.empty() ? "" : ", ") + std::string(named.name);
    }
    refuse(key, value, "one of " + names);
  }

 private:
  [[noreturn]] static void refuse(const char* key, const std::string& value, const std::string& wanted) {
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("{} = \"{}\": expected {}", key, shown(value), wanted));
  }

  const plugin::Host& host_;
  const Environment& environment_;
};

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

// A secret is best in a file of its own.
std::string read_secret(const SettingsReader& reader) {
  const std::string direct = reader.text("object.secret_key");
  const std::string file = reader.text("object.secret_key_file");
  if (file.empty()) return direct;
  const auto contents = read_text_file(file, 4096);
  if (!contents || !direct.empty())
    throw plugin::Failure(Status::kInvalidArgument,
                          contents ? "object.secret_key and object.secret_key_file are both set; keep one"
                                   : fmt::format("object.secret_key_file: \"{}\" can't be read", file));
  return contents->substr(0, contents->find_last_not_of(" \t\r\n") + 1);
}

CredentialSettings read_credentials(const SettingsReader& reader, const Environment& environment) {
  CredentialSettings credentials;
  credentials.source =
      reader.choice<Source>("object.credentials", {{"auto", number(Source::kAuto)},
                                                   {"settings", number(Source::kSettings)},
                                                   {"environment", number(Source::kEnvironment)},
                                                   {"profile", number(Source::kProfile)},
                                                   {"web_identity", number(Source::kWebIdentity)},
                                                   {"instance", number(Source::kInstance)},
                                                   {"none", number(Source::kNone)}});
  credentials.keys = {reader.text("object.access_key"), read_secret(reader),
                      reader.text("object.session_token")};
  credentials.profile_name = reader.text_or("object.profile", {"AWS_PROFILE"});
  if (credentials.profile_name.empty()) credentials.profile_name = "default";
  credentials.profile_files = profile_files(environment);
  credentials.profile = read_profile_files(credentials.profile_files, credentials.profile_name);
  credentials.role_arn = reader.text_or("object.role_arn", {"AWS_ROLE_ARN"});
  if (credentials.role_arn.empty()) credentials.role_arn = profile_value(credentials.profile, "role_arn");
  credentials.token_file = reader.text_or("object.web_identity_token_file", {"AWS_WEB_IDENTITY_TOKEN_FILE"});
  if (credentials.token_file.empty())
    credentials.token_file = profile_value(credentials.profile, "web_identity_token_file");
  credentials.session_name = reader.text_or("object.role_session_name", {"AWS_ROLE_SESSION_NAME"});
  if (credentials.session_name.empty()) credentials.session_name = "towline";
  credentials.sts_url = reader.text_or("object.sts_endpoint", {"AWS_ENDPOINT_URL_STS"});
  credentials.metadata_url =
      reader.text_or("object.metadata_endpoint", {"AWS_EC2_METADATA_SERVICE_ENDPOINT"});
  if (credentials.metadata_url.empty()) credentials.metadata_url = kInstanceUrl;
  while (credentials.metadata_url.ends_with('/')) credentials.metadata_url.pop_back();
  credentials.metadata_off = environment("AWS_EC2_METADATA_DISABLED").value_or("") == "true";
  return credentials;
}

}  // namespace

Settings Settings::read(const plugin::Host& host, const Environment& environment) {
  const SettingsReader reader(host, environment);
  Settings settings;
  settings.credentials = read_credentials(reader, environment);
  settings.region = reader.text_or("object.region", {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = profile_value(settings.credentials.profile, "region");
  if (settings.region.empty()) settings.region = "us-east-1";
  std::string endpoint = reader.text_or("object.endpoint", {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (endpoint.empty()) endpoint = profile_value(settings.credentials.profile, "endpoint_url");
  settings.style = reader.choice<Style>("object.style", {{"auto", static_cast<int>(Style::kAuto)},
                                                         {"path", static_cast<int>(Style::kPath)},
                                                         {"virtual", static_cast<int>(Style::kVirtual)}});
  if (!endpoint.empty()) {
    settings.endpoint = Endpoint::parse(endpoint, "object.endpoint");
    if (settings.style != Style::kAuto) settings.endpoint->style = settings.style;
  }
  if (settings.credentials.sts_url.empty())
    settings.credentials.sts_url = fmt::format("https://sts.{}.amazonaws.com", settings.region);
  settings.ca_file = reader.text_or("object.ca_file", {"AWS_CA_BUNDLE"});
  settings.proxy = reader.text("object.proxy");
  settings.threads = reader.count("object.threads", "2", 1, 64);
  settings.concurrency = reader.count("object.concurrency", "64", 1, 4096);
  settings.window = reader.bytes("object.window", "256MiB", 1 << 16, UINT64_MAX);
  settings.least_part_bytes = reader.bytes("object.least_part", "5MiB", 1, kAmazonLeastPart);
  settings.part_bytes = reader.bytes("object.part", "8MiB", settings.least_part_bytes, uint64_t{5} << 30);
  settings.multipart_bytes = reader.bytes("object.multipart", "16MiB", 1, uint64_t{5} << 30);
  settings.collect_bytes = reader.bytes("object.collect", "64MiB", 0, UINT64_MAX);
  settings.attempts = reader.count("object.attempts", "0", 0, 100);
  settings.backoff_ns = reader.duration("object.backoff", "100ms");
  settings.backoff_most_ns = reader.duration("object.backoff_most", "5s");
  settings.connect_timeout_ns = reader.duration("object.connect_timeout", "5s", 1'000'000);
  settings.stall_timeout_ns = reader.duration("object.stall_timeout", "20s", 1'000'000'000);
  settings.control_timeout_ns = reader.duration("object.control_timeout", "60s", 1'000'000);
  settings.reap_after_ns = reader.duration("object.reap_after", "infinite");
  settings.writes_whole = reader.choice<int>("object.writes", {{"within", 0}, {"whole", 1}}) == 1;
  settings.checksum =
      reader.choice<Checksum>("object.checksum", {{"crc32c", static_cast<int>(Checksum::kCrc32c)},
                                                  {"sha256", static_cast<int>(Checksum::kSha256)},
                                                  {"none", static_cast<int>(Checksum::kNone)}});
  const int sign = reader.choice<int>("object.sign_payload", {{"auto", 2}, {"always", 1}, {"never", 0}});
  if (sign != 2) settings.sign_payload = sign == 1;
  return settings;
}

}  // namespace towline::object
