// Amazon's S3, and what is compatible with it.
#pragma once

#include "storage/object/protocol.h"

namespace towline::object {

class S3Protocol : public Protocol {
 public:
  [[nodiscard]] const char* scheme() const noexcept override { return "s3"; }
  [[nodiscard]] bool keeps_uploads() const noexcept override { return true; }
  [[nodiscard]] bool copies_parts() const noexcept override { return true; }
  void sign(Outgoing& request, const Keys* keys, const Settings& settings) const override;
  void make_put(Call& call, const std::string& tag) const override;
  void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                   UploadedPart& part) const override;
  [[nodiscard]] Verdict check_upload(const Answer& answer, const UploadedPart& part) const override;
  void make_head(Call& call, const ObjectName& name) const override;
  [[nodiscard]] Version version_of(const Headers& headers) const override;
  void make_create(Call& call, const Object& object, Checksum checksum) const override;
  void make_part(Call& call, const Object& object, const std::string& upload_id,
                 uint32_t number) const override;
  void make_copy(Call& call, const Object& object, const Version& from, const Piece& piece) const override;
  [[nodiscard]] Verdict check_part(const Answer& answer, UploadedPart& part) const override;
  void make_complete(Call& call, const Object& object, const std::string& upload_id, const Parts& parts,
                     Checksum checksum) const override;
  [[nodiscard]] Verdict check_completed(Answer& answer) const override;
  void make_abort(Call& call, const ObjectName& name, const std::string& upload_id) const override;
  void make_list(Call& call, const ObjectName& prefix, const std::string& next) const override;
  [[nodiscard]] std::optional<Listing> decode_list(std::string_view body) const override;
};

}  // namespace towline::object
