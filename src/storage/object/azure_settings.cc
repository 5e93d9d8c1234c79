// The settings of an instance for Azure: "azure.*", else Azure's own variables.
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <map>

#include "storage/object/settings_reader.h"

namespace towline::object {

namespace {

constexpr const char* kInstanceUrl = "http://169.254.169.254";
// The emulator's, which are public.
constexpr const char* kDevelopment =
    "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/"
    "K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1";

[[noreturn]] void refuse(const std::string& text) { throw plugin::Failure(Status::kInvalidArgument, text); }

// "Name=value;Name=value". Values may contain =.
std::map<std::string, std::string> parts_of(std::string_view text, const std::string& source) {
  std::map<std::string, std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0)
      refuse(source +
             ": expected \"Name=value;Name=value\", as a storage account's access keys page shows it");
    parts.emplace(part.substr(0, equals), part.substr(equals + 1));
  }
  return parts;
}

std::string decode_key(const std::string& text, const std::string& source) {
  std::string bytes(text.size(), '\0');
  const int length = text.size() % 4 != 0 || text.empty()
                         ? -1
                         : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                           reinterpret_cast<const unsigned char*>(text.data()),
                                           static_cast<int>(text.size()));
  if (length <= 0) refuse(source + ": the account's key is not base64");
  const auto padding = static_cast<size_t>(std::count(text.end() - 2, text.end(), '='));
  bytes.resize(static_cast<size_t>(length) - padding);
  return bytes;
}

// "https://account.blob.core.windows.net", or with a path of one name, as emulators have it.
Endpoint parse_endpoint(std::string url, const std::string& source) {
  while (url.ends_with('/')) url.pop_back();
  const size_t host = url.find("://");
  const size_t slash = host == std::string::npos ? std::string::npos : url.find('/', host + 3);
  const std::string path = slash == std::string::npos ? "" : url.substr(slash);
  Endpoint endpoint = Endpoint::parse(url.substr(0, slash), source);
  if (path.find('/', 1) != std::string::npos || path.find_first_of("?#%") != std::string::npos)
    refuse(
        fmt::format("{} = \"{}\": expected https://host, or http://host[:port]/account", source, shown(url)));
  endpoint.style = Style::kPath;
  endpoint.path = path;
  return endpoint;
}

}  // namespace

Settings read_azure_settings(const SettingsReader& reader) {
  Settings settings;
  settings.region = "none";
  settings.checksum = reader.choice<Checksum>("checksum", {{"crc64", static_cast<int>(Checksum::kCrc64)},
                                                           {"md5", static_cast<int>(Checksum::kMd5)},
                                                           {"none", static_cast<int>(Checksum::kNone)}});
  settings.least_part_bytes = 1;
  settings.reap_after_ns = UINT64_MAX;
  settings.sign_payload = false;
  settings.ca_file = reader.text("ca_file");

  std::string connection = reader.text_or("connection_string", {"AZURE_STORAGE_CONNECTION_STRING"});
  if (connection == "UseDevelopmentStorage=true") connection = kDevelopment;
  auto parts = parts_of(connection, reader.name("connection_string"));
  const auto given = [&](const std::string& direct, const char* part) {
    return !direct.empty() ? direct : parts[part];
  };
  const std::string account = given(reader.text_or("account", {"AZURE_STORAGE_ACCOUNT"}), "AccountName");
  std::string key = read_secret(reader, "account_key", "account_key_file");
  if (key.empty()) key = reader.text_or("account_key", {"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"});
  key = given(key, "AccountKey");
  settings.sas = given(reader.text_or("sas_token", {"AZURE_STORAGE_SAS_TOKEN"}), "SharedAccessSignature");
  if (settings.sas.starts_with('?')) settings.sas.erase(0, 1);

  std::string endpoint = given(reader.text("endpoint"), "BlobEndpoint");
  if (endpoint.empty() && !account.empty()) {
    const std::string& suffix = parts["EndpointSuffix"];
    endpoint = fmt::format("{}://{}.blob.{}", parts["DefaultEndpointsProtocol"] == "http" ? "http" : "https",
                           account, suffix.empty() ? "core.windows.net" : suffix);
  }
  if (!endpoint.empty()) settings.endpoint = parse_endpoint(endpoint, reader.name("endpoint"));

  CredentialSettings& credentials = settings.credentials;
  const auto wanted = reader.choice<int>(
      "credentials", {{"auto", 0}, {"key", 1}, {"sas", 2}, {"managed_identity", 3}, {"none", 4}});
  const bool by_key = wanted == 1 || (wanted == 0 && !key.empty());
  const bool by_sas = wanted == 2 || (wanted == 0 && !by_key && !settings.sas.empty());
  if (by_key && (account.empty() || key.empty()))
    refuse(fmt::format("{} and {} are needed to sign with an account's key", reader.name("account"),
                       reader.name("account_key")));
  if (wanted == 2 && settings.sas.empty()) refuse(reader.name("sas_token") + " is not set");
  if (!by_sas) settings.sas.clear();
  credentials.source = by_key ? Source::kSettings : Source::kNone;
  if (by_key) credentials.keys = {account, decode_key(key, reader.name("account_key")), ""};
  // Asked only if that is chosen: outside Azure the address may belong to a stranger.
  if (wanted == 3) credentials.source = Source::kInstance;
  credentials.profile_name = reader.text_or("client_id", {"AZURE_CLIENT_ID"});
  credentials.metadata_url = reader.text("metadata_endpoint", kInstanceUrl);
  while (credentials.metadata_url.ends_with('/')) credentials.metadata_url.pop_back();
  return settings;
}

}  // namespace towline::object
