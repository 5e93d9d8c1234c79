// Google Cloud Storage by its XML interface, which is Amazon's with these differences: a part can't be copied from an
// object, checksums are Content-MD5 on the way in and x-goog-hash on the way out, and a write can't depend on a version
// (its own conditions and Amazon's signature exclude each other). Requests with a token have none of Amazon's headers.
#pragma once

#include "storage/object/s3_protocol.h"

namespace towline::object {

class GcsProtocol final : public S3Protocol {
 public:
  [[nodiscard]] const char* scheme() const noexcept override { return "gs"; }
  [[nodiscard]] bool copies_parts() const noexcept override { return false; }
  [[nodiscard]] bool has_conditions() const noexcept override { return false; }
  void sign(Outgoing& request, const Keys* keys, const Settings& settings) const override;
  void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                   UploadedPart& part) const override;
  void make_head(Call& call, const ObjectName& name) const override;
  [[nodiscard]] Version version_of(const Headers& headers) const override;
  void make_create(Call& call, const Object& object, Checksum checksum) const override;
};

// The value of "crc32c=..." in x-goog-hash, which lists several; empty: it has none.
[[nodiscard]] std::string crc32c_of_goog_hash(std::string_view hashes);

}  // namespace towline::object
