// One object's share of a WRITE: the steps are decided once; the ends of calls drive them.
//
//   start -> put                                     small and whole
//   start -> create -> parts -> complete             large and whole
//   start -> head -> create -> parts, copies -> complete   a stretch; the rest is copied
//   start -> parts                                   of a replacement that is committed later
//
// From any of them a failure leads to over(), an upload that was begun going to the reaper. A put or a
// complete whose answer got lost may have happened: the object is then looked at (settle).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "storage/object/upload.h"

namespace towline::object {

class Reaper;
class Writer;

class ObjectWrite final : private Feeder {
 public:
  ObjectWrite(Writer& writer, Client& client, Reaper& reaper, Object& object, Stretch stretch);
  ~ObjectWrite() override;

  void start();
  void stop(Status status, bool now);

 private:
  struct PartCall {
    Call call;
    SegmentsBody body;
    uint32_t number = 0;
    UploadedPart part;
    bool under_way = false;
  };

  void start_replacement();
  void put();
  void head();
  void create(std::vector<Piece> pieces);
  void add_parts(const std::vector<Piece>& pieces, uint32_t first_number);
  bool feed() override;
  void ask(PartCall& part, const Piece& piece);
  void part_done(PartCall& part, Answer& answer);
  void parts_done();
  void complete();
  // Handles the result of a put or a complete.
  [[nodiscard]] Version made(const Answer& answer) const;
  void wrote(Answer& answer);
  void is_there(Version version);
  void settle(const Answer& answer);
  void failed(Status status, long http_status, const std::string& text);
  void failed(const Answer& answer) { failed(answer.status, answer.http_status, answer.text); }
  void over();
  // An upload that has checksums must have one of each part, and not every server gives those of parts that
  // it copies: with copies the new bytes are guarded by their hash in the signature alone.
  [[nodiscard]] Checksum checksum() const noexcept {
    return copies_ ? Checksum::kNone : client_.settings().checksum;
  }
  [[nodiscard]] bool signs() const {
    const Settings& settings = client_.settings();
    if (copies_ && settings.checksum != Checksum::kNone) return true;
    return settings.sign_payload.value_or(!client_.service().endpoint(object_.name().bucket).encrypted());
  }

  Writer& writer_;
  Client& client_;
  Reaper& reaper_;
  Object& object_;
  const Stretch stretch_;
  Call call_;              // put, head, create, complete: one at a time
  SegmentsBody body_;      // of put
  bool lasting_ = false;   // call_ is one whose effect lasts
  bool creating_ = false;  // call_ begins an upload
  bool stopping_ = false;
  bool over_ = false;
  Version before_;  // what is copied from
  bool copies_ = false;
  std::string upload_id_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> numbers_;
  size_t next_piece_ = 0;
  uint32_t under_way_ = 0;
  std::deque<PartCall> part_calls_;
  std::vector<PartCall*> free_;
  Parts parts_;
  uint32_t crc_ = 0;  // of the new object, where it is known
  bool crc_known_ = false;
};

}  // namespace towline::object
