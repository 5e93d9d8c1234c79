// One object's share of a WRITE: the steps are decided once; the ends of calls drive them.
//
//   start -> put                                     small and whole
//   start -> create -> parts -> complete             large and whole
//   start -> head -> create -> parts, copies -> complete   a stretch; the rest is copied
//   start -> parts                                   of a replacement that is committed later
//
// Either all of its bytes are in memory at the start, or they are collected as they arrive (collect): then
// each part is sent when it is complete, and an object of up to one part is a put.
//
// From any of them a failure leads to over(), an upload that was begun going to the reaper. A put or a
// complete whose answer got lost may have happened: the object is then looked at (settle).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "storage/object/part_memory.h"
#include "storage/object/protocol.h"
#include "storage/object/reaper.h"
#include "storage/object/upload.h"

namespace towline::object {

// Receives the progress of an object's write, on the client's thread. The write is still on the stack.
class WriteListener {
 public:
  // For the bytes [begin, end) of the plan.
  virtual void failed(Status status, long http_status, uint64_t begin, uint64_t end) = 0;
  virtual void moved(uint64_t bytes) = 0;
  virtual void not_fenced() = 0;
  // The last call.
  virtual void one_over() = 0;
  // One of the jobs that it is for is.
  [[nodiscard]] virtual bool urgent() const noexcept = 0;
  // collect() returned 0 before and may take more now.
  virtual void has_room() {}

 protected:
  ~WriteListener() = default;
};

class ObjectWrite final : private Feeder {
 public:
  // `memory`: its bytes arrive through collect(), and the stretch has no segments. Null: the stretch has all.
  ObjectWrite(WriteListener& listener, Client& client, Reaper& reaper, Object& object, Stretch stretch,
              PartMemory* memory = nullptr);
  ~ObjectWrite() override;

  void start();
  void stop(Status status, bool now);
  // Copies its next bytes and returns how many; 0 if there is no room now.
  [[nodiscard]] uint64_t collect(const std::byte* data, uint64_t bytes);
  [[nodiscard]] bool is_over() const noexcept { return over_; }
  [[nodiscard]] const Stretch& stretch() const noexcept { return stretch_; }

 private:
  struct PartCall {
    Call call;
    PartBuffer buffer;  // that it is collected in
    Stretch collected;
    uint64_t filled = 0;
    SegmentsBody body;
    uint32_t number = 0;
    UploadedPart part;
    bool under_way = false;
  };

  void start_replacement();
  void put(const Stretch& from);
  void collect_put();
  [[nodiscard]] bool begin_collecting();
  [[nodiscard]] PartCall& free_part();
  void head();
  void seen(const Answer& answer);
  void create(std::vector<Piece> pieces);
  void add_parts(const std::vector<Piece>& pieces, uint32_t first_number);
  bool feed() override;
  [[nodiscard]] bool urgent() const noexcept override { return listener_.urgent(); }
  void begin(Call& call);
  void ask(PartCall& part, const Piece& piece);
  void part_done(PartCall& part, Answer& answer);
  void parts_done();
  void complete();
  // Handles the result of a put or a complete.
  [[nodiscard]] Version made(const Answer& answer) const;
  void wrote(Answer& answer);
  void is_there(Version version);
  void settle(const Answer& answer);
  // A step of a call's end: without memory the write fails.
  template <class Step>
  void try_step(Step&& step);
  void failed(Status status, long http_status, const std::string& text) noexcept;
  void failed(const Answer& answer) { failed(answer.status, answer.http_status, answer.text); }
  void over() noexcept;
  void leave_upload() noexcept;
  [[nodiscard]] const Protocol& protocol() const noexcept { return client_.protocol(); }
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

  WriteListener& listener_;
  Client& client_;
  Reaper& reaper_;
  Object& object_;
  const Stretch stretch_;
  PartMemory* const memory_;              // null: nothing is collected
  Call call_;                             // put, head, complete: one at a time
  SegmentsBody body_;                     // of put
  UploadedPart sums_;                     // of put
  bool lasting_ = false;                  // call_ is one whose effect lasts
  bool settling_ = false;                 // that it has happened may only be seen
  std::shared_ptr<Beginning> beginning_;  // of an upload, while its answer is awaited
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
  PartCall* filling_ = nullptr;      // that is being collected
  size_t next_collected_ = 0;        // the piece to be collected next
  std::deque<PartCall*> collected_;  // whole, in order, and not asked for yet
  bool puts_ = false;                // what is collected is all
  std::string tag_;                  // of this write, where the server keeps one
  Parts parts_;
  uint32_t crc_ = 0;  // of the new object, where it is known
  bool crc_known_ = false;
};

}  // namespace towline::object
