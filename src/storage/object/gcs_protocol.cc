#include "storage/object/gcs_protocol.h"

#include "storage/object/azure_protocol.h"
#include "storage/object/checksum.h"
#include "storage/object/upload.h"

namespace towline::object {

std::string crc32c_of_goog_hash(std::string_view hashes) {
  constexpr std::string_view kName = "crc32c=";
  while (!hashes.empty()) {
    const size_t comma = hashes.find(',');
    std::string_view hash = hashes.substr(0, comma);
    while (hash.starts_with(' ')) hash.remove_prefix(1);
    if (hash.starts_with(kName)) return std::string{hash.substr(kName.size())};
    hashes = comma == std::string_view::npos ? std::string_view{} : hashes.substr(comma + 1);
  }
  return {};
}

void GcsProtocol::sign(Outgoing& request, const Keys* keys, const Settings& settings) const {
  if (keys == nullptr || !keys->secret_key.empty()) return S3Protocol::sign(request, keys, settings);
  request.headers["authorization"] = "Bearer " + keys->session_token;
}

void GcsProtocol::make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                              UploadedPart& part) const {
  call.body = &body;
  call.cost = body.bytes();
  if (signs) call.payload_hash = to_hex(body.sha256());
  if (checksum != Checksum::kMd5) return;
  part.md5 = to_base64(body.md5());
  call.headers.emplace_back("content-md5", part.md5);
}

void GcsProtocol::make_head(Call& call, const ObjectName& name) const {
  S3Protocol::make_head(call, name);
  call.headers.clear();
}

Version GcsProtocol::version_of(const Headers& headers) const {
  Version version = S3Protocol::version_of(headers);
  version.sha256.clear();
  version.crc32c = crc32c_of_goog_hash(header(headers, "x-goog-hash"));
  return version;
}

void GcsProtocol::make_create(Call& call, const Object& object, Checksum) const {
  S3Protocol::make_create(call, object, Checksum::kNone);
}

std::unique_ptr<Protocol> Protocol::make(ServerKind kind) {
  if (kind == ServerKind::kAzure) return std::make_unique<AzureProtocol>();
  if (kind == ServerKind::kGcs) return std::make_unique<GcsProtocol>();
  return std::make_unique<S3Protocol>();
}

}  // namespace towline::object
