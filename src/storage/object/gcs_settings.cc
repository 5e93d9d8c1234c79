// The settings of an instance for Google Cloud Storage: "gcs.*", else the variables that tools of the field read.
#include <unistd.h>

#include "storage/object/settings_reader.h"

namespace towline::object {

namespace {

constexpr const char* kInstanceUrl = "http://metadata.google.internal";
constexpr const char* kGcloudFile = "/.config/gcloud/application_default_credentials.json";

// Which of what was given is used.
void choose(const SettingsReader& reader, const Keys& keys, Settings& settings) {
  enum Wanted { kAuto, kHmac, kToken, kAccount, kInstance, kNone };
  const auto wanted = reader.choice<Wanted>("credentials", {{"auto", kAuto},
                                                            {"hmac", kHmac},
                                                            {"token", kToken},
                                                            {"account", kAccount},
                                                            {"instance", kInstance},
                                                            {"none", kNone}});
  CredentialSettings& given = settings.credentials;
  given.token_file = reader.text_or("token_file", {"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"});
  given.account_file = reader.text_or("account_file", {"GOOGLE_APPLICATION_CREDENTIALS"});
  if (given.account_file.empty()) {  // what `gcloud auth application-default login` leaves
    const std::string left = reader.variable("HOME") + kGcloudFile;
    if (access(left.c_str(), R_OK) == 0) given.account_file = left;
  }
  const bool hmac = !keys.access_key.empty() && !keys.secret_key.empty();
  const bool token = !keys.session_token.empty() || !given.token_file.empty();
  const auto use = [&](Wanted which, bool there) { return wanted == which || (wanted == kAuto && there); };
  const auto need = [&](bool there, const std::string& what) {
    if (!there) given.missing = what;
  };
  const std::string hmac_keys = reader.name("access_key") + " and " + reader.name("secret_key");
  const std::string tokens = reader.name("token") + " or " + reader.name("token_file");
  const std::string accounts = reader.name("account_file");
  if (use(kHmac, hmac)) {
    need(hmac, hmac_keys);
    given.source = Source::kSettings;
    given.keys = {keys.access_key, keys.secret_key, ""};
  } else if (use(kToken, token)) {
    need(token, tokens);
    given.source = keys.session_token.empty() ? Source::kTokenFile : Source::kSettings;
    given.keys = {"", "", keys.session_token};
  } else if (use(kAccount, !given.account_file.empty())) {
    need(!given.account_file.empty(), accounts);
    given.source = Source::kAccount;
  } else {
    // Google's machines are asked only if that is chosen: elsewhere the address may belong to a stranger.
    need(wanted != kAuto, fmt::format("{}, or {}, or {}, or {} to \"instance\" or \"none\"", hmac_keys,
                                      tokens, accounts, reader.name("credentials")));
    given.source = wanted == kInstance ? Source::kInstance : Source::kNone;
  }
}

}  // namespace

Settings read_gcs_settings(const SettingsReader& reader) {
  Settings settings;
  settings.region = reader.text("region", "auto");
  settings.checksum = reader.choice<Checksum>(
      "checksum", {{"md5", static_cast<int>(Checksum::kMd5)}, {"none", static_cast<int>(Checksum::kNone)}});
  settings.least_part_bytes = reader.bytes("least_part", "5MiB", 1, 5 << 20);
  settings.reap_after_ns = reader.duration("reap_after", "infinite");
  settings.ca_file = reader.text("ca_file");
  settings.style = Style::kPath;
  std::string endpoint = reader.text("endpoint");
  if (endpoint.empty()) endpoint = "https://storage.googleapis.com";
  settings.endpoint = Endpoint::parse(endpoint, reader.name("endpoint"));
  settings.endpoint->style = settings.style;

  CredentialSettings& credentials = settings.credentials;
  std::string secret = read_secret(reader, "secret_key", "secret_key_file");
  if (secret.empty()) secret = reader.text_or("secret_key", {"GS_SECRET_ACCESS_KEY"});
  const std::string key = reader.text_or("access_key", {"GS_ACCESS_KEY_ID"});
  choose(reader, {key, secret, reader.text("token")}, settings);
  if (credentials.source != Source::kSettings || secret.empty()) settings.sign_payload = false;
  credentials.metadata_url = reader.text("metadata_endpoint", kInstanceUrl);
  while (credentials.metadata_url.ends_with('/')) credentials.metadata_url.pop_back();
  return settings;
}

}  // namespace towline::object
