// Azure Blob Storage: block blobs. Versions of the service from 2021-12-02 on.
#pragma once

#include "storage/object/protocol.h"

namespace towline::object {

// The text of a request that an account's key signs.
std::string azure_text_to_sign(const Outgoing& request, const std::string& account);

class AzureProtocol final : public Protocol {
 public:
  [[nodiscard]] const char* scheme() const noexcept override { return "az"; }
  [[nodiscard]] bool tags_writes() const noexcept override { return true; }
  void sign(Outgoing& request, const Keys* keys, const Settings& settings) const override;
  void make_put(Call& call, const std::string& tag) const override;
  void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                   UploadedPart& part) const override;
  [[nodiscard]] Verdict check_upload(const Answer& answer, const UploadedPart& part) const override;
  void make_head(Call& call, const ObjectName& name) const override;
  [[nodiscard]] Version version_of(const Headers& headers) const override;
  void make_part(Call& call, const Object& object, const std::string& upload_id,
                 uint32_t number) const override;
  [[nodiscard]] Verdict check_part(const Answer& answer, UploadedPart& part) const override;
  void make_complete(Call& call, const Object& object, const std::string& upload_id, const Parts& parts,
                     Checksum checksum) const override;
  void make_list(Call& call, const ObjectName& prefix, const std::string& next) const override;
  [[nodiscard]] std::optional<Listing> decode_list(std::string_view body) const override;
};

}  // namespace towline::object
