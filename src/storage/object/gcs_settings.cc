// The settings of an instance for Google Cloud Storage: "gcs.*", else the variables that tools of the field read.
#include "storage/object/settings_reader.h"

namespace towline::object {

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
  const bool anonymous = reader.choice<int>("credentials", {{"hmac", 0}, {"none", 1}}) == 1;
  std::string secret = read_secret(reader, "secret_key", "secret_key_file");
  if (secret.empty()) secret = reader.text_or("secret_key", {"GS_SECRET_ACCESS_KEY"});
  const std::string key = reader.text_or("access_key", {"GS_ACCESS_KEY_ID"});
  credentials.source = anonymous ? Source::kNone : Source::kSettings;
  credentials.keys = {key, secret, ""};
  return settings;
}

}  // namespace towline::object
